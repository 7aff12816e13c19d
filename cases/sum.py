"""Cases sum and sum_narrow: a (b, m, n) array summed over its first axis.

Contract: https://docs.jax.dev/en/latest/pallas/pipelining.html, "Handling reductions"
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, Negative, Param, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.numerics import INTERPRETED, bounded, dot_error, dtype_of, equal, is_float
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    check_tiles,
    elements,
    halves,
    integers,
    names,
    probe_limit,
    sizes,
    value_error,
)

SPEC = "https://docs.jax.dev/en/latest/pallas/pipelining.html"
WIDE = ("float32", "int32", "uint32")
NARROW = ("bfloat16", "int8", "int16")
MOST_STEPS = 24


def check(params: Params) -> None:
    """Blocks are whole or multiples of the (8, 128) tile."""
    check_tiles(params, m=SUBLANES, n=LANES)


def domain(*dtypes: str) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def points(draw: st.DrawFn) -> dict[str, Any]:
        b = draw(sizes(4, 1, 2, 3, 7, 9))
        m = draw(sizes(32, 1, 8, 20, 100, 136))
        n = draw(sizes(256, 1, 100, 128, 384))
        bm, bn = draw(blocks(m, SUBLANES)), draw(blocks(n, LANES))
        dtype = draw(names(*dtypes))
        return {"b": b, "m": m, "n": n, "bm": bm, "bn": bn, "dtype": dtype}

    return points().filter(
        lambda p: p["b"] * cdiv(p["m"], p["bm"]) * cdiv(p["n"], p["bn"]) <= MOST_STEPS
    )


def inputs(params: Params) -> tuple[str, ...]:
    if not is_float(dtype_of(params["dtype"])):
        return ("exact", "position")
    return ("exact", "position", "normal", "cancel", "wide", "special")


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (b, m, n). Probes keep every partial sum exact in float32; integers may wrap."""
    shape = (params["b"], params["m"], params["n"])
    dtype = params["dtype"]
    if not is_float(dtype_of(dtype)):
        return (elements(kind, shape, dtype, rng),)
    limit = probe_limit(params["b"], dtype, dtype)
    if kind == "exact":
        return (integers(rng, shape, limit).astype(dtype_of(dtype)),)
    if kind == "position":
        counter = np.arange(np.prod(shape)).reshape(shape) * 7919
        return ((counter % (2 * limit + 1) - limit).astype(dtype_of(dtype)),)
    x = elements("normal" if kind == "cancel" else kind, shape, dtype, rng)
    if kind == "cancel" and params["b"] > 1:
        x[-1] = -x[0]
    return (x,)


def out_dtype(dtype: str) -> np.dtype:
    """Narrow integers are summed into int32, as `jnp.sum` does; floats keep their dtype."""
    return dtype_of("int32" if dtype in ("int8", "int16") else dtype)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    (x,) = arrays
    out = out_dtype(params["dtype"])
    if not is_float(x.dtype):
        return (equal(x.sum(axis=0, dtype=out), out),)
    with np.errstate(invalid="ignore"):
        total = x.astype(np.float64).sum(axis=0)
        magnitude = np.abs(x.astype(np.float64)).sum(axis=0)
    if kind in ("exact", "position"):
        return (equal(total, out),)
    # A sum never meets the matrix unit, so no mode rounds its operands.
    error = dot_error(
        magnitude,
        terms=params["b"],
        blocks=1,
        operand=x.dtype,
        out=out,
        arithmetic=INTERPRETED,
    )
    return (bounded(total, out, error),)


def baseline(params: Params, x: Any) -> Any:
    out = out_dtype(params["dtype"])
    if is_float(out):
        return jnp.sum(x.astype(jnp.float32), axis=0).astype(out)
    return jnp.sum(x, axis=0, dtype=out)


def split(params: Params) -> tuple[Axes, Axes] | None:
    """By m, the first axis of the result."""
    return ((1,), (0,)) if halves(params, "m", SUBLANES) else None


def work(params: Params) -> Work:
    tile = params["m"] * params["n"]
    read = params["b"] * tile * dtype_of(params["dtype"]).itemsize
    return Work(flops=params["b"] * tile, bytes=read + tile * out_dtype(params["dtype"]).itemsize)


def negatives(dtype: str, unsupported: str) -> tuple[Negative, ...]:
    point = {"b": 4, "m": 32, "n": 256, "bm": 8, "bn": 128, "dtype": dtype}

    def refused(name: str, match: str, x: np.ndarray) -> Negative:
        return value_error(name, match, point, x)

    ones = np.ones((4, 32, 256), dtype_of(dtype))
    return (
        refused("rank", r"\bx\b.*rank 3.*\(32, 256\)", ones[0]),
        refused("unsupported-dtype", rf"x\.dtype.*{unsupported}", ones.astype(unsupported)),
    )


def case(name: str, contract: str, dtypes: tuple[str, ...], unsupported: str) -> Case:
    return Case(
        name=name,
        contract=contract,
        spec=SPEC,
        params={
            "b": Param(kind="size"),
            "m": Param(kind="size"),
            "n": Param(kind="size"),
            "bm": Param(kind="block"),
            "bn": Param(kind="block"),
            "dtype": Param(kind="dtype", choices=dtypes),
        },
        domain=lambda: domain(*dtypes),
        check=check,
        inputs=inputs,
        make=make,
        reference=reference,
        baseline=baseline,
        split=split,
        work=work,
        negatives=negatives(dtypes[0], unsupported),
    )


CASES = (
    case("sum", "x (b, m, n) summed over b in its own 32-bit type", WIDE, "int16"),
    case(
        "sum_narrow",
        "x (b, m, n) summed over b in 32 bits: bfloat16 rounded once, int8 and int16 to int32",
        NARROW,
        "float32",
    ),
)
