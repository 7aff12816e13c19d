"""Grids: which block is where and when; what a point of the grid knows; dynamic bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import (
    DTYPES,
    Shape,
    folder,
    integers,
    movable,
    on_refs,
    small,
    smem,
    struct,
)
from ._record import Program

_program = folder(__name__)

Map = Callable[..., tuple[Any, ...]]


def _copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def _increment(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def _blocks(
    block: Shape, read: Map, write: Map, grid: Shape, out: jax.ShapeDtypeStruct, **options: Any
) -> Callable[..., Any]:
    """Copies blocks from where one map says to where the other does."""
    return on_refs(
        _copy,
        out,
        grid=grid,
        in_specs=[pl.BlockSpec(block, read)],
        out_specs=pl.BlockSpec(block, write),
        **options,
    )


# shape, block, grid, where a block is read, where it is written
MOVES: dict[str, tuple[Shape, Shape, Shape, Map, Map]] = {
    "rows": ((32, 128), (8, 128), (4,), lambda i: (i, 0), lambda i: (i, 0)),
    "rows_of_256": ((64, 256), (32, 256), (2,), lambda i: (i, 0), lambda i: (i, 0)),
    "columns": ((16, 512), (16, 128), (4,), lambda i: (0, i), lambda i: (0, i)),
    "tiles": ((32, 256), (16, 128), (2, 2), lambda i, j: (i, j), lambda i, j: (i, j)),
    "tiles_in_columns": ((32, 256), (16, 128), (2, 2), lambda i, j: (j, i), lambda i, j: (j, i)),
    "tiles_transposed": ((32, 256), (16, 128), (2, 2), lambda i, j: (j, i), lambda i, j: (i, j)),
    "rows_reversed": ((64, 128), (16, 128), (4,), lambda i: (3 - i, 0), lambda i: (i, 0)),
    "rows_rotated": ((64, 128), (16, 128), (4,), lambda i: ((i + 1) % 4, 0), lambda i: (i, 0)),
    "written_reversed": ((64, 128), (16, 128), (4,), lambda i: (i, 0), lambda i: (3 - i, 0)),
    "columns_halved": ((16, 512), (16, 128), (4,), lambda i: (0, i // 2), lambda i: (0, i)),
    "same_block": ((64, 128), (16, 128), (4,), lambda i: (2, 0), lambda i: (i, 0)),
    "whole_axis": ((3, 5, 130), (1, 5, 130), (3,), lambda i: (i, 0, 0), lambda i: (i, 0, 0)),
    "pages": ((4, 16, 128), (2, 16, 128), (2,), lambda i: (i, 0, 0), lambda i: (1 - i, 0, 0)),
    "boxes": (
        (2, 32, 256),
        (1, 16, 128),
        (2, 2, 2),
        lambda i, j, k: (i, j, k),
        lambda i, j, k: (i, j, k),
    ),
    "boxes_turned": (
        (2, 32, 256),
        (1, 16, 128),
        (2, 2, 2),
        lambda i, j, k: (k, i, j),
        lambda i, j, k: (i, k, j),
    ),
    "rank_4": (
        (2, 3, 16, 128),
        (1, 1, 16, 128),
        (2, 3),
        lambda i, j: (i, j, 0, 0),
        lambda i, j: (1 - i, j, 0, 0),
    ),
    "one_point": ((16, 128), (16, 128), (1,), lambda i: (0, 0), lambda i: (0, 0)),
    "ragged_rows": ((13, 128), (8, 128), (2,), lambda i: (i, 0), lambda i: (i, 0)),
    "ragged_columns": ((8, 300), (8, 128), (3,), lambda i: (0, i), lambda i: (0, i)),
    "ragged_tiles": ((21, 200), (16, 128), (2, 2), lambda i, j: (i, j), lambda i, j: (i, j)),
    "ragged_swap": ((13, 128), (8, 128), (2,), lambda i: (1 - i, 0), lambda i: (1 - i, 0)),
    "smaller_than_block": ((5, 100), (8, 128), (1,), lambda i: (0, 0), lambda i: (0, 0)),
    "rank_1": ((4096,), (1024,), (4,), lambda i: (i,), lambda i: (3 - i,)),
    "ragged_rank_1": ((1500,), (1024,), (2,), lambda i: (i,), lambda i: (i,)),
}


def _moves() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i8", "i32"):
        for name, (shape, block, grid, read, write) in MOVES.items():
            yield _program(
                f"{name}_{dtype}",
                _blocks(block, read, write, grid, struct(dtype, *shape)),
                movable(dtype, *shape),
            )
    for name in ("tiles", "boxes_turned", "ragged_tiles"):
        shape, block, grid, read, write = MOVES[name]
        semantics = pltpu.CompilerParams(dimension_semantics=("parallel",) * len(grid))
        yield _program(
            f"parallel_{name}_f32",
            _blocks(block, read, write, grid, struct("f32", *shape), compiler_params=semantics),
            movable("f32", *shape),
        )


# --- what a point of the grid knows of itself ---


def _label(o_ref: Any) -> None:
    value = 0
    for axis in range(o_ref.ndim):
        value = value * 10 + pl.program_id(axis)
    o_ref[...] = jnp.full_like(o_ref, value)


def _counts(o_ref: Any) -> None:
    o_ref[...] = jnp.full_like(o_ref, 10 * pl.num_programs(0) + pl.program_id(0))


def _ids() -> Iterator[Program]:
    yield _program(
        "program_ids_2d",
        on_refs(
            lambda s_ref, o_ref: _label(o_ref),
            struct("i32", 32, 512),
            grid=(2, 4),
            in_specs=[smem()],
            out_specs=pl.BlockSpec((16, 128), lambda i, j: (i, j)),
        ),
        small("i32", 1),
    )
    yield _program(
        "program_ids_3d",
        on_refs(
            lambda s_ref, o_ref: _label(o_ref),
            struct("i32", 3, 16, 256),
            grid=(3, 2, 2),
            in_specs=[smem()],
            out_specs=pl.BlockSpec((1, 8, 128), lambda i, j, k: (i, j, k)),
        ),
        small("i32", 1),
    )
    yield _program(
        "num_programs",
        on_refs(
            lambda s_ref, o_ref: _counts(o_ref),
            struct("i32", 24, 128),
            grid=(3,),
            in_specs=[smem()],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        ),
        small("i32", 1),
    )


# --- accumulation ---


def _accumulate(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def _accumulate_last(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...].astype(acc_ref.dtype)

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _matmul(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=acc_ref.dtype)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _running_sum(x_ref: Any, o_ref: Any, total_ref: Any) -> None:
    """Scratch lives on from one point of the grid to the next."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        total_ref[0] = 0

    total_ref[0] += x_ref[0, 0]
    o_ref[...] = x_ref[...] + total_ref[0]


def _accumulations() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        yield _program(
            f"accumulate_{dtype}",
            on_refs(
                _accumulate,
                struct(dtype, 16, 128),
                grid=(5,),
                in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
                out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
            ),
            small(dtype, 80, 128),
        )
        yield _program(
            f"accumulate_last_axis_{dtype}",
            on_refs(
                _accumulate_last,
                struct(dtype, 32, 128),
                grid=(2, 3),
                in_specs=[pl.BlockSpec((16, 128), lambda i, k: (i, k))],
                out_specs=pl.BlockSpec((16, 128), lambda i, k: (i, 0)),
                scratch_shapes=[pltpu.VMEM((16, 128), jnp.float32)],
                compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            ),
            small(dtype, 32, 384),
        )
    for dtype, acc in (("f32", "f32"), ("bf16", "f32"), ("i8", "i32")):
        m, k, n = 64, 256, 256
        bm, bk, bn = 32, 128, 128
        yield _program(
            f"matmul_k_loop_{dtype}",
            on_refs(
                _matmul,
                struct("f32" if dtype != "i8" else "i32", m, n),
                grid=(m // bm, n // bn, k // bk),
                in_specs=[
                    pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                    pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), DTYPES[acc])],
            ),
            small(dtype, m, k),
            small(dtype, k, n),
        )
    yield _program(
        "running_sum_in_smem",
        on_refs(
            _running_sum,
            struct("i32", 32, 128),
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            scratch_shapes=[pltpu.SMEM((1,), jnp.int32)],
        ),
        small("i32", 32, 128),
    )


# --- dynamic bounds ---


def _dynamic() -> Iterator[Program]:
    def accumulate(count: Any, x: Any) -> Any:
        return pl.pallas_call(
            _accumulate,
            out_shape=struct("f32", 8, 128),
            grid=(count[0],),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        )(x)

    def accumulate_two(count: Any, x: Any) -> Any:
        return pl.pallas_call(
            _accumulate_last,
            out_shape=struct("f32", 16, 128),
            grid=(2, count[0]),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
            out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )(x)

    yield _program(
        "dynamic_bound_f32",
        accumulate,
        integers("i32", 1, low=1, high=5),
        small("f32", 40, 128),
    )
    yield _program(
        "dynamic_inner_bound_f32",
        accumulate_two,
        integers("i32", 1, low=1, high=3),
        small("f32", 16, 384),
    )


# --- several operands, several results, several calls ---


def _several() -> Iterator[Program]:
    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    yield _program(
        "two_results_f32",
        on_refs(
            _sum_and_difference,
            struct("f32", 32, 128),
            struct("i32", 32, 128),
            grid=(2,),
            in_specs=[rows, rows],
            out_specs=(rows, rows),
        ),
        small("f32", 32, 128),
        small("f32", 32, 128),
    )
    yield _program(
        "results_of_two_shapes_f32",
        on_refs(
            _copy_and_total,
            struct("f32", 32, 128),
            struct("f32", 1, 128),
            grid=(2,),
            in_specs=[rows],
            out_specs=(rows, pl.BlockSpec((1, 128), lambda i: (0, 0))),
        ),
        small("f32", 32, 128),
    )
    yield _program(
        "outer_sum_f32",
        on_refs(
            _add,
            struct("f32", 32, 256),
            grid=(2, 2),
            in_specs=[
                pl.BlockSpec((16, 1), lambda i, j: (i, 0)),
                pl.BlockSpec((1, 128), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((16, 128), lambda i, j: (i, j)),
        ),
        small("f32", 32, 1),
        small("f32", 1, 256),
    )
    yield _program(
        "last_write_wins_f32",
        on_refs(
            _copy,
            struct("f32", 16, 128),
            grid=(3,),
            in_specs=[rows],
            out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
        ),
        movable("f32", 48, 128),
    )
    yield _program(
        "conditional_by_step_f32",
        on_refs(
            _alternating,
            struct("f32", 64, 128),
            grid=(4,),
            in_specs=[rows],
            out_specs=rows,
        ),
        small("f32", 64, 128),
    )
    yield _program("two_calls_f32", _two_calls, small("f32", 32, 128))


def _add(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def _sum_and_difference(x_ref: Any, y_ref: Any, s_ref: Any, d_ref: Any) -> None:
    s_ref[...] = x_ref[...] + y_ref[...]
    d_ref[...] = (x_ref[...] - y_ref[...]).astype(jnp.int32)


def _copy_and_total(x_ref: Any, o_ref: Any, t_ref: Any) -> None:
    o_ref[...] = x_ref[...]
    total = jnp.sum(x_ref[...], axis=0, keepdims=True)

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        t_ref[...] = total

    @pl.when(pl.program_id(0) > 0)
    def _() -> None:
        t_ref[...] += total


def _alternating(x_ref: Any, o_ref: Any) -> None:
    even = lax.rem(pl.program_id(0), 2) == 0

    @pl.when(even)
    def _() -> None:
        o_ref[...] = x_ref[...]

    @pl.when(jnp.logical_not(even))
    def _() -> None:
        o_ref[...] = -x_ref[...]


def _two_calls(x: Any) -> Any:
    """XLA's own work before, between and after two kernels."""
    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        _increment, out_shape=struct("f32", 32, 128), grid=(2,), in_specs=[rows], out_specs=rows
    )
    return call(jnp.flip(call(x * 2), axis=0)) - 3


PROGRAMS: tuple[Program, ...] = (
    *_moves(),
    *_ids(),
    *_accumulations(),
    *_dynamic(),
    *_several(),
)
