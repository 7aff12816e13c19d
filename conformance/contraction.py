"""What every matmul-like case shares: parameters, operands, references and bad input.

A case of this family multiplies a (m, k) by b (k, n), in blocks (bm, bk) and (bk, bn); what it
does to the operands before and to the product after is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.case import Arrays, Axes, Negative, Param, Params, Work
from conformance.numerics import (
    Arithmetic,
    Reference,
    dot_error,
    dtype_of,
    function_reference,
    is_float,
    largest,
)
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    check_tiles,
    halves,
    names,
    operand,
    probe_limit,
    sizes,
)

KINDS = ("exact", "position", "normal", "cancel", "wide")
NARROW_KINDS = ("exact", "position", "normal", "cancel")  # fp8 has no range for "wide"
PROBES = ("exact", "position")

# The simulator pays for every grid step, race detection more than linearly.
_MOST_STEPS = 18

BLOCK_PARAMS = {
    "m": Param(kind="size"),
    "k": Param(kind="size"),
    "n": Param(kind="size"),
    "bm": Param(kind="block"),
    "bk": Param(kind="block"),
    "bn": Param(kind="block"),
}


def dtype_param(*dtypes: str) -> dict[str, Param]:
    """The parameter that names the operands' dtype."""
    return {"dtype": Param(kind="dtype", choices=dtypes)}


def steps(params: Params) -> int:
    """Grid steps of the three-axis grid."""
    m, n, k = (cdiv(params[d], params[f"b{d}"]) for d in "mnk")
    return m * n * k


def check_blocks(params: Params, rows: int = SUBLANES) -> None:
    """DomainError unless each block is the whole dimension or a multiple of its tile."""
    check_tiles(params, m=rows, k=LANES, n=LANES)


def domain(
    *dtypes: str, rows: int = SUBLANES, whole_k: bool = False, **options: Sequence[str]
) -> st.SearchStrategy[dict[str, Any]]:
    """Shapes, blocks, a dtype and contract options, at most `_MOST_STEPS` grid steps.

    Args:
      rows: what bm must be a multiple of.
      whole_k: bk must divide k.
      options: further parameters with their choices.
    """

    @st.composite
    def points(draw: st.DrawFn) -> dict[str, Any]:
        m = draw(sizes(16, 1, 8, 40, 100, 128, 136, 256))
        k = draw(sizes(256, 1, 100, 128, 300, 512, 640))
        n = draw(sizes(128, 1, 100, 200, 256, 384))
        bk = draw(blocks(k, LANES).filter(lambda b: not whole_k or k % b == 0))
        point: dict[str, Any] = {"m": m, "k": k, "n": n}
        point |= {"bm": draw(blocks(m, rows)), "bk": bk, "bn": draw(blocks(n, LANES))}
        point["dtype"] = draw(names(*dtypes))
        return point | {name: draw(names(*choices)) for name, choices in options.items()}

    return points().filter(lambda p: steps(p) <= _MOST_STEPS)


def kinds(params: Params) -> tuple[str, ...]:
    """The distributions that the operand dtype can hold."""
    dtype = params["dtype"]
    if not is_float(dtype_of(dtype)):
        return PROBES
    return NARROW_KINDS if dtype.startswith("float8") else KINDS


def operands(
    kind: str,
    rng: np.random.Generator,
    m: int,
    k: int,
    n: int,
    dtype: str,
    out: str,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """a (m, k) and b (k, n). Real distributions keep S = |a||b| far below the output's range.

    Args:
      out: the dtype of the result, whose range probes respect.
      most: a further limit on the integers of probes.
    """
    limit = probe_limit(k, dtype, out, most=most)
    scale = min(1.0, float(np.sqrt(largest(dtype_of(out)) / (8.0 * k))))
    a = operand(kind, (m, k), dtype, rng, axis=1, limit=limit, scale=scale)
    if kind == "cancel":
        b = _cancelling(a, (k, n), dtype, rng, limit, scale)
    else:
        b = operand(kind, (k, n), dtype, rng, axis=0, limit=limit, scale=scale)
    return a, b


def _cancelling(
    a: np.ndarray,
    shape: tuple[int, int],
    dtype: str,
    rng: np.random.Generator,
    limit: int,
    scale: float,
) -> np.ndarray:
    """The second operand of "cancel": its halves differ in sign, those of `a` hardly at all."""
    return operand("cancel", shape, dtype, rng, axis=0, limit=limit, scale=scale, flip=True)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in float64; exact for probes, whose sums stay below 2^53."""
    with np.errstate(invalid="ignore", over="ignore"):
        return a.astype(np.float64) @ b.astype(np.float64)


def reference(
    kind: str,
    a: np.ndarray,
    b: np.ndarray,
    *,
    k_blocks: int,
    operand_dtype: np.dtype,
    out: np.dtype,
    arithmetic: Arithmetic,
    function: str = "identity",
    operand_rounding: float = 0.0,
) -> Reference:
    """The reference of function(a @ b), accumulated in float32.

    Probes are exact in the accumulator, whatever the order, so they have no error before the
    function; everything else gets the element-wise bound.
    """
    z = product(a, b)
    if kind in PROBES and operand_rounding == 0.0:
        return function_reference(function, z, None, out)
    error = dot_error(
        product(np.abs(a), np.abs(b)),
        terms=a.shape[1],
        blocks=k_blocks,
        operand=operand_dtype,
        out=out,
        arithmetic=arithmetic,
        operand_rounding=operand_rounding,
    )
    return function_reference(function, z, error, out)


def gradient(
    params: Params, kind: str, x: np.ndarray, y: np.ndarray, dz: np.ndarray, arithmetic: Arithmetic
) -> tuple[Reference, Reference]:
    """dx = dz @ y.T and dy = x.T @ dz, for the cotangent dz of z = x @ y.

    Each accumulated in float32 and rounded once; probes stay exact, as no cotangent of one
    exceeds 4. Sums of dx run over n and those of dy over m, in that dimension's blocks.
    """
    dtype = dtype_of(params["dtype"])

    def one(a: np.ndarray, b: np.ndarray, dim: str) -> Reference:
        return reference(
            kind,
            a,
            b,
            k_blocks=cdiv(params[dim], params[f"b{dim}"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
        )

    return one(dz, y.T, "n"), one(x.T, dz, "m")


def split_rows(params: Params) -> tuple[Axes, Axes] | None:
    """Half of x (m, k) and the whole of y give half of the rows of the product."""
    return ((0, None), (0,)) if halves(params, "m", SUBLANES) else None


def work(params: Params, out_itemsize: int | None = None) -> Work:
    """2 m k n operations; each operand read once, the result written once."""
    m, k, n = params["m"], params["k"], params["n"]
    itemsize = dtype_of(params["dtype"]).itemsize
    moved = (m * k + k * n) * itemsize + m * n * (out_itemsize or itemsize)
    return Work(flops=2 * m * k * n, bytes=moved)


def block_matmul(x: np.ndarray, y: np.ndarray, *, bm: int, bk: int, bn: int) -> np.ndarray:
    """x @ y block by block in float64, as the matmul guide's host-level listing explains it.

    The didactic oracle: the three loops are the grid of the kernels. Edges may be ragged.
    """
    (m, k), n = x.shape, y.shape[1]
    z = np.zeros((m, n))
    for i in range(0, m, bm):
        for j in range(0, n, bn):
            for step in range(0, k, bk):
                a = x[i : i + bm, step : step + bk].astype(np.float64)
                b = y[step : step + bk, j : j + bn].astype(np.float64)
                z[i : i + bm, j : j + bn] += a @ b  # (bm, bk) @ (bk, bn)
    return z


# --------------------------------------------------------------------------- bad input


def negatives(point: Params, *, transposed: bool = False) -> tuple[Negative, ...]:
    """Bad operands and blocks that any kernel of the family must name and refuse.

    Args:
      point: a legal point with m = 16, k = 256, n = 128 and whole-dimension blocks.
      transposed: the second operand is stored (n, k).
    """
    dtype = dtype_of(point["dtype"])
    other = np.dtype(np.float32) if dtype != np.dtype(np.float32) else dtype_of("bfloat16")
    m, k, n = point["m"], point["k"], point["n"]

    def pair(x: tuple[int, ...], y: tuple[int, ...], y_dtype: np.dtype = dtype) -> Arrays:
        b = np.ones(y, y_dtype)
        return np.ones(x, dtype), (np.swapaxes(b, 0, 1).copy() if transposed else b)

    def arrays(name: str, make: Any, match: str) -> Negative:
        return Negative(
            name=name, params=point, phase="trace", error="ValueError", match=match, arrays=make
        )

    def block(name: str, key: str, value: int, match: str) -> Negative:
        return Negative(
            name=name, params={**point, key: value}, phase="trace", error="ValueError", match=match
        )

    return (
        arrays("rank", lambda p: pair((2, m, k), (k, n)), r"\bx\b.*rank 2.*\(2, "),
        arrays("inner-dimension", lambda p: pair((m, k), (k // 2, n)), rf"y\.shape.*{k}.*{k // 2}"),
        arrays("mixed-dtypes", lambda p: pair((m, k), (k, n), other), rf"dtype.*{other.name}"),
        block("block-zero", "bm", 0, r"\bbm\b.*\b0\b"),
        block("block-negative", "bn", -128, r"\bbn\b.*-128"),
        block("block-misaligned", "bk", 100, r"\bbk\b.*100"),
        block("block-too-large", "bk", k + 128, rf"\bbk\b.*{k + 128}"),
    )


def unsupported_type(point: Params, *chips: str) -> Negative:
    """A legal point whose operand type the matrix unit of some chips does not take."""
    return Negative(
        name=f"no-{point['dtype']}-unit",
        params=point,
        phase="compile",
        error="E2001",
        match="Unsupported matmul",
        chips=chips,
    )
