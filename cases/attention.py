"""Cases attention and attention_masked: softmax(scale * q @ k.T) @ v, head by head.

Contract: jax.nn.dot_product_attention, heads before positions. Query head i attends with the key
and value head i // (h / hkv). Query i and key j stand at the positions i and j, whatever the
lengths. A query that may attend to no key gets 0, an empty sum: XLA's finite mask value would
average over keys that are masked, and which ones depends on a kernel's blocks.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, DomainError, Negative, Param, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.contraction import unsupported_type
from conformance.numerics import (
    bounded,
    dtype_of,
    equal,
    logit_error,
    probe_operand_limit,
    weighted_mean_error,
)
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    integers,
    legal_block,
    names,
    operand,
    probe_limit,
    sizes,
)

SPEC = "https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html"
DTYPES = ("float32", "bfloat16")
KINDS = ("exact", "position", "normal", "cancel", "wide")
# 1 / sqrt(64), 1 / sqrt(128), and a scale that somebody has applied to q already.
SCALES = (0.125, 0.08838834764831845, 1.0)
MASKS = ("causal", "local", "none")
# "documents" attend to themselves; "padding" masks the last keys of a batch, and all of them in
# the first of several; "random" leaves out every seventh query.
ARBITRARY_MASKS = ("random", "documents", "padding")
HEADS = ((2, 1), (1, 1), (4, 2), (2, 2))  # of queries, of keys and values
MOST_STEPS = 16
# Logits of "exact" lie so far apart that exp of a difference is 0 in float32, whose least number
# is exp(-104), with room for the rounding of logits up to 2^26.
GAP = 512


# ------------------------------------------------------------------ masks


def structural_mask(params: Params) -> np.ndarray:
    """Which keys a query may attend to, bool (1, t, s).

    "causal": those at its position and before. "local": of these the last `window` + 1.
    """
    i, j = np.indices((params["t"], params["s"]))
    if params["mask"] == "none":
        return np.ones((1, params["t"], params["s"]), bool)
    causal = j <= i
    return (causal & (j >= i - params["window"]) if params["mask"] == "local" else causal)[None]


def arbitrary_mask(params: Params) -> np.ndarray:
    """Which keys a query may attend to, bool (b, t, s); a function of the parameters alone."""
    n, i, j = np.indices((params["b"], params["t"], params["s"]))
    if params["mask"] == "random":
        return ((i * 7919 + j * 104729 + n * 31 + i * j) % 5 < 2) & (i % 7 != 3)
    if params["mask"] == "documents":
        length = params["s"] // 3 + 1 + n
        return (i // length == j // length) & (j <= i)
    share = n if params["b"] > 1 else n + 2
    return j < params["s"] * share // (share + 1)


# ------------------------------------------------------------------ domain


def check(params: Params) -> None:
    h, heads = params["h"], params["hkv"]
    if h % heads:
        raise DomainError(f"hkv must divide h = {h}, got {heads}")
    for block, dim, unit in (("bq", "t", SUBLANES), ("bk", "s", LANES)):
        if not legal_block(params[block], params[dim], unit):
            raise DomainError(
                f"{block} must be {params[dim]} (the whole of {dim}) or a multiple of {unit} below "
                f"{params[dim] + unit}, got {params[block]}"
            )
    if params["d"] < 8:
        raise DomainError(f"d must be at least 8, got {params['d']}")
    if params.get("window", 0) and params["mask"] != "local":
        raise DomainError(f"window must be 0 unless the mask is local, got {params['window']}")


@st.composite
def points(draw: st.DrawFn, masks: tuple[str, ...]) -> dict[str, Any]:
    h, heads = draw(st.sampled_from(HEADS))
    t, s = draw(sizes(128, 8, 100, 200)), draw(sizes(256, 100, 128, 200))
    point = {"b": draw(sizes(2, 1)), "h": h, "hkv": heads, "t": t, "s": s}
    point |= {"d": draw(sizes(64, 128)), "bq": draw(blocks(t, SUBLANES, most=3))}
    point |= {"bk": draw(blocks(s, LANES)), "dtype": draw(names(*DTYPES))}
    mask = draw(names(*masks))
    point |= {"mask": mask, "scale": draw(st.sampled_from(SCALES))}
    if masks == MASKS:
        point["window"] = draw(st.sampled_from((16, 0, 100))) if mask == "local" else 0
    return point


def domain(masks: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    def affordable(p: Params) -> bool:
        steps = p["b"] * p["h"] * cdiv(p["t"], p["bq"]) * cdiv(p["s"], p["bk"])
        return bool(steps <= MOST_STEPS)

    return points(masks).filter(affordable)


def inputs(params: Params) -> tuple[str, ...]:
    """No exact probe where the scale is no power of two: it rounds the logits, but not where a
    compiler fuses its product with the subtraction of the maximum."""
    whole = math.frexp(params["scale"])[0] == 0.5
    return KINDS if whole else tuple(k for k in KINDS if k != "exact")


# ------------------------------------------------------------------ arrays


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """q (b, h, t, d), k and v (b, hkv, s, d)."""
    b, h, heads, t, s, d = (params[name] for name in ("b", "h", "hkv", "t", "s", "d"))
    dtype, queries, keys = dtype_of(params["dtype"]), (b, h, t, d), (b, heads, s, d)
    if kind == "exact":
        q, k = codes(queries, keys, params["scale"], rng)
        v = integers(rng, keys, probe_operand_limit(dtype))
    elif kind == "position":
        q, k = np.zeros(queries), rng.standard_normal(keys)
        limit = probe_limit(s, params["dtype"], params["dtype"])
        v = operand(kind, (b * heads * s, d), "float32", rng, axis=0, limit=limit).reshape(keys)
    else:
        # Logits of a standard deviation of 1, whatever the scale.
        q = rng.standard_normal(queries) / (params["scale"] * np.sqrt(d))
        k, v = rng.standard_normal(keys), rng.standard_normal(keys)
    if kind == "cancel":
        half = s // 2
        k[:, :, half : 2 * half] = k[:, :, :half] * (1 + 2.0**-6 * rng.standard_normal((half, d)))
        v[:, :, half : 2 * half] = -v[:, :, :half]
    if kind == "wide":
        q *= 2.0 ** rng.integers(-6, 3, size=(b, h, t, 1), endpoint=True)
        v *= 2.0 ** rng.integers(-8, 8, size=(b, heads, 1, d), endpoint=True)
    return tuple(a.astype(np.float32).astype(dtype) for a in (q, k, v))


def codes(
    queries: tuple[int, ...], keys: tuple[int, ...], scale: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """q and k whose logits lie at least `GAP` apart for each query: softmax picks one key.

    Keys are random signs and, in three places, the digits of their position to the base 16; a
    query weighs the digits such that they only decide between keys of equally many signs. All
    of q are powers of two, which a scale rounds alike.
    """
    s, d = keys[2:]
    unit = 2.0 ** np.ceil(np.log2(GAP / scale))
    q, k = (rng.choice((-1.0, 1.0), size=shape) for shape in (queries, keys))
    q *= 2.0 ** (s - 1).bit_length()
    position = np.arange(s)
    for place, power in enumerate((256, 16, 1)):
        k[..., d - 3 + place] = position // power % (256 if power == 256 else 16)
        q[..., d - 3 + place] = power
    return q * unit, k


def make_masked(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """q (b, h, t, d), k and v (b, hkv, s, d), mask bool (b, t, s), true where attended."""
    return *make(params, kind, rng), arbitrary_mask(params)


# ------------------------------------------------------------------ reference


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    return reference_masked(params, kind, (*arrays, structural_mask(params)), arithmetic)


def reference_masked(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    dtype, shape = dtype_of(params["dtype"]), arrays[0].shape
    judged = [
        one_head(params, kind, *operands, arithmetic=arithmetic) for operands in heads_of(arrays)
    ]
    value, error = (np.stack(part).reshape(shape) for part in zip(*judged, strict=True))
    if kind == "exact":
        return (equal(value, dtype),)
    return (bounded(value, dtype, error),)


def heads_of(arrays: Arrays) -> Iterator[Arrays]:
    """q (t, d), k, v (s, d) and mask (t, s) of each query head of each batch."""
    q, k, v, mask = arrays
    group = q.shape[1] // k.shape[1]
    for n, batch in enumerate(q):
        for i, one in enumerate(batch):
            yield one, k[n, i // group], v[n, i // group], mask[n % len(mask)]


def one_head(
    params: Params,
    kind: str,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    *,
    arithmetic: Arithmetic,
) -> tuple[np.ndarray, np.ndarray]:
    """The result (t, d) in float64 and its error.

    Where softmax picks one key, and where it averages over a power of two of them with equal
    logits, every intermediate result is exact.
    """
    scale = params["scale"]
    q64, k64 = q.astype(np.float64), k.astype(np.float64)
    logits = scale * (q64 @ k64.T)
    weights = softmax(logits, mask)
    value = weights @ v.astype(np.float64)
    if kind == "exact":
        return value, np.zeros_like(value)
    error = logit_error(
        scale * (np.abs(q64) @ np.abs(k64).T),
        logits,
        terms=params["d"],
        scale=scale,
        operand=q.dtype,
        arithmetic=arithmetic,
    )
    mean_error = weighted_mean_error(
        weights,
        logits,
        error,
        v,
        blocks=cdiv(params["s"], params["bk"]),
        out=q.dtype,
        arithmetic=arithmetic,
    )
    count = mask.sum(axis=1, keepdims=True)
    exact = (count & (count - 1)) == 0 if kind == "position" else count == 0
    return value, np.where(exact, 0.0, mean_error)


def softmax(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Along the last axis, over what the mask allows; 0 where that is nothing."""
    kept = np.where(mask, logits, -np.inf)
    largest = kept.max(axis=1, keepdims=True)
    powers = np.exp(kept - np.where(np.isfinite(largest), largest, 0.0))
    total = powers.sum(axis=1, keepdims=True)
    return powers / np.where(total > 0, total, 1.0)


def baseline(params: Params, q: Any, k: Any, v: Any) -> Any:
    return baseline_masked(params, q, k, v, jnp.asarray(structural_mask(params)))


def baseline_masked(params: Params, q: Any, k: Any, v: Any, mask: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x.astype(jnp.float32), group, axis=1) for x in (k, v))
    mask = mask[:, None]
    logits = jnp.einsum("bhtd,bhsd->bhts", q.astype(jnp.float32), k, precision="highest")
    kept = jnp.where(mask, params["scale"] * logits, jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(kept, axis=-1), 0.0)
    return jnp.einsum("bhts,bhsd->bhtd", weights, v, precision="highest").astype(q.dtype)


# ------------------------------------------------------------------ work


def split(params: Params) -> tuple[Axes, Axes] | None:
    """By batches, or by heads, for all of which one head of keys and values may serve."""
    if params["b"] % 2 == 0:
        return (0, 0, 0), (0,)
    if params["hkv"] % 2 == 0:
        return (1, 1, 1), (1,)
    if params["hkv"] == 1 and params["h"] % 2 == 0:
        return (1, None, None), (1,)
    return None


def split_masked(params: Params) -> tuple[Axes, Axes] | None:
    """The mask (b, t, s) is of a batch, and of all its heads."""
    cut = split(params)
    if cut is None:
        return None
    arrays, results = cut
    return (*arrays, 0 if params["b"] % 2 == 0 else None), results


def work(params: Params) -> Work:
    return masked_work(params, np.broadcast_to(structural_mask(params), shape_of(params)), 0)


def work_masked(params: Params) -> Work:
    mask = arbitrary_mask(params)
    return masked_work(params, mask, mask.size)


def shape_of(params: Params) -> tuple[int, int, int]:
    return params["b"], params["t"], params["s"]


def masked_work(params: Params, mask: np.ndarray, mask_bytes: int) -> Work:
    """4 d operations for each pair that attends; queries, keys and values without one stay unread.

    Exponentials are not counted.
    """
    h, heads, d = params["h"], params["hkv"], params["d"]
    queries, keys = int(mask.any(axis=2).sum()), int(mask.any(axis=1).sum())
    elements = h * queries + 2 * heads * keys + h * params["b"] * params["t"]
    moved = elements * d * dtype_of(params["dtype"]).itemsize + mask_bytes
    return Work(flops=4 * d * h * int(mask.sum()), bytes=moved)


# ------------------------------------------------------------------ bad input

POINT = {
    "b": 2,
    "h": 4,
    "hkv": 2,
    "t": 16,
    "s": 128,
    "d": 64,
    "bq": 16,
    "bk": 128,
    "dtype": "float32",
    "mask": "causal",
    "scale": 0.125,
    "window": 0,
}
MASKED_POINT = {k: v for k, v in POINT.items() if k != "window"} | {"mask": "random"}


def refused(name: str, match: str, point: dict[str, Any], **changed: Any) -> Negative:
    """An array of a legal point is replaced, or a parameter."""
    masked = "window" not in point

    def arrays(params: Params) -> Arrays:
        good = (make_masked if masked else make)(point, "normal", np.random.default_rng(0))
        named = dict(zip(("q", "k", "v", "mask"), good, strict=False))
        return tuple((named | {k: v for k, v in changed.items() if k in named}).values())

    return Negative(
        name=name,
        params=point | {k: v for k, v in changed.items() if not isinstance(v, np.ndarray)},
        phase="trace",
        error="ValueError",
        match=match,
        arrays=arrays,
    )


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def negatives(point: dict[str, Any]) -> tuple[Negative, ...]:
    return (
        refused("rank", r"\bq\b.*rank 4.*\(4, 16, 64\)", point, q=ones(4, 16, 64)),
        refused("batch", r"k\.shape\[0\].*2.*\b3\b", point, k=ones(3, 2, 128, 64)),
        refused("head-size", r"k\.shape\[3\].*64.*128", point, k=ones(2, 2, 128, 128)),
        refused(
            "heads",
            r"k\.shape\[1\].*divide.*4.*\b3\b",
            point,
            k=ones(2, 3, 128, 64),
            v=ones(2, 3, 128, 64),
        ),
        refused(
            "values", r"v\.shape.*\(2, 2, 128, 64\).*\(2, 2, 64, 64\)", point, v=ones(2, 2, 64, 64)
        ),
        refused("mixed-dtypes", r"v\.dtype.*int32", point, v=ones(2, 2, 128, 64, dtype="int32")),
        refused("block-zero", r"\bbq\b.*\b0\b", point, bq=0),
        refused("block-misaligned", r"\bbk\b.*100", point, bk=100),
        refused("block-too-large", r"\bbk\b.*256", point, bk=256),
        unsupported_type(point | {"dtype": "bfloat16"}, "v2", "v3"),
    )


NEGATIVES = (
    *negatives(POINT),
    refused("unknown-mask", r"\bmask\b.*triangle", POINT, mask="triangle"),
    refused("window-negative", r"\bwindow\b.*-1", POINT, mask="local", window=-1),
)
MASKED_NEGATIVES = (
    *negatives(MASKED_POINT),
    refused(
        "mask-shape",
        r"mask\.shape.*\(2, 16, 128\).*\(2, 128, 16\)",
        MASKED_POINT,
        mask=ones(2, 128, 16, dtype="bool"),
    ),
    refused("mask-dtype", r"mask\.dtype.*float32", MASKED_POINT, mask=ones(2, 16, 128)),
)


# ------------------------------------------------------------------ the cases

PARAMS = {
    **{name: Param(kind="size") for name in ("b", "h", "hkv", "t", "s", "d")},
    "bq": Param(kind="block"),
    "bk": Param(kind="block"),
    "dtype": Param(kind="dtype", choices=DTYPES),
}
SCALE = Param(kind="choice", choices=SCALES, passed=True)

CASES = (
    Case(
        name="attention",
        contract="softmax(scale * q @ k.T) @ v over the keys that a causal or local mask leaves; "
        "0 where it leaves none",
        spec=SPEC,
        params={
            **PARAMS,
            "mask": Param(kind="choice", choices=MASKS, passed=True),
            "scale": SCALE,
            "window": Param(kind="count", passed=True),
        },
        domain=lambda: domain(MASKS),
        check=check,
        inputs=inputs,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        split=split,
        negatives=NEGATIVES,
    ),
    Case(
        name="attention_masked",
        contract="softmax(scale * q @ k.T) @ v over the keys where a boolean mask is true; "
        "0 where it nowhere is",
        spec=SPEC,
        params={
            **PARAMS,
            "mask": Param(kind="choice", choices=ARBITRARY_MASKS),
            "scale": SCALE,
        },
        domain=lambda: domain(ARBITRARY_MASKS),
        check=check,
        inputs=inputs,
        make=make_masked,
        reference=reference_masked,
        baseline=baseline_masked,
        work=work_masked,
        split=split_masked,
        negatives=MASKED_NEGATIVES,
    ),
)
