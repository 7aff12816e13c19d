"""Aliases of operands and results, kinds of block dimension, and memory spaces of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import anywhere, folder, movable, on_refs, small, smem, struct
from ._record import Program

_program = folder(__name__)


def _copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def _increment(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


# --- aliases ---


def _add_into(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def _write_second(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def _aliases() -> Iterator[Program]:
    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    for dtype in ("f32", "bf16"):
        yield _program(
            f"alias_{dtype}",
            on_refs(
                _add_into,
                struct(dtype, 64, 128),
                grid=(4,),
                in_specs=[rows, rows],
                out_specs=rows,
                input_output_aliases={1: 0},
            ),
            small(dtype, 64, 128),
            small(dtype, 64, 128),
        )
        # Only some blocks are written; the others keep what the operand had.
        yield _program(
            f"alias_partly_written_{dtype}",
            on_refs(
                _write_second,
                struct(dtype, 64, 128),
                grid=(2,),
                in_specs=[pl.BlockSpec((16, 128), lambda i: (2 * i + 1, 0))],
                out_specs=pl.BlockSpec((16, 128), lambda i: (2 * i + 1, 0)),
                input_output_aliases={0: 0},
            ),
            small(dtype, 64, 128),
        )
    yield _program(
        "alias_two_f32",
        on_refs(
            _swap_and_add,
            struct("f32", 32, 128),
            struct("i32", 32, 128),
            grid=(2,),
            in_specs=[rows, rows],
            out_specs=(rows, rows),
            input_output_aliases={0: 0, 1: 1},
        ),
        small("f32", 32, 128),
        small("i32", 32, 128),
    )
    yield _program(
        "alias_after_prefetch_f32",
        on_refs(
            lambda order_ref, x_ref, y_ref, o_ref: _add_into(x_ref, y_ref, o_ref),
            struct("f32", 64, 128),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(2,),
                in_specs=[
                    pl.BlockSpec((16, 128), lambda i, order: (i, 0)),
                    pl.BlockSpec((16, 128), lambda i, order: (order[i], 0)),
                ],
                out_specs=pl.BlockSpec((16, 128), lambda i, order: (order[i], 0)),
            ),
            input_output_aliases={2: 0},
        ),
        lambda rng: rng.permutation(4)[:2].astype(np.int32),
        small("f32", 32, 128),
        small("f32", 64, 128),
    )
    yield _program(
        "alias_in_hbm_f32",
        on_refs(
            _row_into_hbm,
            struct("f32", 64, 128),
            in_specs=[pl.BlockSpec((8, 128)), anywhere()],
            out_specs=anywhere(),
            input_output_aliases={1: 0},
        ),
        small("f32", 8, 128),
        small("f32", 64, 128),
    )


def _swap_and_add(x_ref: Any, y_ref: Any, o_ref: Any, p_ref: Any) -> None:
    x, y = x_ref[...], y_ref[...]
    o_ref[...] = x + y.astype(jnp.float32)
    p_ref[...] = y - x.astype(jnp.int32)


def _row_into_hbm(x_ref: Any, _: Any, o_ref: Any) -> None:
    pltpu.sync_copy(x_ref, o_ref.at[pl.ds(16, 8)])


# --- kinds of block dimension and memory ---


def _squeezed() -> Iterator[Program]:
    for name, squeezed in (("none", None), ("squeezed", pl.Squeezed())):
        yield _program(
            f"{name}_dimension_f32",
            on_refs(
                _increment,
                struct("f32", 3, 16, 128),
                grid=(3,),
                in_specs=[pl.BlockSpec((squeezed, 16, 128), lambda i: (i, 0, 0))],
                out_specs=pl.BlockSpec((squeezed, 16, 128), lambda i: (2 - i, 0, 0)),
            ),
            small("f32", 3, 16, 128),
        )
    yield _program(
        "two_none_dimensions_bf16",
        on_refs(
            _increment,
            struct("bf16", 2, 3, 16, 128),
            grid=(2, 3),
            in_specs=[pl.BlockSpec((None, None, 16, 128), lambda i, j: (i, j, 0, 0))],
            out_specs=pl.BlockSpec((None, None, 16, 128), lambda i, j: (i, j, 0, 0)),
        ),
        small("bf16", 2, 3, 16, 128),
    )
    yield _program(
        "none_in_the_middle_f32",
        on_refs(
            _increment,
            struct("f32", 16, 4, 128),
            grid=(2, 4),
            in_specs=[pl.BlockSpec((8, 4, 128), lambda i, j: (i, 0, 0))],
            out_specs=pl.BlockSpec((8, 4, 128), lambda i, j: (i, 0, 0)),
        ),
        small("f32", 16, 4, 128),
    )
    element = (pl.Element(16), pl.Element(128))
    yield _program(
        "element_rows_f32",
        on_refs(
            _copy,
            struct("f32", 48, 128),
            grid=(3,),
            in_specs=[pl.BlockSpec(element, lambda i: (i * 8, 0))],
            out_specs=pl.BlockSpec((16, 128), lambda i: (i, 0)),
        ),
        movable("f32", 32, 128),
    )
    yield _program(
        "element_overlapping_f32",
        on_refs(
            _copy,
            struct("f32", 48, 128),
            grid=(3,),
            in_specs=[
                pl.BlockSpec(
                    (pl.Element(16), pl.Element(128)), lambda i: (pl.multiple_of(i * 16, 8), 128)
                )
            ],
            out_specs=pl.BlockSpec((16, 128), lambda i: (i, 0)),
        ),
        movable("f32", 64, 256),
    )
    for buffers in (1, 2):
        yield _program(
            f"buffered_{buffers}_f32",
            on_refs(
                _increment,
                struct("f32", 64, 128),
                grid=(4,),
                in_specs=[
                    pl.BlockSpec((16, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(buffers))
                ],
                out_specs=pl.BlockSpec((16, 128), lambda i: (i, 0)),
            ),
            small("f32", 64, 128),
        )


def _spaces() -> Iterator[Program]:
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    yield _program(
        "smem_block_f32",
        on_refs(
            _scaled_by_block,
            struct("f32", 32, 128),
            grid=(4,),
            in_specs=[
                pl.BlockSpec((1, 128), lambda i: (0, 0), memory_space=pltpu.SMEM),
                rows,
            ],
            out_specs=rows,
        ),
        small("f32", 1, 128),
        small("f32", 32, 128),
    )
    yield _program(
        "smem_blocks_i32",
        on_refs(
            _scaled_by_block,
            struct("i32", 32, 128),
            grid=(4,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pltpu.SMEM),
                rows,
            ],
            out_specs=rows,
        ),
        small("i32", 32, 128),
        small("i32", 32, 128),
    )
    yield _program(
        "smem_result_i32",
        on_refs(
            _sum_of_block,
            struct("i32", 4),
            grid=(4,),
            in_specs=[rows],
            out_specs=smem(),
        ),
        small("i32", 32, 128),
    )
    yield _program(
        "whole_and_blocks_f32",
        on_refs(
            _add_row_of_whole,
            struct("f32", 32, 128),
            grid=(4,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), rows],
            out_specs=rows,
        ),
        small("f32", 4, 128),
        small("f32", 32, 128),
    )


def _scaled_by_block(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * s_ref[0, 3] + s_ref[0, 100]


def _sum_of_block(x_ref: Any, o_ref: Any) -> None:
    o_ref[pl.program_id(0)] = jnp.sum(x_ref[...])


def _add_row_of_whole(w_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + w_ref[pl.ds(pl.program_id(0), 1), :]


PROGRAMS: tuple[Program, ...] = (*_aliases(), *_squeezed(), *_spaces())
