"""Pipelines inside a kernel: `pltpu.emit_pipeline` over operands that stay in HBM.

Every program has an oracle: the HLO interpreter asks for a chip before it runs a pipeline, and
knows no ragged blocks in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import Shape, anywhere, by, folder, movable, on_refs, small, struct
from ._record import Program

_program = folder(__name__)

Kernel = Callable[..., None]


def _call(kernel: Kernel, out: jax.ShapeDtypeStruct, count: int, **options: Any) -> Any:
    return on_refs(kernel, out, in_specs=[anywhere()] * count, out_specs=anywhere(), **options)


def _elementwise(f: Callable[..., Any], grid: Shape, block: Shape, read: Any, write: Any) -> Kernel:
    def body(*refs: Any) -> None:
        refs[-1][...] = f(*(ref[...] for ref in refs[:-1]))

    def kernel(*refs: Any) -> None:
        pltpu.emit_pipeline(
            body,
            grid=grid,
            in_specs=[pl.BlockSpec(block, read)] * (len(refs) - 1),
            out_specs=[pl.BlockSpec(block, write)],
        )(*refs)

    return kernel


# shape, grid, block, where a block is read, where it is written
MAPS: dict[str, tuple[Shape, Shape, Shape, Any, Any]] = {
    "rows": ((32, 128), (4,), (8, 128), lambda i: (i, 0), lambda i: (i, 0)),
    "columns": ((16, 512), (4,), (16, 128), lambda i: (0, i), lambda i: (0, i)),
    "tiles": ((32, 256), (2, 2), (16, 128), lambda i, j: (i, j), lambda i, j: (i, j)),
    "tiles_in_columns": ((32, 256), (2, 2), (16, 128), lambda i, j: (j, i), lambda i, j: (j, i)),
    "reversed": ((64, 128), (4,), (16, 128), lambda i: (3 - i, 0), lambda i: (i, 0)),
    "one_step": ((16, 128), (1,), (16, 128), lambda i: (0, 0), lambda i: (0, 0)),
    "pages": ((3, 16, 128), (3,), (1, 16, 128), lambda i: (i, 0, 0), lambda i: (2 - i, 0, 0)),
    "same_block": ((64, 128), (4,), (16, 128), lambda i: (2, 0), lambda i: (i, 0)),
    "ragged": ((13, 128), (2,), (8, 128), lambda i: (i, 0), lambda i: (i, 0)),
}


def _moved(grid: Shape, block: Shape, read: Any, write: Any) -> Callable[..., np.ndarray]:
    """Blocks copied one by one; those at the edge are shorter."""

    def part(index: Shape) -> tuple[slice, ...]:
        return tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, block, strict=True))

    def expected(x: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for point in np.ndindex(*grid):
            out[part(write(*point))] = x[part(read(*point))]
        return out

    return expected


def _maps() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i32"):
        for name, (shape, grid, block, read, write) in MAPS.items():
            moved = _moved(grid, block, read, write)
            yield _program(
                f"{name}_{dtype}_{by(shape)}",
                _call(
                    _elementwise(lambda x: x, grid, block, read, write), struct(dtype, *shape), 1
                ),
                movable(dtype, *shape),
                expected=moved,
            )
            yield _program(
                f"add_{name}_{dtype}_{by(shape)}",
                _call(
                    _elementwise(lambda x, y: x + y, grid, block, read, write),
                    struct(dtype, *shape),
                    2,
                ),
                small(dtype, *shape),
                small(dtype, *shape),
                expected=lambda x, y, m=moved: m(x) + m(y),
            )


def _summed(x_hbm: Any, o_hbm: Any) -> None:
    """The block of the result stays while the reduced axis runs."""

    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    pltpu.emit_pipeline(
        body,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, 0))],
    )(x_hbm, o_hbm)


def _accumulated(x_hbm: Any, o_ref: Any) -> None:
    """No result of the pipeline's own: it adds to a reference outside."""
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(x_ref: Any) -> None:
        o_ref[...] += x_ref[...]

    pltpu.emit_pipeline(body, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))])(x_hbm)


def _matmul(x_hbm: Any, y_hbm: Any, o_hbm: Any, acc_ref: Any) -> None:
    steps = x_hbm.shape[1] // 128

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _() -> None:
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    pltpu.emit_pipeline(
        body,
        grid=(x_hbm.shape[0] // 16, y_hbm.shape[1] // 128, steps),
        in_specs=[
            pl.BlockSpec((16, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=[pl.BlockSpec((16, 128), lambda i, j, k: (i, j))],
    )(x_hbm, y_hbm, o_hbm)


def _two_after_each_other(x_hbm: Any, o_hbm: Any) -> None:
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def increment(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    pltpu.emit_pipeline(double, grid=(4,), in_specs=[rows], out_specs=[rows])(x_hbm, o_hbm)
    pltpu.emit_pipeline(increment, grid=(4,), in_specs=[rows], out_specs=[rows])(o_hbm, o_hbm)


def _inside_a_grid(x_hbm: Any, o_ref: Any) -> None:
    """Each point of the outer grid sums its own page, in parts."""
    page = pl.program_id(0)
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(x_ref: Any) -> None:
        o_ref[...] += x_ref[...]

    pltpu.emit_pipeline(body, grid=(2,), in_specs=[pl.BlockSpec((8, 128), lambda k: (k, 0))])(
        x_hbm.at[page]
    )


def _with_indices(x_hbm: Any, o_hbm: Any) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + pl.program_id(0).astype(x_ref.dtype)

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    pltpu.emit_pipeline(body, grid=(4,), in_specs=[rows], out_specs=[rows])(x_hbm, o_hbm)


def _two_results(x_hbm: Any, o_hbm: Any, p_hbm: Any) -> None:
    def body(x_ref: Any, o_ref: Any, p_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1
        p_ref[...] = x_ref[...] * 2

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    pltpu.emit_pipeline(body, grid=(4,), in_specs=[rows], out_specs=[rows, rows])(
        x_hbm, o_hbm, p_hbm
    )


def _others() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        yield _program(
            f"summed_{dtype}",
            _call(_summed, struct(dtype, 16, 128), 1),
            small(dtype, 16, 384),
            expected=lambda x: x[:, :128] + x[:, 128:256] + x[:, 256:],
        )
        yield _program(
            f"accumulated_{dtype}",
            on_refs(_accumulated, struct(dtype, 8, 128), in_specs=[anywhere()]),
            small(dtype, 32, 128),
            expected=lambda x: x[:8] + x[8:16] + x[16:24] + x[24:],
        )
        yield _program(
            f"two_after_each_other_{dtype}",
            _call(_two_after_each_other, struct(dtype, 32, 128), 1),
            small(dtype, 32, 128),
            expected=lambda x: x + x + x.dtype.type(1),
        )
        yield _program(
            f"inside_a_grid_{dtype}",
            on_refs(
                _inside_a_grid,
                struct(dtype, 3, 8, 128),
                grid=(3,),
                in_specs=[anywhere()],
                out_specs=pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0)),
            ),
            small(dtype, 3, 16, 128),
            expected=lambda x: x[:, :8] + x[:, 8:],
        )
        yield _program(
            f"with_indices_{dtype}",
            _call(_with_indices, struct(dtype, 32, 128), 1),
            small(dtype, 32, 128),
            expected=lambda x: (x + np.arange(32)[:, None] // 8).astype(x.dtype),
        )
        yield _program(
            f"two_results_{dtype}",
            on_refs(
                _two_results,
                struct(dtype, 32, 128),
                struct(dtype, 32, 128),
                in_specs=[anywhere()],
                out_specs=(anywhere(), anywhere()),
            ),
            small(dtype, 32, 128),
            expected=lambda x: ((x + 1).astype(x.dtype), (x * 2).astype(x.dtype)),
        )
    for dtype in ("f32", "bf16"):
        yield _program(
            f"matmul_{dtype}",
            _call(
                _matmul,
                struct(dtype, 32, 256),
                2,
                scratch_shapes=[pltpu.VMEM((16, 128), jnp.float32)],
            ),
            small(dtype, 32, 256, limit=3),
            small(dtype, 256, 256, limit=3),
            expected=lambda x, y: (x.astype(np.float32) @ y.astype(np.float32)).astype(x.dtype),
        )


PROGRAMS: tuple[Program, ...] = (*_maps(), *_others())
