"""What every matmul-like case shares: parameters, operands, references and bad input.

A case of this family multiplies a (m, k) by b (k, n), in blocks (bm, bk) and (bk, bn); what it
does to the operands before and to the product after is its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.case import Arrays, Negative, Param, Params, Work
from conformance.numerics import (
    FUNCTIONS,
    Arithmetic,
    Function,
    Reference,
    bounded,
    dot_error,
    dtype_of,
    equal,
    function_reference,
    is_float,
    largest,
    smallest_normal,
    unit_roundoff,
)
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    check_tiles,
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


# --------------------------------------------------------------------------- gated products

_FLOAT32 = np.dtype(np.float32)
_U = unit_roundoff(_FLOAT32)
# float32 evaluation of a derivative, relative to max(1, |x|): a handful of roundings and the
# 8 ulp of a tanh or a logistic function, multiplied by at most x and a polynomial of x that
# counts only where tanh is not yet 1 (|x| < 6 for GELU).
_SLOPE_ROUNDINGS = 32


def gated_reference(
    kind: str,
    x: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    *,
    k_blocks: int,
    function: str,
    arithmetic: Arithmetic,
) -> Reference:
    """The reference of function(x @ gate) * (x @ up), both sums in float32.

    Probes have exact sums; where the function is exact too, only the product is rounded, to
    float32 and then to x's dtype. Else, for f = function(g) within E_f and u within E_u,
    |f u| errs by |f| E_u + |u| E_f + E_f E_u and its own rounding.
    """
    f, g, u = FUNCTIONS[function], product(x, gate), product(x, up)
    if kind in PROBES and f.integral:
        rounded = f.exact(g).astype(np.float32) * u.astype(np.float32)
        return equal(rounded.astype(np.float64), x.dtype)
    g_error, u_error = (
        sum_error(kind, x, w, k_blocks=k_blocks, arithmetic=arithmetic) for w in (gate, up)
    )
    value, f_error = f.exact(g), _function_error(f, g, g_error)
    error = np.abs(value) * u_error + np.abs(u) * f_error + f_error * u_error
    error += _U * (np.abs(value) + f_error) * (np.abs(u) + u_error) + smallest_normal(x.dtype)
    return bounded(value * u, x.dtype, error)


def gated_gradient(
    x: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    dz: np.ndarray,
    *,
    blocks: Mapping[str, int],
    function: str,
    arithmetic: Arithmetic,
) -> tuple[Reference, Reference, Reference]:
    """References of the gradients of x, gate and up for the cotangent `dz` (m, n).

      a = dz u f'(g), b = dz f(g);  dx = a @ gate.T + b @ up.T, dgate = x.T @ a, dup = x.T @ b

    Both sums may be kept in x's dtype between the passes, and a and b may be rounded to it before
    they are multiplied. f' moves by the curvature times g's error; beside a kink it may be either
    side's.
    """
    f, g, u, dz = FUNCTIONS[function], product(x, gate), product(x, up), dz.astype(np.float64)
    assert f.derivative is not None
    kept = unit_roundoff(x.dtype)
    g_error, u_error = (
        sum_error("normal", x, w, k_blocks=blocks["k"], arithmetic=arithmetic) + kept * np.abs(z)
        for w, z in ((gate, g), (up, u))
    )
    value, slope = f.exact(g), f.derivative(g)
    f_error, slope_error = _function_error(f, g, g_error), _slope_error(f, g, g_error)
    a, b = dz * u * slope, dz * value
    a_error = np.abs(u) * slope_error + np.abs(slope) * u_error + slope_error * u_error
    a_error = np.abs(dz) * a_error * (1 + kept) + (kept + 3 * _U) * np.abs(a)
    b_error = np.abs(dz) * f_error * (1 + kept) + (kept + 3 * _U) * np.abs(b)

    def of(left: np.ndarray, right: np.ndarray, moved: np.ndarray, parts: int) -> Reference:
        """left @ right in `parts` blocks, where the factors' own errors move it so far."""
        rounding = dot_error(
            product(np.abs(left), np.abs(right)) + moved,
            terms=left.shape[1],
            blocks=parts,
            operand=x.dtype,
            out=x.dtype,
            arithmetic=arithmetic,
        )
        return bounded(product(left, right), x.dtype, moved + rounding)

    both, weights = np.concatenate([a, b], axis=1), np.concatenate([gate, up], axis=1).T
    both_error = np.concatenate([a_error, b_error], axis=1)
    return (
        of(both, weights, product(both_error, np.abs(weights)), 2 * blocks["n"]),
        of(x.T, a, product(np.abs(x.T), a_error), blocks["m"]),
        of(x.T, b, product(np.abs(x.T), b_error), blocks["m"]),
    )


def sum_error(
    kind: str, x: np.ndarray, w: np.ndarray, *, k_blocks: int, arithmetic: Arithmetic
) -> np.ndarray:
    """The bound of x @ w in a float32 accumulator; probes are exact there."""
    magnitude = product(np.abs(x), np.abs(w))
    if kind in PROBES:
        return np.zeros_like(magnitude)
    return dot_error(
        magnitude,
        terms=x.shape[1],
        blocks=k_blocks,
        operand=x.dtype,
        out=_FLOAT32,
        arithmetic=arithmetic,
    )


def _function_error(f: Function, x: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Of f evaluated in float32 at a point within `error` of x."""
    return f.lipschitz * error + f.evaluation_error(np.abs(x) + error)


def _slope_error(f: Function, x: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Of f' evaluated in float32 at a point within `error` of x."""
    if f.integral and f.curvature == 0.0:
        return np.zeros_like(x)
    if f.integral:
        return np.where(np.abs(x) <= error, f.lipschitz, 0.0)
    return f.curvature * error + _SLOPE_ROUNDINGS * _U * np.maximum(1.0, np.abs(x))


def stacked(first: Reference, second: Reference, axis: int) -> Reference:
    """Two bounded references of one dtype, as one whose new `axis` tells them apart."""
    assert first.error is not None and second.error is not None
    return bounded(
        np.stack([first.value, second.value], axis),
        first.dtype,
        np.stack([first.error, second.error], axis),
    )


# --------------------------------------------------------------------------- work


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
