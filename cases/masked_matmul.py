"""Case masked_matmul: where(mask, x @ y, 0), with nothing fetched for blocks that are all false.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html. It is a select, not a product
with the mask: 0 * inf does not arise.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, Negative, Param, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import bounded, dtype_of, equal
from conformance.strategies import cdiv, elements

DTYPES = ("float32", "bfloat16")
MASK_DTYPES = ("int32", "bool", "float32")
MASKS = ("causal", "local", "blocks", "hole", "trailing", "none", "all")


def mask_of(params: Params) -> np.ndarray:
    """The mask, bool (m, n); a function of the parameters alone.

    "hole" differs from block to block in the interior only, where a printed array shows dots;
    "trailing" has its true blocks first, so that skipping goes on to the end of the grid.
    """
    m, n = params["m"], params["n"]
    bm, bn = params["bm"], params["bn"]
    i, j = np.ogrid[:m, :n]
    block_i, block_j = i // bm, j // bn
    kind = params["mask"]
    if kind == "causal":
        return j * m <= i * n
    if kind == "local":
        return np.abs(i * n - j * m) <= m * n // 4
    if kind == "blocks":
        return (block_i + block_j) % 2 == 1
    if kind == "hole":
        number = block_i * cdiv(n, bn) + block_j
        row, column = bm // 2 + number % 2, (bn // 2 + 3 * number) % bn
        return ~((i % bm == row % bm) & (j % bn == column))
    if kind == "trailing":
        return (block_i == 0) & (block_j == 0)
    return np.full((m, n), kind == "all")


def domain() -> st.SearchStrategy[dict[str, Any]]:
    return dot.domain(*DTYPES, mask=MASKS, mask_dtype=MASK_DTYPES)


def inputs(params: Params) -> tuple[str, ...]:
    return ("exact", "position", "normal", "special")


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n), mask (m, n). "special" puts NaN and infinities into x."""
    dtype = params["dtype"]
    m, k, n = params["m"], params["k"], params["n"]
    x, y = dot.operands("normal" if kind == "special" else kind, rng, m, k, n, dtype, dtype)
    if kind == "special":
        x = specials(x, rng)
    return x, y, stored_mask(params)


def stored_mask(params: Params) -> np.ndarray:
    """The mask in its dtype. True is whatever is not 0: other numbers than 1 stand for it too."""
    mask = mask_of(params)
    if params["mask_dtype"] == "bool":
        return mask
    i, j = np.ogrid[: mask.shape[0], : mask.shape[1]]
    values = np.array([1, 2, -1, 1, 0.5 if params["mask_dtype"] == "float32" else 256])
    return np.where(mask, values[(i + j) % len(values)], 0).astype(params["mask_dtype"])


def specials(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """x with a NaN or an infinity in a quarter of its rows, so that clean rows stay clean."""
    x = x.copy()
    rows = rng.permutation(x.shape[0])[: max(1, x.shape[0] // 4)]
    x[rows] = elements("special", x[rows].shape, "float32", rng).astype(x.dtype)
    return x


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, y, mask = arrays
    dtype = dtype_of(params["dtype"])
    dense = dot.reference(
        kind,
        x,
        y,
        k_blocks=cdiv(params["k"], params["bk"]),
        operand_dtype=dtype,
        out=dtype,
        arithmetic=arithmetic,
    )
    return (masked(dense, mask != 0),)


def masked(dense: Reference, kept: np.ndarray) -> Reference:
    """The reference of the product, 0 without any error where the mask is false."""
    value = np.where(kept, dense.value, 0.0)
    if dense.error is None:
        return equal(value, dense.dtype)
    return bounded(value, dense.dtype, np.where(kept, dense.error, 0.0))


def baseline(params: Params, x: Any, y: Any, mask: Any) -> Any:
    product = jnp.dot(x, y, precision="highest", preferred_element_type=jnp.float32)
    return jnp.where(mask != 0, product, 0.0).astype(x.dtype)


def computed(mask: np.ndarray, bm: int, bn: int) -> list[tuple[int, int]]:
    """Output blocks with a true element, in row-major order."""
    rows, columns = cdiv(mask.shape[0], bm), cdiv(mask.shape[1], bn)
    return [
        (i, j)
        for i in range(rows)
        for j in range(columns)
        if mask[i * bm : (i + 1) * bm, j * bn : (j + 1) * bn].any()
    ]


def fetches(params: Params, arrays: Arrays) -> Mapping[str, int]:
    """Block fetches that the mask makes necessary for a grid (m, n, k) on one core.

    An operand's block is fetched when it differs from the one before; skipped blocks must cost
    nothing. At least one fetch each: the pipeline starts with one.
    """
    bm, bk, bn = params["bm"], params["bk"], params["bn"]
    mask = arrays[2] != 0
    blocks = computed(mask, bm, bn)
    steps = [(i, j, k) for i, j in blocks for k in range(cdiv(params["k"], bk))]
    contents = [mask[i * bm : (i + 1) * bm, j * bn : (j + 1) * bn] for i, j in blocks]
    padded = [np.pad(c, ((0, bm - c.shape[0]), (0, bn - c.shape[1]))).tobytes() for c in contents]
    return {
        "x": runs((i, k) for i, _, k in steps),
        "y": runs((k, j) for _, j, k in steps),
        "mask": runs(padded),
    }


def runs(indices: Any) -> int:
    """Maximal runs of equal consecutive items, at least 1."""
    return max(1, sum(1 for _ in groupby(indices)))


def work(params: Params) -> Work:
    """True elements cost 2 k operations; rows and columns with any are read once."""
    mask, k, n = mask_of(params), params["k"], params["n"]
    read = (int(mask.any(axis=1).sum()) + int(mask.any(axis=0).sum())) * k
    moved = (read + params["m"] * n) * dtype_of(params["dtype"]).itemsize
    moved += mask.size * dtype_of(params["mask_dtype"]).itemsize
    return Work(flops=2 * k * int(mask.sum()), bytes=moved)


# ------------------------------------------------------------------ bad input

POINT = {
    "m": 16,
    "k": 256,
    "n": 128,
    "bm": 16,
    "bk": 256,
    "bn": 128,
    "dtype": "float32",
    "mask": "all",
    "mask_dtype": "int32",
}


def refused(name: str, match: str, position: int, array: np.ndarray) -> Negative:
    def arrays(params: Params) -> Arrays:
        good = list(make(params, "exact", np.random.default_rng(0)))
        good[position] = array
        return tuple(good)

    return Negative(
        name=name, params=POINT, phase="prepare", error="ValueError", match=match, arrays=arrays
    )


NEGATIVES = (
    refused("mask-shape", r"mask\.shape.*\(16, 128\).*\(16, 64\)", 2, np.ones((16, 64), np.int32)),
    refused("mask-rank", r"mask.*rank 2.*\(16,\)", 2, np.ones(16, np.int32)),
    refused("mask-dtype", r"mask\.dtype.*int8", 2, np.ones((16, 128), np.int8)),
    refused("mixed-dtypes", r"y\.dtype.*int32", 1, np.ones((256, 128), np.int32)),
    refused("inner-dimension", r"y\.shape\[0\].*256.*128", 1, np.ones((128, 128), np.float32)),
)

CASES = (
    Case(
        name="masked_matmul",
        contract="where(mask, x @ y, 0); blocks without a true element cost no fetch",
        spec="https://docs.jax.dev/en/latest/pallas/tpu/sparse.html",
        params=dot.BLOCK_PARAMS
        | dot.dtype_param(*DTYPES)
        | {
            "mask": Param(kind="choice", choices=MASKS),
            "mask_dtype": Param(kind="dtype", choices=MASK_DTYPES),
        },
        domain=domain,
        check=dot.check_blocks,
        inputs=inputs,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        fetches=fetches,
        negatives=NEGATIVES,
    ),
)
