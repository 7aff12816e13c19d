"""Counting along a dimension, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._build import DTYPES, Shape, by, folder, on_values, small
from ._record import Program

_program = folder(__name__)

SHAPES: tuple[Shape, ...] = ((8, 128), (16, 256), (5, 130), (1, 128), (2, 8, 128), (2, 3, 8, 128))


def _count(x: Any, axis: int, dtype: str = "i32") -> Any:
    return lax.broadcasted_iota(DTYPES[dtype], x.shape, axis)


USES: dict[str, Callable[[Any], Any]] = {
    "upper_triangle": lambda x: jnp.where(_count(x, 0) <= _count(x, 1), x, 0),
    "diagonal": lambda x: jnp.where(_count(x, 0) == _count(x, 1), x, -1),
    "checkerboard": lambda x: jnp.where((_count(x, 0) + _count(x, 1)) % 2 == 0, x, -x),
    "position": lambda x: _count(x, 0) * x.shape[1] + _count(x, 1) + x.astype(jnp.int32),
    "lane_mask": lambda x: jnp.where(_count(x, 1) < 77, x, 0),
    "row_mask": lambda x: jnp.where(_count(x, 0) >= 3, x, 0),
    "eye": lambda x: jnp.eye(8, 128, dtype=x.dtype) + x[:8, :128],
    "arange_row": lambda x: jnp.arange(x.shape[1], dtype=jnp.int32)[None] + x.astype(jnp.int32),
    "squared": lambda x: _count(x, 1) * _count(x, 1) + _count(x, 0),
    "shifted_power": lambda x: jnp.int32(1) << (_count(x, 1) & 31),
}


def _programs() -> Iterator[Program]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            # An operand makes the seed matter, and nothing a constant.
            yield _program(
                f"axis{axis}_i32_{by(shape)}",
                on_values(lambda x, a=axis: _count(x, a) + x),
                small("i32", *shape),
            )
    # Not of i16: along axis 0 it aborts the compiler. Not of floats: there is no such operation.
    for dtype in ("i8", "u32", "u8"):
        for axis in (0, 1):
            yield _program(
                f"axis{axis}_{dtype}",
                on_values(lambda x, a=axis, d=dtype: (_count(x, a, d), x)),
                small("f32", 32, 128),
            )
    for dtype in ("f32", "bf16", "i16", "i8"):
        for axis in (0, 1):
            yield _program(
                f"axis{axis}_i32_as_{dtype}",
                on_values(lambda x, a=axis, d=dtype: (_count(x, a).astype(DTYPES[d]), x)),
                small("f32", 32, 128),
            )
    for shape in ((8, 128), (16, 256)):
        for name, f in USES.items():
            yield _program(f"{name}_{by(shape)}", on_values(f), small("f32", *shape))


PROGRAMS: tuple[Program, ...] = tuple(_programs())
