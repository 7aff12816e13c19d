"""Comparisons of every kind and dtype, selection by their results, and logic of booleans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from ._build import (
    Maker,
    as_i32,
    booleans,
    folder,
    integers,
    mixed,
    on_refs,
    on_values,
    small,
    smem,
    struct,
    vmem,
)
from ._record import Program

_program = folder(__name__)

NAN, INF = float("nan"), float("inf")
Rows = dict[str, Callable[..., Any]]

COMPARISONS: Rows = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
LOGIC: Rows = {
    "and": lambda p, q: p & q,
    "or": lambda p, q: p | q,
    "xor": lambda p, q: p ^ q,
    "not_and": lambda p, q: ~(p & q),
    "implies": lambda p, q: jnp.logical_or(jnp.logical_not(p), q),
    "equal": lambda p, q: p == q,
    "differ": lambda p, q: p != q,
}


def _comparable(dtype: str, *shape: int) -> Maker:
    """Equals are common; floats include what compares with nothing and zeros that are equal."""
    if dtype in ("f32", "bf16"):
        return mixed(dtype, *shape, values=(NAN, INF, -INF, 0.0, -0.0, 1.0), share=0.7)
    if dtype.startswith("u"):
        edges = {"u32": 2**32, "u16": 2**16, "u8": 2**8}[dtype]
        return mixed(dtype, *shape, values=(0, 1, edges // 2, edges - 1), share=0.7)
    if dtype == "i4":
        return small(dtype, *shape, limit=2)
    edges = {"i32": 2**31, "i16": 2**15, "i8": 2**7}[dtype]
    return mixed(dtype, *shape, values=(0, 1, -1, edges - 1, -edges), share=0.7)


def _comparisons() -> Iterator[Program]:
    dtypes = ("f32", "bf16", "i32", "i16", "i8", "u32", "u16", "u8", "i4")
    for dtype in dtypes:
        for name, compare in COMPARISONS.items():
            for shape in ((32, 128), (5, 130)) if dtype in ("f32", "i32") else ((32, 128),):
                operand = _comparable(dtype, *shape)
                suffix = "" if shape == (32, 128) else "_5x130"
                yield _program(
                    f"{name}_{dtype}{suffix}", on_values(as_i32(compare)), operand, operand
                )
    for dtype in ("f32", "i32", "bf16", "i8"):
        yield _program(
            f"greater_than_constant_{dtype}",
            on_values(as_i32(lambda x: x > 1)),
            _comparable(dtype, 32, 128),
        )
        yield _program(
            f"comparison_of_row_and_column_{dtype}",
            on_values(as_i32(lambda x, y: x < y)),
            _comparable(dtype, 32, 1),
            _comparable(dtype, 1, 128),
        )


def _logic() -> Iterator[Program]:
    for name, f in LOGIC.items():
        yield _program(f"bool_{name}", on_values(f), booleans(32, 128), booleans(32, 128))
        yield _program(
            f"comparisons_{name}",
            on_values(as_i32(lambda x, y, f=f: f(x > 0, y < 2))),
            small("f32", 16, 128),
            small("i32", 16, 128),
        )
    for reduce in ("any", "all"):
        yield _program(
            f"{reduce}_decides",
            on_values(lambda x, r=reduce: jnp.where(getattr(jnp, r)(x > -10000), x, -x)),
            small("f32", 8, 128, limit=10**4),
        )
    yield _program(
        "between", on_values(as_i32(lambda x: (x > -3) & (x < 4))), small("bf16", 16, 128)
    )


# name: the function of mask, x and y; shapes of the three
SELECTIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "whole": ((16, 128), (16, 128), (16, 128)),
    "row_mask": ((1, 128), (16, 128), (16, 128)),
    "column_mask": ((16, 1), (16, 128), (16, 128)),
    "row_value": ((16, 128), (1, 128), (16, 128)),
    "column_value": ((16, 128), (16, 128), (16, 1)),
    "ragged": ((5, 130), (5, 130), (5, 130)),
    "pages": ((3, 8, 128), (3, 8, 128), (3, 8, 128)),
}


def _selections() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16", "i8", "i16"):
        for name, (mask, left, right) in SELECTIONS.items():
            yield _program(
                f"where_{name}_{dtype}",
                on_values(lambda m, x, y: jnp.where(m != 0, x, y)),
                integers("i32", *mask, low=0, high=1),
                small(dtype, *left, limit=100),
                small(dtype, *right, limit=100),
            )
        yield _program(
            f"where_constant_{dtype}",
            on_values(lambda x: jnp.where(x > 2, x, 0)),
            small(dtype, 32, 128, limit=9),
        )
    for dtype in ("f32", "bf16", "i8"):
        yield _program(
            f"where_bool_operand_{dtype}",
            on_values(lambda m, x: jnp.where(m, x, 5)),
            booleans(32, 128),
            small(dtype, 32, 128),
        )
    yield _program(
        "mask_of_bf16_selects_f32",
        on_values(lambda x, y: jnp.where(x > 0, y, -1)),
        small("bf16", 16, 128),
        small("f32", 16, 128),
    )
    yield _program(
        "mask_of_f32_selects_bf16",
        on_values(lambda x, y: jnp.where(x > 0, y, -1)),
        small("f32", 16, 128),
        small("bf16", 16, 128),
    )
    yield _program(
        "mask_of_i8_selects_f32",
        on_values(lambda x, y: jnp.where(x > 0, y, -1)),
        small("i8", 32, 128),
        small("f32", 32, 128),
    )
    yield _program(
        "select_n_f32",
        on_values(lambda x, y: lax.select_n(x > y, x, y)),
        small("f32", 8, 128),
        small("f32", 8, 128),
    )
    yield _program(
        "nested_f32",
        on_values(lambda x: jnp.where(x > 3, 3, jnp.where(x < -3, -3, x))),
        small("f32", 16, 128),
    )


def _scalar_selects(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.where(s_ref[0] > s_ref[1], x_ref[...], -x_ref[...])


def _scalar_mask(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
    o_ref[...] = jnp.where(column < s_ref[0], x_ref[...], 0)


def _scalars() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32"):
        for name, kernel in (("selects", _scalar_selects), ("masks", _scalar_mask)):
            yield _program(
                f"scalar_{name}_{dtype}",
                on_refs(kernel, struct(dtype, 16, 128), in_specs=[smem(), vmem()]),
                integers("i32", 2, low=0, high=128),
                small(dtype, 16, 128),
            )


PROGRAMS: tuple[Program, ...] = (*_comparisons(), *_logic(), *_selections(), *_scalars())
