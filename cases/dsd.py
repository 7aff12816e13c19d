"""Case dsd: dense = sparse @ dense, the left operand stored as blocks and their indices.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html. Where no block is stored the
product is 0, whatever the dense operand holds: NaN and infinity there do not arise.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, DomainError, Negative, Param, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.numerics import bounded, dot_error, dtype_of, equal
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    elements,
    halves,
    integers,
    legal_block,
    names,
    probe_limit,
    sizes,
)

DTYPES = ("float32", "bfloat16")
# Which blocks are stored. "gaps" leaves block rows empty, the first and the last among them.
PATTERNS = ("random", "gaps", "diagonal", "full", "last", "none")
MOST_STEPS = 24


def check(params: Params) -> None:
    """bm divides m and bk divides k; blocks are whole or multiples of their tile."""
    for dim in "mk":
        size, block = params[dim], params[f"b{dim}"]
        if size % block or not legal_block(block, size, SUBLANES):
            raise DomainError(
                f"b{dim} must divide {dim} = {size} and be a multiple of {SUBLANES} or {size}, "
                f"got {block}"
            )
    if params["pattern"] != "none" and not stored(params).any():
        raise DomainError(f"pattern {params['pattern']} stores nothing in so few blocks")
    if not legal_block(params["bn"], params["n"], LANES):
        n = params["n"]
        raise DomainError(f"bn must be {n} or a multiple of {LANES}, got {params['bn']}")


def stored(params: Params) -> np.ndarray:
    """Which blocks are stored, bool (m / bm, k / bk); a function of the parameters alone."""
    rows, columns = params["m"] // params["bm"], params["k"] // params["bk"]
    i, k = np.indices((rows, columns))
    pattern = params["pattern"]
    if pattern == "random":
        return ((i * 5 + k * 3 + i * k) % 7) < 3
    if pattern == "gaps":
        return (i % 2 == 1) & ((i + k) % 2 == 0) & (i < rows - 1)
    if pattern == "diagonal":
        return i == k
    if pattern == "last":
        return (i == rows - 1) & (k == columns - 1)
    return np.full((rows, columns), pattern == "full")


@st.composite
def points(draw: st.DrawFn) -> dict[str, Any]:
    bm, bk = draw(sizes(16, 8, 32, 128)), draw(sizes(128, 8, 64, 256))
    m, k = bm * draw(sizes(4, 1, 3, 5)), bk * draw(sizes(3, 1, 2, 4))
    n = draw(sizes(256, 1, 100, 128, 300))
    point = {"m": m, "k": k, "n": n, "bm": bm, "bk": bk, "bn": draw(blocks(n, LANES))}
    return point | {"dtype": draw(names(*DTYPES)), "pattern": draw(names(*PATTERNS))}


def domain() -> st.SearchStrategy[dict[str, Any]]:
    def affordable(p: Params) -> bool:
        blocks_stored = stored(p).sum()
        enough = blocks_stored > 0 or p["pattern"] == "none"
        steps = blocks_stored * cdiv(p["n"], p["bn"])
        return bool(enough and steps <= MOST_STEPS and p["m"] * p["k"] < 2**18)

    return points().filter(affordable)


def inputs(params: Params) -> tuple[str, ...]:
    return ("exact", "position", "normal", "special")


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """indices_i, indices_k int32[nnz], blocks (nnz, bm, bk), y (k, n)."""
    dtype = params["dtype"]
    i, k = np.nonzero(stored(params))
    k = k[np.lexsort((rng.permutation(len(k)), i))]  # in a row, blocks come in any order
    shape = (len(i), params["bm"], params["bk"])
    limit = probe_limit(params["k"], dtype, dtype)
    dense = (params["k"], params["n"])
    if kind in ("exact", "position"):
        x = integers(rng, shape, limit).astype(dtype_of(dtype))
        y = integers(rng, dense, limit)
        if kind == "position":
            y = (np.arange(y.size).reshape(dense) * 7919) % (2 * limit + 1) - limit
        y = y.astype(dtype_of(dtype))
    else:
        x = elements("normal", shape, dtype, rng)
        y = elements(kind, dense, dtype, rng)
    return i.astype(np.int32), k.astype(np.int32), x, y


def accumulated(arrays: Arrays, m: int, absolute: bool) -> np.ndarray:
    """The product, or the product of magnitudes, in float64, from stored blocks alone."""
    indices_i, indices_k, x, y = arrays
    _, bm, bk = x.shape
    out = np.zeros((m, y.shape[1]))
    for i, k, block in zip(indices_i, indices_k, x.astype(np.float64), strict=True):
        other = y[k * bk : (k + 1) * bk].astype(np.float64)
        if absolute:
            block, other = np.abs(block), np.abs(other)
        with np.errstate(invalid="ignore"):
            out[i * bm : (i + 1) * bm] += block @ other
    return out


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    dtype = dtype_of(params["dtype"])
    product = accumulated(arrays, params["m"], absolute=False)
    if kind in ("exact", "position"):
        return (equal(product, dtype),)
    error = dot_error(
        accumulated(arrays, params["m"], absolute=True),
        terms=params["k"],
        blocks=params["k"] // params["bk"],
        operand=dtype,
        out=dtype,
        arithmetic=arithmetic,
    )
    return (bounded(product, dtype, error),)


def baseline(params: Params, indices_i: Any, indices_k: Any, blocks: Any, y: Any) -> Any:
    """Gathers, multiplies and adds up by block row; a dense matrix of zeros would turn
    infinities of y into NaN."""
    bk, n = params["bk"], y.shape[1]
    rows = params["m"] // params["bm"]
    gathered = y.reshape(-1, bk, n)[indices_k]
    products = jnp.einsum(
        "bij,bjn->bin", blocks, gathered, precision="highest", preferred_element_type=jnp.float32
    )
    total = jnp.zeros((rows, params["bm"], n), jnp.float32).at[indices_i].add(products)
    return total.reshape(params["m"], n).astype(y.dtype)


def split(params: Params) -> tuple[Axes, Axes] | None:
    """By columns of y; the stored blocks are on both devices."""
    return ((None, None, None, 1), (1,)) if halves(params, "n", LANES) else None


def work(params: Params) -> Work:
    """Stored blocks and the rows of y that they meet are read once, the result written once."""
    mask = stored(params)
    nnz, itemsize = int(mask.sum()), dtype_of(params["dtype"]).itemsize
    block, n = params["bm"] * params["bk"], params["n"]
    dense = int(mask.any(axis=0).sum()) * params["bk"] * n
    moved = nnz * block + dense + params["m"] * n
    return Work(flops=2 * nnz * block * n, bytes=moved * itemsize)


# ------------------------------------------------------------------ bad input

POINT = {
    "m": 64,
    "k": 384,
    "n": 256,
    "bm": 16,
    "bk": 128,
    "bn": 128,
    "dtype": "float32",
    "pattern": "diagonal",
}


def refused(name: str, match: str, **changed: Any) -> Negative:
    def arrays(params: Params) -> Arrays:
        good = make(params, "exact", np.random.default_rng(0))
        named = dict(zip(("indices_i", "indices_k", "blocks", "y"), good, strict=True))
        return tuple((named | changed).values())

    return Negative(
        name=name, params=POINT, phase="prepare", error="ValueError", match=match, arrays=arrays
    )


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


NEGATIVES = (
    refused("unsorted", r"indices_i.*\b1\b.*\b2\b", indices_i=int32(0, 2, 1)),
    refused("row-out-of-range", r"indices_i.*\b4\b", indices_i=int32(0, 1, 4)),
    refused("column-out-of-range", r"indices_k.*\b3\b", indices_k=int32(0, 1, 3)),
    refused("negative-index", r"indices_k.*-1", indices_k=int32(-1, 1, 2)),
    refused("count-mismatch", r"indices_k.*3.*2", indices_k=int32(0, 1)),
    refused("mixed-dtypes", r"y\.dtype.*int32", y=np.ones((384, 256), np.int32)),
    refused("rank", r"\by\b.*rank 2.*\(384,\)", y=np.ones(384, np.float32)),
    refused("inner-dimension", r"128.*100|100.*128", y=np.ones((100, 256), np.float32)),
)

CASES = (
    Case(
        name="dsd",
        contract="block-COO sparse (m, k) @ dense (k, n); 0 where nothing is stored",
        spec="https://docs.jax.dev/en/latest/pallas/tpu/sparse.html",
        params={
            "m": Param(kind="size", passed=True),
            "k": Param(kind="size"),
            "n": Param(kind="size"),
            "bm": Param(kind="block"),
            "bk": Param(kind="block"),
            "bn": Param(kind="block"),
            "dtype": Param(kind="dtype", choices=DTYPES),
            "pattern": Param(kind="choice", choices=PATTERNS),
        },
        domain=domain,
        check=check,
        inputs=inputs,
        make=make,
        reference=reference,
        baseline=baseline,
        split=split,
        work=work,
        negatives=NEGATIVES,
    ),
)
