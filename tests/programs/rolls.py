"""Rotations: by a constant, by a scalar, by more in every row; and what JAX makes of `jnp.roll`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from ._build import Shape, by, folder, integers, movable, on_refs, on_values, smem, struct, vmem
from ._record import Program

_program = folder(__name__)

SHAPES: tuple[Shape, ...] = ((8, 128), (16, 256), (24, 384), (2, 8, 128))


def _static() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        for shape in SHAPES if dtype == "f32" else SHAPES[:2]:
            for axis in range(len(shape)):
                for shift in sorted({1, shape[axis] - 1, shape[axis] // 2, 3 % shape[axis]}):
                    yield _program(
                        f"axis{axis}_by_{shift}_{dtype}_{by(shape)}",
                        on_values(lambda x, s=shift, a=axis: pltpu.roll(x, s, a)),
                        movable(dtype, *shape),
                    )
    for shape in ((5, 130), (12, 128), (8, 200)):
        for axis in (0, 1):
            yield _program(
                f"ragged_axis{axis}_{by(shape)}",
                on_values(lambda x, a=axis: pltpu.roll(x, 3, a)),
                movable("f32", *shape),
            )


def _jnp() -> Iterator[Program]:
    for shape in ((8, 128), (16, 256), (5, 130)):
        for axis in (0, 1):
            for shift in (1, -1, 7):
                yield _program(
                    f"jnp_roll_axis{axis}_by_{shift}_{by(shape)}",
                    on_values(lambda x, s=shift, a=axis: jnp.roll(x, s, a)),
                    movable("f32", *shape),
                )


def _dynamic_kernel(axis: int) -> Callable[..., None]:
    def kernel(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.roll(x_ref[...], s_ref[0], axis)

    return kernel


def _dynamic() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        for shape in ((8, 128), (16, 256), (24, 384)):
            for axis in (0, 1):
                yield _program(
                    f"dynamic_axis{axis}_{dtype}_{by(shape)}",
                    on_refs(
                        _dynamic_kernel(axis), struct(dtype, *shape), in_specs=[smem(), vmem()]
                    ),
                    integers("i32", 2, low=0, high=shape[axis] - 1),
                    movable(dtype, *shape),
                )


def _strided_oracle(shift: int, stride: int) -> Callable[..., np.ndarray]:
    """Row k is rotated by shift + k * stride."""
    return lambda x: np.stack([np.roll(row, shift + k * stride) for k, row in enumerate(x)])


def _strided() -> Iterator[Program]:
    """Along the lanes: the compiler knows no other."""
    for shape in ((8, 128), (16, 256), (24, 384)):
        for shift, stride in ((0, 1), (3, 1), (5, 2), (1, 7)):
            yield _program(
                f"strided_by_{shift}_and_{stride}_{by(shape)}",
                on_values(
                    lambda x, s=shift, t=stride: pltpu.roll(x, s, 1, stride=t, stride_axis=0)
                ),
                movable("f32", *shape),
                expected=_strided_oracle(shift, stride),
            )


PROGRAMS: tuple[Program, ...] = (*_static(), *_jnp(), *_dynamic(), *_strided())
