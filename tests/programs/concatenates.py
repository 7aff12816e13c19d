"""Joining, stacking, padding and splitting values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._build import Shape, by, folder, movable, on_values
from ._record import Program

_program = folder(__name__)

# axis, shapes of the operands
JOINS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (0, ((8, 128), (8, 128))),
    (0, ((16, 256), (32, 256), (16, 256))),
    (0, ((3, 128), (5, 128))),
    (0, ((1, 128),) * 8),
    (0, ((5, 130), (6, 130))),
    (1, ((8, 128), (8, 256))),
    (1, ((16, 64), (16, 64))),
    (1, ((8, 100), (8, 30))),
    (1, ((5, 130), (5, 7))),
    (1, ((8, 1), (8, 127))),
    (0, ((2, 8, 128), (3, 8, 128))),
    (1, ((2, 8, 128), (2, 16, 128))),
    (2, ((2, 8, 128), (2, 8, 128))),
    (1, ((2, 3, 128), (2, 4, 128))),
    (0, ((128,), (128,))),
)

Function = Callable[..., Any]
ONE: dict[str, tuple[Function, Shape]] = {
    "pad_rows": (lambda x: jnp.pad(x, ((0, 8), (0, 0))), (8, 128)),
    "pad_both": (lambda x: jnp.pad(x, ((2, 1), (3, 5))), (5, 120)),
    "pad_columns_with_seven": (
        lambda x: jnp.pad(x, ((0, 0), (0, 128)), constant_values=7),
        (8, 128),
    ),
    "reversed_halves": (lambda x: jnp.concatenate([x[:, 128:], x[:, :128]], 1), (16, 256)),
    "rotated_rows": (lambda x: jnp.concatenate([x[5:], x[:5]], 0), (16, 128)),
    "rotated_columns": (lambda x: jnp.concatenate([x[:, 5:], x[:, :5]], 1), (16, 128)),
    "stack_first": (lambda x: jnp.stack([x[:8], x[8:]]), (16, 128)),
    "stack_second": (lambda x: jnp.stack([x[:8], x[8:]], axis=1), (16, 128)),
    "stack_last": (lambda x: jnp.stack([x[:8], x[8:]], axis=2), (16, 128)),
    "split_rows": (lambda x: tuple(jnp.split(x, 2, axis=0)), (16, 128)),
    "split_columns": (lambda x: tuple(jnp.split(x, (128, 200), axis=1)), (16, 256)),
    "slice_in_dim": (lambda x: lax.slice_in_dim(x, 3, 7, axis=0), (16, 128)),
    "tile_rows": (lambda x: jnp.tile(x, (3, 1)), (8, 128)),
    "tile_columns": (lambda x: jnp.tile(x, (1, 3)), (8, 128)),
    "upper_triangle": (jnp.triu, (16, 128)),
    "lower_triangle": (lambda x: jnp.tril(x, -3), (16, 128)),
    "outer": (lambda x: x[:, :1] * x[:1, :], (8, 128)),
    "even_and_odd_rows": (lambda x: x.reshape(8, 2, 128)[:, 1], (16, 128)),
    "interleave_rows": (
        lambda x: jnp.concatenate([x[i // 2 + 4 * (i % 2)][None] for i in range(8)], 0),
        (8, 128),
    ),
}


def _programs() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i8", "i32"):
        for axis, shapes in JOINS:
            yield _program(
                f"axis{axis}_{'_'.join(map(by, shapes[:3]))}_of_{len(shapes)}_{dtype}",
                on_values(lambda *values, a=axis: jnp.concatenate(values, axis=a)),
                *(movable(dtype, *shape) for shape in shapes),
            )
        for name, (f, shape) in ONE.items():
            yield _program(f"{name}_{dtype}", on_values(f), movable(dtype, *shape))


PROGRAMS: tuple[Program, ...] = tuple(_programs())
