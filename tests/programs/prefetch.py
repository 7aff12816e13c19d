"""Scalar prefetch: index maps and kernels that read integers known before the first block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import folder, integers, movable, on_refs, small, struct
from ._record import Program

_program = folder(__name__)


def _copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def _prefetched(order_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + order_ref[pl.program_id(0)].astype(x_ref.dtype)


def _prefetched_two(i_ref: Any, s_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    k = pl.program_id(0)
    o_ref[...] = x_ref[...] * s_ref[k] + y_ref[...]


def _prefetched_sum(count_ref: Any, x_ref: Any, o_ref: Any) -> None:
    k = pl.program_id(0)

    @pl.when(k == 0)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    @pl.when(k < count_ref[0])
    def _() -> None:
        o_ref[...] += x_ref[...]


def _grid_spec(
    prefetched: int, grid: Any, in_specs: list[pl.BlockSpec], out_specs: Any, **options: Any
) -> pltpu.PrefetchScalarGridSpec:
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=prefetched,
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        **options,
    )


def _indices(*shape: int, high: int) -> Any:
    return integers("i32", *shape, low=0, high=high)


def _prefetch() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32"):
        yield _program(
            f"rows_{dtype}",
            on_refs(
                _prefetched,
                struct(dtype, 64, 128),
                grid_spec=_grid_spec(
                    1,
                    (4,),
                    [pl.BlockSpec((16, 128), lambda i, order: (order[i], 0))],
                    pl.BlockSpec((16, 128), lambda i, order: (i, 0)),
                ),
            ),
            _indices(4, high=3),
            small(dtype, 64, 128),
        )
    yield _program(
        "two_f32",
        on_refs(
            _prefetched_two,
            struct("f32", 32, 128),
            grid_spec=_grid_spec(
                2,
                (4,),
                [
                    pl.BlockSpec((8, 128), lambda i, order, scale: (order[i], 0)),
                    pl.BlockSpec((8, 128), lambda i, order, scale: (order[3 - i] // 2, 0)),
                ],
                pl.BlockSpec((8, 128), lambda i, order, scale: (i, 0)),
            ),
        ),
        _indices(4, high=3),
        small("f32", 4),
        small("f32", 32, 128),
        small("f32", 32, 128),
    )
    yield _program(
        "scatters_f32",
        on_refs(
            lambda order_ref, x_ref, o_ref: _copy(x_ref, o_ref),
            struct("f32", 32, 128),
            grid_spec=_grid_spec(
                1,
                (4,),
                [pl.BlockSpec((8, 128), lambda i, order: (i, 0))],
                pl.BlockSpec((8, 128), lambda i, order: (order[i], 0)),
            ),
        ),
        lambda rng: rng.permutation(4).astype(np.int32),
        movable("f32", 32, 128),
    )
    yield _program(
        "count_f32",
        on_refs(
            _prefetched_sum,
            struct("f32", 8, 128),
            grid_spec=_grid_spec(
                1,
                (4,),
                [pl.BlockSpec((8, 128), lambda i, count: (jnp.minimum(i, count[0] - 1), 0))],
                pl.BlockSpec((8, 128), lambda i, count: (0, 0)),
            ),
        ),
        integers("i32", 1, low=1, high=4),
        small("f32", 32, 128),
    )
    yield _program(
        "matrix_f32",
        on_refs(
            lambda order_ref, x_ref, o_ref: _copy(x_ref, o_ref),
            struct("f32", 32, 256),
            grid_spec=_grid_spec(
                1,
                (2, 2),
                [pl.BlockSpec((16, 128), lambda i, j, order: (order[i, j], order[j, i]))],
                pl.BlockSpec((16, 128), lambda i, j, order: (i, j)),
            ),
        ),
        _indices(2, 2, high=1),
        movable("f32", 32, 256),
    )
    yield _program(
        "accumulates_runs_f32",
        on_refs(
            _segments,
            struct("f32", 24, 128),
            grid_spec=_grid_spec(
                1,
                (6,),
                [pl.BlockSpec((8, 128), lambda i, segment: (i, 0))],
                pl.BlockSpec((8, 128), lambda i, segment: (segment[i], 0)),
            ),
        ),
        # Every segment once at least, in order.
        lambda rng: np.sort(np.concatenate([np.arange(3), rng.integers(0, 3, 3)])).astype(np.int32),
        small("f32", 48, 128),
    )


def _segments(segment_ref: Any, x_ref: Any, o_ref: Any) -> None:
    i = pl.program_id(0)
    first = (i == 0) | (segment_ref[i] != segment_ref[jnp.maximum(i - 1, 0)])

    @pl.when(first)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


PROGRAMS: tuple[Program, ...] = tuple(_prefetch())
