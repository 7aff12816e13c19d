"""Case grouped_matmul: rows of lhs in consecutive groups, each group times a matrix of its own.

Contract: jax.lax.ragged_dot. Its page does not say what rows behind the last group hold; its
implementation gives 0, and so does this contract: whatever else is there would be garbage.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from conformance import Arithmetic, Case, DomainError, Negative, Param, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import bounded, dot_error, dtype_of, equal, is_float
from conformance.strategies import LANES, SUBLANES, blocks, cdiv, names, operand, probe_limit, sizes

DTYPES = ("float32", "bfloat16", "int8")
# How the rows are shared out. "zeros" leaves every other group empty, the first and (of an odd
# number) the last among them; "short" leaves a third of the rows to no group, "none" all of them.
PATTERNS = ("ragged", "zeros", "short", "equal", "one", "none")
MOST_STEPS = 16


def result_dtype(params: Params) -> np.dtype:
    """int32 for int8 operands; else the operands' own."""
    dtype = dtype_of(params["dtype"])
    return dtype if is_float(dtype) else np.dtype(np.int32)


def covered(params: Params) -> int:
    """Rows that belong to a group."""
    m = params["m"]
    return int({"short": 2 * m // 3, "none": 0}.get(params["pattern"], m))


def filled(params: Params) -> int:
    """Groups that have rows."""
    groups = params["groups"]
    return int({"zeros": groups // 2, "one": 1, "none": 0}.get(params["pattern"], groups))


def check(params: Params) -> None:
    dot.check_blocks(params)
    if params["pattern"] == "zeros" and params["groups"] < 2:
        raise DomainError(f"groups must be at least 2 for zeros, got {params['groups']}")
    if covered(params) < filled(params):
        raise DomainError(
            f"groups must be at most {covered(params)}, the rows that there are for "
            f"{params['pattern']}, got {params['groups']}"
        )


def group_sizes(params: Params, rng: np.random.Generator) -> np.ndarray:
    """Rows of each group, int32 (groups,); where they begin and end comes from the seed."""
    groups, rows, count = params["groups"], covered(params), filled(params)
    out = np.zeros(groups, np.int32)
    if params["pattern"] == "zeros":
        chosen = np.arange(1, groups, 2)
    else:
        chosen = np.sort(rng.permutation(groups)[:count])
    if params["pattern"] == "equal":
        cuts = np.arange(1, count) * rows // count
    else:
        cuts = np.sort(rng.permutation(max(rows - 1, 0))[: max(count - 1, 0)] + 1)
    if count:
        out[chosen] = np.diff([0, *cuts, rows])
    return out


@st.composite
def points(draw: st.DrawFn) -> dict[str, Any]:
    m = draw(sizes(64, 8, 40, 100, 128, 200))
    k, n = draw(sizes(128, 64, 200, 256)), draw(sizes(128, 100, 256))
    point = {"groups": draw(sizes(4, 1, 3, 7)), "m": m, "k": k, "n": n}
    point |= {"bm": draw(blocks(m, SUBLANES)), "bk": draw(blocks(k, LANES))}
    point |= {"bn": draw(blocks(n, LANES)), "dtype": draw(names(*DTYPES))}
    return point | {"pattern": draw(names(*PATTERNS))}


def domain() -> st.SearchStrategy[dict[str, Any]]:
    def affordable(p: Params) -> bool:
        visits = cdiv(p["m"], p["bm"]) + p["groups"]
        steps = visits * cdiv(p["k"], p["bk"]) * cdiv(p["n"], p["bn"])
        legal = p["groups"] > 1 or p["pattern"] != "zeros"
        return bool(legal and covered(p) >= filled(p) and steps <= MOST_STEPS)

    return points().filter(affordable)


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """lhs (m, k), rhs (groups, k, n), group_sizes int32 (groups,)."""
    groups, m, k, n = (params[name] for name in ("groups", "m", "k", "n"))
    dtype = params["dtype"]
    limit = probe_limit(k, dtype, result_dtype(params).name)
    lhs = operand(kind, (m, k), dtype, rng, axis=1, limit=limit)
    if kind == "position":  # as one matrix: no group looks like another
        rhs = operand(kind, (groups * k, n), dtype, rng, axis=0, limit=limit).reshape(groups, k, n)
    else:
        each = [
            operand(kind, (k, n), dtype, rng, axis=0, limit=limit, flip=True) for _ in range(groups)
        ]
        rhs = np.stack(each)
    return lhs, rhs, group_sizes(params, rng)


def grouped(sizes: np.ndarray) -> Iterator[tuple[int, slice]]:
    """(group, its rows) of each group that has any."""
    ends = np.cumsum(sizes)
    for group, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        if size:
            yield group, slice(int(end - size), int(end))


def product(lhs: np.ndarray, rhs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The grouped product in float64; 0 in rows without a group."""
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for group, rows in grouped(sizes):
        out[rows] = dot.product(lhs[rows], rhs[group])
    return out


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    lhs, rhs, sizes = arrays
    value, out = product(lhs, rhs, sizes), result_dtype(params)
    if not is_float(out):
        return (equal(value.astype(np.int64), out),)
    if kind in dot.PROBES:
        return (equal(value, out),)
    error = dot_error(
        product(np.abs(lhs), np.abs(rhs), sizes),
        terms=params["k"],
        blocks=cdiv(params["k"], params["bk"]),
        operand=lhs.dtype,
        out=out,
        arithmetic=arithmetic,
    )
    error[sizes.sum() :] = 0.0
    return (bounded(value, out, error),)


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference | None, ...]:
    """d lhs = dz @ rhs[g].T in the rows of group g, d rhs[g] = lhs.T @ dz over those rows.

    0 in rows without a group and for groups without a row. Integers have no derivative.
    """
    lhs, rhs, sizes = arrays
    (dz,) = cotangents
    if not is_float(lhs.dtype):
        return None, None, None
    d_rhs = [np.zeros(rhs.shape), np.zeros(rhs.shape)]
    for group, rows in grouped(sizes):
        d_rhs[0][group] = dot.product(lhs[rows].T, dz[rows])
        d_rhs[1][group] = dot.product(np.abs(lhs[rows]).T, np.abs(dz[rows]))
    transposed = np.swapaxes(rhs, 1, 2)
    d_lhs = product(dz, transposed, sizes), product(np.abs(dz), np.abs(transposed), sizes)

    def one(value: np.ndarray, magnitude: np.ndarray, dim: str, has_sum: np.ndarray) -> Reference:
        error = dot_error(
            magnitude,
            terms=params[dim],
            blocks=cdiv(params[dim], params[f"b{dim}"]),
            operand=lhs.dtype,
            out=lhs.dtype,
            arithmetic=arithmetic,
        )
        return bounded(value, lhs.dtype, np.where(has_sum, error, 0.0))

    in_group = np.arange(lhs.shape[0])[:, None] < sizes.sum()
    has_rows = sizes[:, None, None] > 0
    return one(*d_lhs, "n", in_group), one(*d_rhs, "m", has_rows), None


def baseline(params: Params, lhs: Any, rhs: Any, sizes: Any) -> Any:
    accumulator = jnp.float32 if jnp.issubdtype(lhs.dtype, jnp.floating) else jnp.int32
    product = lax.ragged_dot(
        lhs, rhs, sizes, precision="highest", preferred_element_type=accumulator
    )
    return product.astype(result_dtype(params))


def work(params: Params) -> Work:
    """Rows of a group and the matrices of groups with rows are read once, the result is written."""
    m, k, n = params["m"], params["k"], params["n"]
    rows, itemsize = covered(params), dtype_of(params["dtype"]).itemsize
    read = (rows * k + filled(params) * k * n) * itemsize + 4 * params["groups"]
    return Work(flops=2 * rows * k * n, bytes=read + m * n * result_dtype(params).itemsize)


# ------------------------------------------------------------------ bad input

POINT = {
    "groups": 3,
    "m": 16,
    "k": 256,
    "n": 128,
    "bm": 16,
    "bk": 256,
    "bn": 128,
    "dtype": "float32",
    "pattern": "equal",
}


def refused(name: str, match: str, **changed: Any) -> Negative:
    """An array of the legal point is replaced, or a parameter."""

    def arrays(params: Params) -> Arrays:
        good = make(POINT, "exact", np.random.default_rng(0))
        named = dict(zip(("lhs", "rhs", "group_sizes"), good, strict=True))
        return tuple((named | {k: v for k, v in changed.items() if k in named}).values())

    return Negative(
        name=name,
        params=POINT | {k: v for k, v in changed.items() if k in POINT},
        phase="prepare",
        error="ValueError",
        match=match,
        arrays=arrays,
    )


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


NEGATIVES = (
    refused("lhs-rank", r"\blhs\b.*rank 2.*\(1, 16, 256\)", lhs=np.ones((1, 16, 256), np.float32)),
    refused("rhs-rank", r"\brhs\b.*rank 3.*\(256, 128\)", rhs=np.ones((256, 128), np.float32)),
    refused(
        "inner-dimension", r"rhs\.shape\[1\].*256.*128", rhs=np.ones((3, 128, 128), np.float32)
    ),
    refused("mixed-dtypes", r"rhs\.dtype.*int32", rhs=np.ones((3, 256, 128), np.int32)),
    refused("sizes-rank", r"group_sizes.*rank 1.*\(1, 3\)", group_sizes=int32(1, 2, 3)[None]),
    refused("sizes-dtype", r"group_sizes\.dtype.*float32", group_sizes=np.ones(3, np.float32)),
    refused("sizes-length", r"group_sizes\.shape.*\(3,\).*\(2,\)", group_sizes=int32(8, 8)),
    refused("size-negative", r"group_sizes\[1\].*-1", group_sizes=int32(8, -1, 8)),
    refused("too-many-rows", r"group_sizes.*16.*17", group_sizes=int32(8, 8, 1)),
    refused("block-zero", r"\bbm\b.*\b0\b", bm=0),
    refused("block-misaligned", r"\bbk\b.*100", bk=100),
    refused("block-too-large", r"\bbn\b.*256", bn=256),
)

CASES = (
    Case(
        name="grouped_matmul",
        contract="rows of group g @ rhs[g], accumulated in float32 (int8: int32); 0 behind the "
        "last group",
        spec="https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot.html",
        params={
            "groups": Param(kind="size"),
            **dot.BLOCK_PARAMS,
            **dot.dtype_param(*DTYPES),
            "pattern": Param(kind="choice", choices=PATTERNS),
        },
        domain=domain,
        check=check,
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        gradient=gradient,
        negatives=(
            *NEGATIVES,
            dot.unsupported_type(POINT | {"dtype": "bfloat16"}, "v2", "v3"),
            dot.unsupported_type(POINT | {"dtype": "int8"}, "v2", "v3", "v4"),
        ),
    ),
)
