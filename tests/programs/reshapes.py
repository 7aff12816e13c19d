"""Reshapes: dimensions collapsed, split, added and dropped; lanes kept or not."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from ._build import Shape, by, folder, movable, on_values
from ._record import Program

_program = folder(__name__)

RESHAPES: tuple[tuple[Shape, Shape], ...] = (
    # rows alone
    ((16, 128), (2, 8, 128)),
    ((2, 8, 128), (16, 128)),
    ((2, 16, 256), (32, 256)),
    ((32, 256), (2, 16, 256)),
    ((2, 3, 8, 128), (48, 128)),
    ((2, 3, 8, 128), (2, 24, 128)),
    ((2, 3, 8, 128), (6, 8, 128)),
    ((48, 128), (2, 3, 8, 128)),
    ((15, 128), (3, 5, 128)),
    ((3, 5, 128), (15, 128)),
    ((3, 5, 130), (15, 130)),
    ((12, 130), (3, 4, 130)),
    # unit dimensions
    ((8, 128), (1, 8, 128)),
    ((8, 128), (8, 1, 128)),
    ((8, 128), (8, 128, 1)),
    ((1, 8, 128), (8, 128)),
    ((8, 1, 128), (8, 128)),
    ((8, 128, 1), (8, 128)),
    ((1, 1, 128), (1, 128)),
    ((16, 1), (1, 16)),
    ((1, 128), (128, 1)),
    ((128, 1), (1, 128)),
    ((5, 130), (5, 1, 130)),
    # lanes
    ((8, 256), (8, 2, 128)),
    ((8, 2, 128), (8, 256)),
    ((16, 256), (32, 128)),
    ((32, 128), (16, 256)),
    ((8, 128), (1, 1024)),
    ((1, 1024), (8, 128)),
    ((8, 128), (16, 64)),
    ((16, 64), (8, 128)),
    ((4, 512), (16, 128)),
    ((8, 4, 32), (8, 128)),
    ((8, 128), (8, 4, 32)),
    ((6, 100), (60, 10)),
    # rank one
    ((1024,), (8, 128)),
    ((8, 128), (1024,)),
    ((128,), (1, 128)),
    ((1, 128), (128,)),
    ((128,), (128, 1)),
    ((256,), (2, 128)),
)


def _programs() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i8", "i32"):
        for shape, to in RESHAPES:
            yield _program(
                f"{by(shape)}_to_{by(to)}_{dtype}",
                on_values(lambda x, to=to: x.reshape(to)),
                movable(dtype, *shape),
            )
    for axis in (0, 1, 2):
        yield _program(
            f"expand_axis{axis}_f32",
            on_values(lambda x, a=axis: jnp.expand_dims(x, a) + 1),
            movable("f32", 8, 128),
        )
    for axis, shape in ((0, (1, 8, 128)), (1, (8, 1, 128)), (2, (8, 16, 1))):
        yield _program(
            f"squeeze_axis{axis}_f32",
            on_values(lambda x, a=axis: jnp.squeeze(x, a) + 1),
            movable("f32", *shape),
        )
    yield _program("ravel_f32", on_values(jnp.ravel), movable("f32", 16, 128))
    yield _program(
        "row_to_column_f32",
        on_values(lambda x: x.reshape(128, 1) + jnp.zeros((128, 128))),
        movable("f32", 1, 128),
    )


PROGRAMS: tuple[Program, ...] = tuple(_programs())
