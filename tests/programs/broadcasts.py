"""Broadcasts along every set of dimensions, of scalars, by repetition and by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from ._build import DTYPES, Shape, by, folder, movable, on_refs, on_values, small, smem, struct
from ._record import Program

_program = folder(__name__)

BROADCASTS: tuple[tuple[Shape, Shape], ...] = (
    ((1, 128), (8, 128)),
    ((1, 256), (16, 256)),
    ((8, 1), (8, 128)),
    ((16, 1), (16, 256)),
    ((1, 1), (8, 128)),
    ((1, 130), (5, 130)),
    ((5, 1), (5, 130)),
    ((1, 8, 128), (3, 8, 128)),
    ((3, 1, 128), (3, 8, 128)),
    ((3, 8, 1), (3, 8, 128)),
    ((1, 1, 128), (3, 8, 128)),
    ((1, 8, 1), (3, 8, 128)),
    ((3, 1, 1), (3, 8, 128)),
    ((2, 1, 8, 1), (2, 3, 8, 128)),
    ((1, 3, 1, 128), (2, 3, 8, 128)),
    ((8, 128), (3, 8, 128)),
    ((128,), (8, 128)),
    ((1, 16), (8, 16)),
)


def _shapes() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32", "i8"):
        for shape, to in BROADCASTS:
            yield _program(
                f"{by(shape)}_to_{by(to)}_{dtype}",
                on_values(lambda x, to=to: jnp.broadcast_to(x, to)),
                movable(dtype, *shape),
            )
    for dtype in ("i16", "u8", "e4m3fn", "e5m2", "i4", "bool"):
        for shape, to in (((1, 128), (64, 128)), ((64, 1), (64, 128))):
            yield _program(
                f"{by(shape)}_to_{by(to)}_{dtype}",
                on_values(lambda x, to=to: jnp.broadcast_to(x, to)),
                movable(dtype, *shape),
            )


ARITHMETIC: tuple[tuple[Shape, Shape], ...] = (
    ((8, 1), (1, 128)),
    ((16, 256), (1, 256)),
    ((16, 256), (16, 1)),
    ((16, 256), (1, 1)),
    ((3, 8, 128), (8, 128)),
    ((3, 8, 128), (3, 1, 128)),
    ((3, 8, 128), (3, 8, 1)),
    ((3, 1, 128), (1, 8, 1)),
    ((5, 130), (130,)),
    ((5, 130), (5, 1)),
)


def _arithmetic() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32"):
        for left, right in ARITHMETIC:
            yield _program(
                f"add_{by(left)}_and_{by(right)}_{dtype}",
                on_values(lambda x, y: x + y),
                small(dtype, *left, limit=100),
                small(dtype, *right, limit=100),
            )


def _in_dim(shape: Shape, dimensions: tuple[int, ...]) -> Any:
    return on_values(lambda x: lax.broadcast_in_dim(x, shape, dimensions))


def _full_of_scalar(s_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.full(o_ref.shape, s_ref[1], o_ref.dtype)


def _row_of_ref(x_ref: Any, o_ref: Any) -> None:
    """The load itself may broadcast."""
    o_ref[...] = jnp.broadcast_to(x_ref[pl.ds(3, 1), :], o_ref.shape)


def _column_of_ref(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.broadcast_to(x_ref[:, 5:6], o_ref.shape)


def _others() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        yield _program(
            f"scalar_{dtype}",
            on_refs(_full_of_scalar, struct(dtype, 16, 128), in_specs=[smem()]),
            movable(dtype, 2),
        )
    for dtype in ("f32", "bf16", "i8"):
        yield _program(
            f"row_of_ref_{dtype}",
            on_refs(_row_of_ref, struct(dtype, 16, 256)),
            movable(dtype, 16, 256),
        )
        yield _program(
            f"column_of_ref_{dtype}",
            on_refs(_column_of_ref, struct(dtype, 16, 256)),
            movable(dtype, 16, 256),
        )
        yield _program(
            f"constant_{dtype}",
            on_values(lambda x: x + jnp.full(x.shape, 3, x.dtype))
            if dtype != "i8"
            else _plus_three(),
            small(dtype, 16, 128),
        )
    yield _program("in_dim_rows_f32", _in_dim((8, 128), (1,)), movable("f32", 128))
    yield _program("in_dim_columns_f32", _in_dim((128, 128), (0,)), movable("f32", 128))
    yield _program("in_dim_middle_f32", _in_dim((8, 4, 128), (0, 2)), movable("f32", 8, 128))
    yield _program("in_dim_last_f32", _in_dim((8, 16, 128), (0, 1)), movable("f32", 8, 16))
    for axis, repeats in ((0, 2), (0, 3), (1, 2), (1, 3)):
        yield _program(
            f"repeat_axis{axis}_{repeats}_f32",
            on_values(lambda x, a=axis, r=repeats: jnp.repeat(x, r, axis=a)),
            movable("f32", 8, 128),
        )
        yield _program(
            f"tile_axis{axis}_{repeats}_bf16",
            on_values(lambda x, a=axis, r=repeats: jnp.tile(x, (r, 1) if a == 0 else (1, r))),
            movable("bf16", 16, 128),
        )
    yield _program(
        "outer_product_f32",
        on_values(lambda x, y: x * y),
        small("f32", 16, 1),
        small("f32", 1, 256),
    )
    yield _program(
        "row_minus_its_mean_f32",
        on_values(lambda x: x * 128 - jnp.sum(x, axis=1, keepdims=True)),
        small("f32", 16, 128),
    )


def _plus_three() -> Any:
    return on_values(lambda x: (x.astype(jnp.int32) + 3).astype(DTYPES["i8"]))


PROGRAMS: tuple[Program, ...] = (*_shapes(), *_arithmetic(), *_others())
