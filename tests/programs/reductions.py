"""Sums, maxima, minima, products and their positions over every axis and pair of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._build import Shape, as_i32, booleans, by, folder, mixed, on_values, permuted, small
from ._record import Program

_program = folder(__name__)

Reduce = Callable[..., Any]
REDUCTIONS: dict[str, Reduce] = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}
SHAPES: tuple[Shape, ...] = (
    (256,),
    (16, 256),
    (5, 130),
    (1, 128),
    (8, 1),
    (3, 16, 128),
    (2, 3, 8, 128),
)
# Each true about half of the time for some hundred values between -10000 and 10000.
PREDICATES: dict[str, Reduce] = {
    "any": lambda x, **options: jnp.any(x > 9900, **options),
    "all": lambda x, **options: jnp.all(x > -9900, **options),
}
NAN, INF = float("nan"), float("inf")


def _axes(rank: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, min(rank, 3) + 1):
        yield from combinations(range(rank), count)


def _reduction(reduce: Reduce, axes: tuple[int, ...], keepdims: bool) -> Callable[..., Any]:
    """What reduces to nothing is stored as a row, for a vector store needs a vector."""

    def f(x: Any) -> Any:
        result = reduce(x, axis=axes, keepdims=keepdims)
        return jnp.full((1, 128), result, x.dtype) if result.ndim == 0 else result

    return on_values(f)


def _limit(name: str, dtype: str) -> int:
    """Sums stay exact; extrema are not the limit itself everywhere."""
    if name == "sum":
        return 1 if dtype == "bf16" else 9
    return 250 if dtype == "bf16" else 10**6


def _by_axes() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        for shape in SHAPES if dtype == "f32" else SHAPES[:-1]:
            for axes in _axes(len(shape)):
                for name, reduce in REDUCTIONS.items():
                    if name == "min" and (dtype != "f32" or len(shape) > 2):
                        continue  # as the maximum
                    # Each form about half of the time.
                    keepdims = (len(axes) + len(shape) + len(name) + axes[0]) % 2 == 0
                    what = f"{name}_axis{''.join(map(str, axes))}_{dtype}_{by(shape)}"
                    yield _program(
                        what + "_keepdims" * keepdims,
                        _reduction(reduce, axes, keepdims),
                        small(dtype, *shape, limit=_limit(name, dtype)),
                    )


def _last_axis() -> Iterator[Program]:
    """Both forms of the one reduction that changes where lanes live."""
    for name, reduce in REDUCTIONS.items():
        for shape in ((16, 256), (24, 384), (3, 16, 128)):
            for keepdims in (False, True):
                yield _program(
                    f"{name}_last_f32_{by(shape)}" + "_keepdims" * keepdims,
                    _reduction(reduce, (len(shape) - 1,), keepdims),
                    small("f32", *shape, limit=_limit(name, "f32")),
                )


def _others() -> Iterator[Program]:
    for shape in ((16, 256), (5, 130)):
        for axis in (0, 1):
            # The number of elements is a power of two or not: division rounds once either way.
            yield _program(
                f"mean_axis{axis}_f32_{by(shape)}",
                _reduction(jnp.mean, (axis,), True),
                small("f32", *shape),
                tolerance=2.0**-22,
            )
            for name, predicate in PREDICATES.items():
                yield _program(
                    f"{name}_axis{axis}_bool_{by(shape)}",
                    on_values(as_i32(partial(predicate, axis=axis, keepdims=True))),
                    small("f32", *shape, limit=10000),
                )
            yield _program(
                f"count_axis{axis}_bool_{by(shape)}",
                on_values(lambda x, a=axis: jnp.sum(x.astype(jnp.int32), axis=a, keepdims=True)),
                booleans(*shape),
            )
    for name, predicate in PREDICATES.items():
        yield _program(
            f"{name}_of_everything",
            on_values(lambda x, p=predicate: jnp.full((8, 128), p(x), bool).astype(jnp.int32)),
            small("f32", 8, 128, limit=10000),
        )


COMPOSED: dict[str, Reduce] = {
    "ptp": lambda x, axis: jnp.max(x, axis, keepdims=True) - jnp.min(x, axis, keepdims=True),
    "count_nonzero": lambda x, axis: jnp.count_nonzero(x, axis=axis, keepdims=True),
    "diff": lambda x, axis: jnp.diff(x, axis=axis),
    "sum_of_products": lambda x, axis: jnp.sum(x * (x + 1), axis=axis, keepdims=True),
    "sum_of_squares_as_i32": lambda x, axis: jnp.sum((x * x).astype(jnp.int32), axis=axis),
}


def _composed() -> Iterator[Program]:
    for name, f in COMPOSED.items():
        for axis in (0, 1):
            yield _program(
                f"{name}_axis{axis}_f32",
                on_values(lambda x, f=f, a=axis: f(x, axis=a)),
                small("f32", 16, 128),
            )


def _special() -> Iterator[Program]:
    """NaN spreads; an infinity is the greatest number there is."""
    for name, reduce, oracle in (("max", jnp.max, np.max), ("min", jnp.min, np.min)):
        for axis in (0, 1):
            for dtype in ("f32", "bf16"):
                yield _program(
                    f"{name}_axis{axis}_infinite_{dtype}",
                    _reduction(reduce, (axis,), True),
                    mixed(dtype, 16, 128, values=(INF, -INF, 0.5), share=0.02),
                )
            yield _program(
                f"{name}_axis{axis}_nan_f32",
                _reduction(reduce, (axis,), True),
                mixed("f32", 16, 128, values=(NAN, INF), share=0.005),
                # XLA on CPU may drop a NaN in a maximum.
                expected=lambda x, o=oracle, a=axis: o(x, axis=a, keepdims=True),
            )
    for axis in (0, 1):
        yield _program(
            f"sum_axis{axis}_infinite_f32",
            _reduction(jnp.sum, (axis,), True),
            permuted("f32", 16, 128, values=(*range(-1000, 1030), *(INF, -INF, NAN) * 6)),
        )
        yield _program(
            f"sum_axis{axis}_wraps_i32",
            _reduction(jnp.sum, (axis,), True),
            permuted("i32", 16, 128, values=(2**31 - 1, 2**30, -5, 7)),
        )


def _positions() -> Iterator[Program]:
    """The first of equals wins."""
    for shape in ((8, 128), (16, 256), (5, 130)):
        for axis in (0, 1):
            for name, find in (("argmax", jnp.argmax), ("argmin", jnp.argmin)):
                for kind, limit in (("ties", 2), ("few_ties", 1000)):
                    yield _program(
                        f"{name}_axis{axis}_{kind}_f32_{by(shape)}",
                        on_values(lambda x, f=find, a=axis: f(x, axis=a, keepdims=True)),
                        small("f32", *shape, limit=limit),
                    )
    for axis in (0, 1):
        for name, find in (("argmax", jnp.argmax), ("argmin", jnp.argmin)):
            yield _program(
                f"{name}_axis{axis}_infinite_f32",
                on_values(lambda x, f=find, a=axis: f(x, axis=a, keepdims=True)),
                mixed("f32", 16, 128, values=(INF, -INF, 0.0), share=0.1),
            )
            yield _program(
                f"{name}_axis{axis}_without_keepdims_f32",
                on_values(lambda x, f=find, a=axis: f(x, axis=a)),
                small("f32", 16, 128, limit=100),
            )


PROGRAMS: tuple[Program, ...] = (
    *_by_axes(),
    *_last_axis(),
    *_others(),
    *_composed(),
    *_special(),
    *_positions(),
)
