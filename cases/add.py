"""Case add: x + y, element by element.

Contract: the guide's first pipelined kernel, https://docs.jax.dev/en/latest/pallas/pipelining.html
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import Arithmetic, Case, Negative, Param, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.numerics import dtype_of, equal, is_float
from conformance.strategies import (
    LANES,
    SUBLANES,
    blocks,
    cdiv,
    check_tiles,
    elements,
    halves,
    names,
    sizes,
    value_error,
)

DTYPES = (
    "float32",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int32",
    "int16",
    "int8",
    "uint32",
    "uint16",
    "uint8",
)
MOST_STEPS = 16


def check(params: Params) -> None:
    """Blocks are whole or multiples of the (8, 128) tile."""
    check_tiles(params, m=SUBLANES, n=LANES)


@st.composite
def points(draw: st.DrawFn) -> dict[str, Any]:
    m = draw(sizes(64, 1, 8, 20, 100, 256, 264))
    n = draw(sizes(256, 1, 100, 128, 384, 500))
    bm, bn = draw(blocks(m, SUBLANES)), draw(blocks(n, LANES))
    return {"m": m, "n": n, "bm": bm, "bn": bn, "dtype": draw(names(*DTYPES))}


def domain() -> st.SearchStrategy[dict[str, Any]]:
    return points().filter(lambda p: cdiv(p["m"], p["bm"]) * cdiv(p["n"], p["bn"]) <= MOST_STEPS)


def inputs(params: Params) -> tuple[str, ...]:
    if not is_float(dtype_of(params["dtype"])):
        return ("exact", "position")
    return ("exact", "position", "normal", "wide", "special")


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x, y (m, n). "position" adds a counter to noise, so that either operand's place shows."""
    shape = (params["m"], params["n"])
    other = "exact" if kind == "position" else kind
    x = elements(kind, shape, params["dtype"], rng)
    return x, elements(other, shape, params["dtype"], rng)


def exact_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y, rounded once or wrapped. Two numbers of up to 24 bits and 40 binades add exactly in
    float64; a float32 sum of narrower floats rounds innocuously to their type."""
    if not is_float(x.dtype):
        with np.errstate(over="ignore"):
            return x + y
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64) + y.astype(np.float64)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    return (equal(exact_sum(*arrays), dtype_of(params["dtype"])),)


def baseline(params: Params, x: Any, y: Any) -> Any:
    return x + y


def split(params: Params) -> tuple[Axes, Axes] | None:
    """By rows."""
    return ((0, 0), (0,)) if halves(params, "m", SUBLANES) else None


def work(params: Params) -> Work:
    size = params["m"] * params["n"]
    return Work(flops=size, bytes=3 * size * dtype_of(params["dtype"]).itemsize)


POINT = {"m": 64, "n": 256, "bm": 16, "bn": 128, "dtype": "float32"}
ONES = np.ones((64, 256), np.float32)


def refused(name: str, match: str, *arrays: np.ndarray) -> Negative:
    return value_error(name, match, POINT, *arrays)


NEGATIVES = (
    refused("rank", r"\bx\b.*rank 2.*\(64,\)", ONES[:, 0], ONES),
    refused("shapes", r"y\.shape.*\(64, 256\).*\(64, 128\)", ONES, ONES[:, :128]),
    refused("mixed-dtypes", r"y\.dtype.*int32", ONES, ONES.astype(np.int32)),
    refused("unsupported-dtype", r"x\.dtype.*float16", *[ONES.astype(np.float16)] * 2),
    Negative(
        # The guide's own example of what does not fit: three arrays of 16 MiB each. (Other chips
        # refuse it too, but need seconds to find out.)
        name="vmem",
        params={"m": 2048, "n": 2048, "bm": 2048, "bn": 2048, "dtype": "float32"},
        phase="compile",
        error="RESOURCE",
        match=r"(?i)vmem",
        chips=("v4",),
    ),
)

CASES = (
    Case(
        name="add",
        contract="x + y for two arrays (m, n) of one dtype; integers wrap",
        spec="https://docs.jax.dev/en/latest/pallas/pipelining.html",
        params={
            "m": Param(kind="size"),
            "n": Param(kind="size"),
            "bm": Param(kind="block"),
            "bn": Param(kind="block"),
            "dtype": Param(kind="dtype", choices=DTYPES),
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
