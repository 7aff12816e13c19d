"""Case linear_softmax_cross_entropy: the loss of a linear layer's logits, which are never stored.

Contract: `linear_softmax_cross_entropy_loss` of Tokamax, with its names of sizes: b rows, h
features, v logits. Its reduction "none" is not part of the domain.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, Negative, Param, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import bounded, dtype_of
from conformance.rows import total_loss
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    check_tiles,
    names,
    sizes,
    value_error,
)

SPEC = (
    "https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/"
    "linear_softmax_cross_entropy_loss/api.py"
)
DTYPES = ("float32", "bfloat16")
REDUCTIONS = ("sum", "mean")
KINDS = ("exact", "position", "normal")
MOST_STEPS = 12
POINT = {"b": 16, "h": 256, "v": 256, "bb": 16, "bh": 256, "bv": 256}
POINT |= {"dtype": "float32", "reduction": "sum"}


def check(params: Params) -> None:
    """Blocks are whole or multiples of the tile of the array that they cut."""
    check_tiles(params, b=SUBLANES, h=LANES, v=LANES)


@st.composite
def points(draw: st.DrawFn) -> dict[str, Any]:
    b = draw(sizes(16, 1, 8, 20, 40))
    h = draw(sizes(128, 1, 100, 256, 300))
    v = draw(sizes(256, 1, 100, 128, 300, 512))
    point: dict[str, Any] = {"b": b, "h": h, "v": v, "bb": draw(blocks(b, SUBLANES))}
    point |= {"bh": draw(blocks(h, LANES)), "bv": draw(blocks(v, LANES))}
    return point | {"dtype": draw(names(*DTYPES)), "reduction": draw(names(*REDUCTIONS))}


def steps(params: Params) -> int:
    b, h, v = (cdiv(params[d], params[f"b{d}"]) for d in "bhv")
    return b * h * v


def domain() -> st.SearchStrategy[dict[str, Any]]:
    return points().filter(lambda p: steps(p) <= MOST_STEPS)


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (b, h), labels (b,) int32, weights (h, v).

    Logits of probes have a standard deviation of about 800: their exponentials overflow, they
    pass what bf16 can hold, and yet a loss is so small that float32 shows a factor of two in the
    sum. Those of "normal" have 4. The first and the last column are among the labels.
    """
    b, h, v, dtype = params["b"], params["h"], params["v"], params["dtype"]
    most = int(np.sqrt(2400 / np.sqrt(h)))  # uniform up to L: L^2 sqrt(h) / 3
    x, weights = dot.operands(kind, rng, b, h, v, dtype, dtype, most=most)
    if kind == "normal":
        x = (x.astype(np.float32) * np.float32(4 / np.sqrt(h))).astype(x.dtype)
    labels = (np.arange(b) * 7919) % v if kind == "position" else rng.integers(v, size=b)
    labels[0], labels[-1] = 0, v - 1
    return x, labels.astype(np.int32), weights


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """Logits as in any matmul (exact for probes), then the loss of each row, then their sum."""
    x, labels, weights = arrays
    z = dot.product(x, weights)
    error = dot.sum_error(
        kind, x, weights, k_blocks=cdiv(params["h"], params["bh"]), arithmetic=arithmetic
    )
    value, bound = total_loss(z, error, labels, exact=kind in dot.PROBES)
    count = params["b"] if params["reduction"] == "mean" else 1
    total, error = np.asarray(value / count), np.asarray(bound / count)
    return (bounded(total, np.dtype(np.float32), error),)


def baseline(params: Params, x: Any, labels: Any, weights: Any) -> Any:
    z = jnp.dot(x, weights, precision="highest", preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    loss = jax.nn.logsumexp(z, axis=1) - picked
    return jnp.mean(loss) if params["reduction"] == "mean" else jnp.sum(loss)


def work(params: Params) -> Work:
    """One product; x, weights and labels read once, one number written."""
    b, h, v = params["b"], params["h"], params["v"]
    operands = (b * h + h * v) * dtype_of(params["dtype"]).itemsize
    return Work(flops=2 * b * h * v, bytes=operands + 4 * b + 4)


# --------------------------------------------------------------------------- bad input

X = np.ones((16, 256), np.float32)
LABELS = np.zeros(16, np.int32)
WEIGHTS = np.ones((256, 256), np.float32)


def refused(
    name: str,
    match: str,
    x: np.ndarray = X,
    labels: np.ndarray = LABELS,
    weights: np.ndarray = WEIGHTS,
    **changed: Any,
) -> Negative:
    return value_error(name, match, {**POINT, **changed}, x, labels, weights)


NEGATIVES = (
    refused("rank", r"\bx\b.*rank 2.*\(2, 16, 256\)", x=np.stack([X, X])),
    refused("inner-dimension", r"weights\.shape.*256.*128", weights=WEIGHTS[:128]),
    refused("mixed-dtypes", r"dtype.*bfloat16", weights=WEIGHTS.astype(dtype_of("bfloat16"))),
    refused("labels-length", r"labels\.shape.*\(16,\).*\(15,\)", labels=LABELS[1:]),
    refused("float-labels", r"labels\.dtype.*float32", labels=LABELS.astype(np.float32)),
    refused("unknown-reduction", r"\breduction\b.*median", reduction="median"),
    refused("block-zero", r"\bbb\b.*\b0\b", bb=0),
    refused("block-misaligned", r"\bbv\b.*100", bv=100),
    refused("block-too-large", r"\bbh\b.*384", bh=384),
)

CASES = (
    Case(
        name="linear_softmax_cross_entropy",
        contract="sum or mean over rows of log(sum(exp(z))) - z[label], z = x @ weights in "
        "float32, the loss in float32",
        spec=SPEC,
        params={
            "b": Param(kind="size"),
            "h": Param(kind="size"),
            "v": Param(kind="size"),
            "bb": Param(kind="block"),
            "bh": Param(kind="block"),
            "bv": Param(kind="block"),
            "dtype": Param(kind="dtype", choices=DTYPES),
            "reduction": Param(kind="choice", choices=REDUCTIONS, passed=True),
        },
        domain=domain,
        check=check,
        inputs=lambda params: KINDS,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        negatives=NEGATIVES,
    ),
)
