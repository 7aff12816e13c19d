"""Transposes and permutations of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from ._build import DTYPES, by, folder, movable, on_values
from ._record import Program

_program = folder(__name__)

SHAPES_2D = (
    (8, 128),
    (128, 8),
    (128, 128),
    (16, 256),
    (5, 130),
    (32, 64),
    (1, 128),
    (128, 1),
    (3, 5),
)
SHAPES_3D = ((2, 8, 128), (8, 16, 128), (3, 5, 130), (4, 32, 32))


def _two_dimensions() -> Iterator[Program]:
    for dtype in DTYPES:
        every = dtype in ("f32", "bf16", "i8", "i32")
        shapes = SHAPES_2D if every else ((128, 128), (64, 256), (5, 130))
        for shape in shapes:
            yield _program(f"{dtype}_{by(shape)}", on_values(lambda x: x.T), movable(dtype, *shape))


def _three_dimensions() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32", "i8"):
        for shape in SHAPES_3D if dtype == "f32" else SHAPES_3D[1:3]:
            for order in permutations(range(3)):
                if order != (0, 1, 2):
                    yield _program(
                        f"{dtype}_{by(shape)}_to_{''.join(map(str, order))}",
                        on_values(lambda x, o=order: jnp.transpose(x, o)),
                        movable(dtype, *shape),
                    )


def _four_dimensions() -> Iterator[Program]:
    for order in (
        (0, 1, 3, 2),
        (1, 0, 2, 3),
        (0, 2, 1, 3),
        (2, 0, 1, 3),
        (3, 2, 1, 0),
        (2, 3, 0, 1),
    ):
        yield _program(
            f"f32_2x3x8x128_to_{''.join(map(str, order))}",
            on_values(lambda x, o=order: jnp.transpose(x, o)),
            movable("f32", 2, 3, 8, 128),
        )


def _others() -> Iterator[Program]:
    yield _program("twice_f32", on_values(lambda x: (x.T + 1).T), movable("f32", 16, 128))
    yield _program(
        "swapaxes_f32", on_values(lambda x: jnp.swapaxes(x, 0, 1)), movable("f32", 8, 16, 128)
    )
    yield _program(
        "moveaxis_f32", on_values(lambda x: jnp.moveaxis(x, 0, 2)), movable("f32", 8, 16, 128)
    )
    for equation, shape, sizes in (
        ("abc->bac", (4, 8, 128), {}),
        ("a(bc)->b(ac)", (8, 512), {"b": 4}),
        ("(ab)c->a(bc)", (32, 128), {"b": 4}),
        ("a(bc)->(ab)c", (8, 512), {"b": 4}),
        ("(ab)c->bac", (32, 128), {"b": 8}),
        ("abc->a(bc)", (8, 4, 128), {}),
    ):
        name = equation.replace("->", "_to_").replace("(", "_").replace(")", "_").strip("_")
        yield _program(
            f"einshape_{name}_f32",
            on_values(lambda x, e=equation, s=sizes: pltpu.einshape(e, x, **s)),
            movable("f32", *shape),
        )


PROGRAMS: tuple[Program, ...] = (
    *_two_dimensions(),
    *_three_dimensions(),
    *_four_dimensions(),
    *_others(),
)
