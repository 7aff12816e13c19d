"""Cases dynamic_slice, dynamic_slice_blocked and dynamic_slice_unaligned: a run-time start.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html, "Block dynamic slice". Unlike
`lax.dynamic_slice`, which moves a start into range, these raise.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from jax import lax

from conformance import Arithmetic, Case, DomainError, Negative, Param, Reference, Work
from conformance.case import Arrays, Params
from conformance.numerics import bits, dtype_of, is_float
from conformance.strategies import LANES, SUBLANES, elements, names, sizes

SPEC = "https://docs.jax.dev/en/latest/pallas/tpu/sparse.html"
DTYPES = ("float32", "bfloat16", "int32")
DIMS = (("m", SUBLANES), ("n", LANES))


def check(params: Params, aligned_to: str) -> None:
    """Sizes are whole or multiples of the tile, in range; starts multiples of `aligned_to`."""
    for dim, unit in DIMS:
        size, start, whole = params[f"size_{dim}"], params[f"start_{dim}"], params[dim]
        if size > whole or (size != whole and size % unit):
            raise DomainError(
                f"size_{dim} must be {whole} (the whole dimension) or a smaller multiple of "
                f"{unit}, got {size}"
            )
        if start + size > whole:
            raise DomainError(
                f"start_{dim} + size_{dim} must be at most {dim} = {whole}, got {start + size}"
            )
        block = params.get(f"b{dim}", size)
        if size % block or (block != whole and block % unit):
            raise DomainError(
                f"b{dim} must be a multiple of {unit} that divides {size}, got {block}"
            )
        step = {"size": size, "block": block, "nothing": 1}[aligned_to]
        if start % step:
            raise DomainError(f"start_{dim} must be a multiple of {step}, got {start}")


def axis(draw: st.DrawFn, dim: str, unit: int, wholes: tuple[int, ...], aligned_to: str) -> dict:
    """Length, slice, block and start along one axis."""
    whole = draw(sizes(*wholes))
    tiled = [s for s in range(unit, min(whole, 4 * unit) + 1, unit) if s <= whole]
    size = draw(st.sampled_from([*tiled, whole] if whole <= 2 * unit or not tiled else tiled))
    divisors = [b for b in range(unit, size + 1, unit) if size % b == 0] or [size]
    block = draw(st.sampled_from(divisors)) if aligned_to != "size" else size
    if size == whole and size % unit:
        block = size
    step = {"size": size, "block": block, "nothing": 1}[aligned_to]
    start = step * draw(st.integers(0, (whole - size) // step))
    return {dim: whole, f"size_{dim}": size, f"start_{dim}": start, f"b{dim}": block}


def domain(aligned_to: str) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def points(draw: st.DrawFn) -> dict[str, Any]:
        point = axis(draw, "m", SUBLANES, (64, 8, 30, 100, 256), aligned_to)
        point |= axis(draw, "n", LANES, (512, 128, 100, 384, 500), aligned_to)
        point["dtype"] = draw(names(*DTYPES))
        return point if aligned_to != "size" else without_blocks(point)

    return points()


def without_blocks(point: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name not in ("bm", "bn")}


def inputs(params: Params) -> tuple[str, ...]:
    floats = ("normal", "special") if is_float(dtype_of(params["dtype"])) else ("exact",)
    return ("position", *floats)


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, n), starts int32[2]."""
    starts = np.array([params["start_m"], params["start_n"]], np.int32)
    return elements(kind, (params["m"], params["n"]), params["dtype"], rng), starts


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, (i, j) = arrays
    return (bits(x[i : i + params["size_m"], j : j + params["size_n"]]),)


def baseline(params: Params, x: Any, starts: Any) -> Any:
    sizes = (params["size_m"], params["size_n"])
    return lax.dynamic_slice(x, (starts[0], starts[1]), sizes)


def work(params: Params) -> Work:
    moved = params["size_m"] * params["size_n"] * dtype_of(params["dtype"]).itemsize
    return Work(flops=0, bytes=2 * moved)


# ------------------------------------------------------------------ bad input


def negatives(point: dict[str, Any], step_name: str | None) -> tuple[Negative, ...]:
    def x_of(params: Params) -> np.ndarray:
        return make(params, "position", np.random.default_rng(0))[0]

    def starting(name: str, starts: tuple[int, int], match: str) -> Negative:
        return Negative(
            name=name,
            params=point,
            phase="finish",
            error="JaxRuntimeError",
            match=match,
            arrays=lambda p: (x_of(p), np.array(starts, np.int32)),
        )

    m, size, n, width = point["m"], point["size_m"], point["n"], point["size_n"]
    found = [
        starting("start-negative", (-size, 0), rf"starts\[0\].*-{size}"),
        starting("start-past-the-end", (m, 0), rf"starts\[0\] \+ size_m.*{m}.*{m + size}"),
        starting("column-negative", (0, -width), rf"starts\[1\].*-{width}"),
        starting("column-past-the-end", (0, n), rf"starts\[1\] \+ size_n.*{n}.*{n + width}"),
        Negative(
            name="size-misaligned",
            params={**point, "size_m": 12},
            phase="trace",
            error="ValueError",
            match=r"size_m.*12",
        ),
    ]
    if step_name is not None:
        match = rf"starts\[0\].*multiple of {step_name}.*4"
        found.append(starting("start-misaligned", (4, 0), match))
    return tuple(found)


def case(name: str, contract: str, aligned_to: str, step_name: str | None) -> Case:
    params = {
        "m": Param(kind="size"),
        "n": Param(kind="size"),
        "size_m": Param(kind="size", passed=True),
        "size_n": Param(kind="size", passed=True),
        "start_m": Param(kind="count"),
        "start_n": Param(kind="count"),
        "bm": Param(kind="block"),
        "bn": Param(kind="block"),
        "dtype": Param(kind="dtype", choices=DTYPES),
    }
    point = {"m": 64, "n": 512, "size_m": 16, "size_n": 256, "start_m": 0, "start_n": 0}
    blocks = {} if aligned_to == "size" else {"bm": 16, "bn": 128}
    if aligned_to == "size":
        params = without_blocks(params)
    return Case(
        name=name,
        contract=contract,
        spec=SPEC,
        params=params,
        domain=lambda: domain(aligned_to),
        check=lambda p: check(p, aligned_to),
        inputs=inputs,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        negatives=negatives({**point, **blocks, "dtype": "float32"}, step_name),
    )


CASES = (
    case(
        "dynamic_slice",
        "the block (size_m, size_n) of x at starts, which are multiples of the sizes",
        "size",
        "size_m",
    ),
    case(
        "dynamic_slice_blocked",
        "a slice of x at starts, which are multiples of a block smaller than the slice",
        "block",
        "bm",
    ),
    case("dynamic_slice_unaligned", "a slice of x at any starts in range", "nothing", None),
)
