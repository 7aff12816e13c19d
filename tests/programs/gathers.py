"""Picking elements by index: within a vector register, or by a one-hot matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._build import by, folder, integers, movable, on_values, small
from ._record import Program

_program = folder(__name__)


def _along(axis: int) -> Any:
    return on_values(lambda x, i: jnp.take_along_axis(x, i, axis=axis, mode="promise_in_bounds"))


def _one_hot(x: Any, i: Any) -> Any:
    """Row k of the result is row i[k, 0] of x."""
    column = lax.broadcasted_iota(jnp.int32, (i.shape[0], x.shape[0]), 1)
    return jnp.dot((column == i[:, :1]).astype(x.dtype), x, preferred_element_type=jnp.float32)


def _programs() -> Iterator[Program]:
    # Within one register: 8 rows of 128, so axis 0 has 8 positions and axis 1 has 128.
    for dtype in ("f32", "i32", "u32"):
        for shape, axis in (
            ((8, 128), 0),
            ((8, 256), 0),
            ((8, 384), 0),
            ((8, 128), 1),
            ((16, 128), 1),
            ((32, 128), 1),
            ((64, 128), 1),
        ):
            yield _program(
                f"along_axis{axis}_{dtype}_{by(shape)}",
                _along(axis),
                movable(dtype, *shape),
                integers("i32", *shape, low=0, high=shape[axis] - 1),
            )
    for rows in (8, 64, 200):
        yield _program(
            f"one_hot_{rows}_f32",
            on_values(_one_hot),
            small("f32", rows, 128),
            integers("i32", 16, 128, low=0, high=rows - 1),
        )
    yield _program(
        "lookup_in_a_row_f32",
        on_values(
            lambda x, i: jnp.take_along_axis(
                jnp.broadcast_to(x, i.shape), i, axis=1, mode="promise_in_bounds"
            )
        ),
        movable("f32", 1, 128),
        integers("i32", 8, 128, low=0, high=127),
    )


PROGRAMS: tuple[Program, ...] = tuple(_programs())
