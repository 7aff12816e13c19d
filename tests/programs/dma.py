"""Copies that the kernel starts and waits for itself, and the semaphores they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import DTYPES, Shape, anywhere, by, folder, movable, on_refs, small, smem, struct, vmem
from ._record import Program

_program = folder(__name__)

Kernel = Callable[..., None]
DMA = pltpu.SemaphoreType.DMA


def _in_and_out(x_ref: Any, o_ref: Any, buffer: Any, sem: Any) -> None:
    """By way of VMEM."""
    load = pltpu.make_async_copy(x_ref, buffer, sem)
    load.start()
    load.wait()
    store = pltpu.make_async_copy(buffer, o_ref, sem)
    store.start()
    store.wait()


def _direct(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.make_async_copy(x_ref, o_ref, sem).start()
    pltpu.make_async_copy(x_ref, o_ref, sem).wait()


def _started_at_once(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref, o_ref, sem).wait()


def _synchronous(x_ref: Any, o_ref: Any) -> None:
    pltpu.sync_copy(x_ref, o_ref)


def _moves() -> Iterator[Program]:
    shapes: tuple[Shape, ...] = ((32, 128), (16, 256), (5, 130), (2, 16, 128))
    for dtype in ("f32", "bf16", "i8", "i32"):
        for shape in shapes:
            rows: dict[str, tuple[Kernel, list[Any]]] = {
                "in_and_out": (_in_and_out, [pltpu.VMEM(shape, DTYPES[dtype]), DMA]),
                "direct": (_direct, [DMA]),
                "started_at_once": (_started_at_once, [DMA]),
                "synchronous": (_synchronous, []),
            }
            for name, (kernel, scratch) in rows.items():
                if name != "in_and_out" and shape != shapes[0]:
                    continue
                yield _program(
                    f"{name}_{dtype}_{by(shape)}",
                    on_refs(
                        kernel,
                        struct(dtype, *shape),
                        in_specs=[anywhere()],
                        out_specs=anywhere(),
                        scratch_shapes=scratch,
                    ),
                    movable(dtype, *shape),
                )
    for name, source, target in (
        ("vmem_to_vmem", vmem(), vmem()),
        ("vmem_to_any", vmem(), anywhere()),
        ("any_to_vmem", anywhere(), vmem()),
    ):
        yield _program(
            f"{name}_f32",
            on_refs(
                _direct,
                struct("f32", 16, 128),
                in_specs=[source],
                out_specs=target,
                scratch_shapes=[DMA],
            ),
            movable("f32", 16, 128),
        )


# --- slices; the buffer has the shape of the result ---


def _rows(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref.at[pl.ds(8, 16)], o_ref, sem).wait()


def _columns(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref.at[pl.ds(0, 16), pl.ds(128, 128)], o_ref, sem).wait()


def _page(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref.at[2], o_ref, sem).wait()


def _scattered(x_ref: Any, o_ref: Any, sem: Any) -> None:
    for i, to in enumerate((24, 0, 16, 8)):
        pltpu.async_copy(x_ref.at[pl.ds(8 * i, 8)], o_ref.at[pl.ds(to, 8)], sem).wait()


def _unaligned_rows(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref.at[pl.ds(3, 5)], o_ref.at[pl.ds(2, 5)], sem).wait()


def _single_rows(x_ref: Any, o_ref: Any, sem: Any) -> None:
    for i in range(4):
        pltpu.async_copy(x_ref.at[pl.ds(3 * i, 1)], o_ref.at[pl.ds(i, 1)], sem).wait()


def _slices() -> Iterator[Program]:
    rows: dict[str, tuple[Kernel, Shape, Shape, bool]] = {
        # kernel, operand, result, whether the whole result is written
        "rows": (_rows, (32, 128), (16, 128), True),
        "rows_of_256": (_rows, (32, 256), (16, 256), True),
        "columns": (_columns, (16, 256), (16, 128), True),
        "page": (_page, (4, 16, 128), (16, 128), True),
        "scattered": (_scattered, (32, 128), (32, 128), True),
        "unaligned_rows": (_unaligned_rows, (8, 128), (8, 128), False),
        "single_rows": (_single_rows, (16, 128), (4, 128), True),
    }
    for dtype in ("f32", "bf16", "i32"):
        for name, (kernel, shape, out, whole) in rows.items():
            body = kernel if whole else _after_zeros(kernel)
            for place, spec in (("vmem", vmem()), ("any", anywhere())):
                if place == "any" and not whole:
                    continue
                yield _program(
                    f"{name}_into_{place}_{dtype}",
                    on_refs(
                        body,
                        struct(dtype, *out),
                        in_specs=[anywhere()],
                        out_specs=spec,
                        scratch_shapes=[DMA],
                    ),
                    movable(dtype, *shape),
                )


def _after_zeros(kernel: Kernel) -> Kernel:
    def body(x_ref: Any, o_ref: Any, *scratch: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)
        kernel(x_ref, o_ref, *scratch)

    return body


# --- which slice is known at run time only ---


def _dynamic_rows(i_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
    start = pl.multiple_of(i_ref[0] * 8, 8)
    pltpu.async_copy(x_ref.at[pl.ds(start, 8)], o_ref, sem).wait()


def _dynamic_page(i_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref.at[i_ref[0]], o_ref, sem).wait()


def _gathered_rows(i_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
    """All in flight on one semaphore."""

    def copy(k: Any) -> Any:
        return pltpu.make_async_copy(x_ref.at[pl.ds(i_ref[k], 1)], o_ref.at[pl.ds(k, 1)], sem)

    for k in range(8):
        copy(k).start()
    for k in range(8):
        copy(k).wait()


def _gathered_by_loop(i_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
    def move(k: Any, _: Any) -> Any:
        pltpu.async_copy(x_ref.at[i_ref[k]], o_ref.at[k], sem).wait()
        return 0

    lax.fori_loop(0, 8, move, 0)


def _dynamic() -> Iterator[Program]:
    rows: dict[str, tuple[Kernel, Shape, Shape]] = {
        "dynamic_rows": (_dynamic_rows, (64, 128), (8, 128)),
        "dynamic_page": (_dynamic_page, (8, 16, 128), (16, 128)),
        "gathered_rows": (_gathered_rows, (16, 128), (8, 128)),
        "gathered_pages": (_gathered_by_loop, (8, 8, 128), (8, 8, 128)),
    }
    for dtype in ("f32", "bf16"):
        for name, (kernel, shape, out) in rows.items():
            yield _program(
                f"{name}_{dtype}",
                on_refs(
                    kernel,
                    struct(dtype, *out),
                    in_specs=[smem(), anywhere()],
                    out_specs=vmem(),
                    scratch_shapes=[DMA],
                ),
                lambda rng: rng.integers(0, 8, 8).astype(np.int32),
                movable(dtype, *shape),
            )


# --- several in flight ---


def _semaphore_array(x_ref: Any, o_ref: Any, buffer: Any, sems: Any) -> None:
    """Waited for in another order than started."""

    def load(i: int) -> Any:
        return pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buffer.at[i], sems.at[i])

    for i in range(4):
        load(i).start()
    for i in (2, 0, 3, 1):
        load(i).wait()
    for i in range(4):
        o_ref[pl.ds(8 * i, 8), :] = buffer[3 - i] * 2


def _double_buffered(x_ref: Any, o_ref: Any, buffer: Any, sems: Any) -> None:
    """The next rows arrive while these are added up."""
    steps = x_ref.shape[0] // 8

    def load(step: Any, slot: Any) -> Any:
        rows = pl.ds(pl.multiple_of(step * 8, 8), 8)
        return pltpu.make_async_copy(x_ref.at[rows], buffer.at[slot], sems.at[slot])

    load(0, 0).start()
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(step: Any, _: Any) -> Any:
        slot = lax.rem(step, 2)

        @pl.when(step + 1 < steps)
        def _() -> None:
            load(step + 1, 1 - slot).start()

        load(step, slot).wait()
        o_ref[...] += buffer[slot]
        return 0

    lax.fori_loop(0, steps, body, 0)


def _double_buffered_both_ways(x_ref: Any, o_ref: Any, buffers: Any, outs: Any, sems: Any) -> None:
    steps = x_ref.shape[0] // 8

    def load(step: int) -> Any:
        source = x_ref.at[pl.ds(8 * step, 8)]
        return pltpu.make_async_copy(source, buffers.at[step % 2], sems.at[0, step % 2])

    def store(step: int) -> Any:
        target = o_ref.at[pl.ds(8 * step, 8)]
        return pltpu.make_async_copy(outs.at[step % 2], target, sems.at[1, step % 2])

    load(0).start()
    for step in range(steps):
        if step + 1 < steps:
            load(step + 1).start()
        load(step).wait()
        if step >= 2:
            store(step - 2).wait()
        outs[step % 2] = buffers[step % 2] * 3
        store(step).start()
    for step in range(max(steps - 2, 0), steps):
        store(step).wait()


def _prefetched_by_grid(x_ref: Any, o_ref: Any, buffer: Any, sems: Any) -> None:
    """Started at one point of the grid, waited for at the next."""
    i, n = pl.program_id(0), pl.num_programs(0)

    def load(k: Any) -> Any:
        slot = lax.rem(k, 2)
        return pltpu.make_async_copy(x_ref.at[k], buffer.at[slot], sems.at[slot])

    @pl.when(i == 0)
    def _() -> None:
        load(i).start()

    @pl.when(i + 1 < n)
    def _() -> None:
        load(i + 1).start()

    load(i).wait()
    o_ref[...] = buffer[lax.rem(i, 2)] + i.astype(o_ref.dtype)


def _in_flight() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        t = DTYPES[dtype]
        yield _program(
            f"semaphore_array_{dtype}",
            on_refs(
                _semaphore_array,
                struct(dtype, 32, 128),
                in_specs=[anywhere()],
                scratch_shapes=[pltpu.VMEM((4, 8, 128), t), pltpu.SemaphoreType.DMA((4,))],
            ),
            small(dtype, 32, 128),
        )
        yield _program(
            f"double_buffered_{dtype}",
            on_refs(
                _double_buffered,
                struct(dtype, 8, 128),
                in_specs=[anywhere()],
                scratch_shapes=[pltpu.VMEM((2, 8, 128), t), pltpu.SemaphoreType.DMA((2,))],
            ),
            small(dtype, 40, 128),
        )
        yield _program(
            f"double_buffered_both_ways_{dtype}",
            on_refs(
                _double_buffered_both_ways,
                struct(dtype, 40, 128),
                in_specs=[anywhere()],
                out_specs=anywhere(),
                scratch_shapes=[
                    pltpu.VMEM((2, 8, 128), t),
                    pltpu.VMEM((2, 8, 128), t),
                    pltpu.SemaphoreType.DMA((2, 2)),
                ],
            ),
            small(dtype, 40, 128),
        )
        yield _program(
            f"prefetched_by_grid_{dtype}",
            on_refs(
                _prefetched_by_grid,
                struct(dtype, 4, 16, 128),
                grid=(4,),
                in_specs=[anywhere()],
                out_specs=pl.BlockSpec((None, 16, 128), lambda i: (i, 0, 0)),
                scratch_shapes=[pltpu.VMEM((2, 16, 128), t), pltpu.SemaphoreType.DMA((2,))],
            ),
            small(dtype, 4, 16, 128),
        )


# --- scopes and semaphores ---


def _scoped(x_ref: Any, o_ref: Any) -> None:
    def body(buffer: Any, sem: Any) -> None:
        pltpu.async_copy(x_ref, buffer, sem).wait()
        o_ref[...] = buffer[...] + 1

    pl.run_scoped(body, pltpu.VMEM(x_ref.shape, x_ref.dtype), DMA)


def _scoped_twice(x_ref: Any, o_ref: Any) -> None:
    def first(buffer: Any) -> None:
        buffer[...] = x_ref[...] * 2
        o_ref[...] = buffer[...]

    def second(buffer: Any) -> None:
        buffer[...] = o_ref[...] + 1
        o_ref[...] = buffer[...] * buffer[...]

    pl.run_scoped(first, pltpu.VMEM(x_ref.shape, x_ref.dtype))
    pl.run_scoped(second, pltpu.VMEM(x_ref.shape, x_ref.dtype))


def _scoped_value(x_ref: Any, o_ref: Any) -> None:
    """The scope has a result."""

    def body(counter: Any) -> Any:
        counter[0] = 5
        counter[0] += 2
        return counter[0]

    o_ref[...] = x_ref[...] + pl.run_scoped(body, pltpu.SMEM((1,), jnp.int32)).astype(x_ref.dtype)


def _scoped_in_loop(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)

    def step(i: Any, _: Any) -> Any:
        def body(buffer: Any, sem: Any) -> None:
            rows = pl.ds(pl.multiple_of(i * 8, 8), 8)
            pltpu.async_copy(x_ref.at[rows], buffer, sem).wait()
            o_ref[...] += buffer[...]

        pl.run_scoped(body, pltpu.VMEM((8, 128), x_ref.dtype), DMA)
        return 0

    lax.fori_loop(0, x_ref.shape[0] // 8, step, 0)


def _signalled(x_ref: Any, o_ref: Any, sem: Any) -> None:
    """A regular semaphore of the own core."""
    pl.semaphore_signal(sem, 1)
    o_ref[...] = x_ref[...] + 1
    pl.semaphore_wait(sem, 1)


def _signalled_by_amounts(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pl.semaphore_signal(sem, 3)
    pl.semaphore_signal(sem, 2)
    pl.semaphore_wait(sem, 4)
    count = pl.semaphore_read(sem)
    pl.semaphore_wait(sem, 1)
    o_ref[...] = x_ref[...] + count.astype(x_ref.dtype)


def _signalled_array(x_ref: Any, o_ref: Any, sems: Any) -> None:
    for i in range(3):
        pl.semaphore_signal(sems.at[i], i + 1)
    for i in (2, 1, 0):
        pl.semaphore_wait(sems.at[i], i + 1)
    o_ref[...] = x_ref[...] * 2


def _scopes() -> Iterator[Program]:
    rows: dict[str, tuple[Kernel, Any, list[Any]]] = {
        "scoped": (_scoped, anywhere(), []),
        "scoped_twice": (_scoped_twice, vmem(), []),
        "scoped_value": (_scoped_value, vmem(), []),
        "signalled": (_signalled, vmem(), [pltpu.SemaphoreType.REGULAR]),
        "signalled_by_amounts": (_signalled_by_amounts, vmem(), [pltpu.SemaphoreType.REGULAR]),
        "signalled_array": (_signalled_array, vmem(), [pltpu.SemaphoreType.REGULAR((3,))]),
    }
    for dtype in ("f32", "i32"):
        for name, (kernel, spec, scratch) in rows.items():
            yield _program(
                f"{name}_{dtype}",
                on_refs(kernel, struct(dtype, 16, 128), in_specs=[spec], scratch_shapes=scratch),
                small(dtype, 16, 128),
            )
        yield _program(
            f"scoped_in_loop_{dtype}",
            on_refs(_scoped_in_loop, struct(dtype, 8, 128), in_specs=[anywhere()]),
            small(dtype, 40, 128),
        )


# --- scalars arrive by DMA ---


def _into_smem(x_ref: Any, y_ref: Any, o_ref: Any, scalars: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref, scalars, sem).wait()
    o_ref[...] = y_ref[...] * scalars[0, 2] + scalars[0, 100]


def _smem() -> Iterator[Program]:
    for dtype in ("f32", "i32"):
        yield _program(
            f"into_smem_{dtype}",
            on_refs(
                _into_smem,
                struct(dtype, 8, 128),
                in_specs=[anywhere(), vmem()],
                scratch_shapes=[pltpu.SMEM((1, 128), DTYPES[dtype]), DMA],
            ),
            small(dtype, 1, 128),
            small(dtype, 8, 128),
        )


PROGRAMS: tuple[Program, ...] = (
    *_moves(),
    *_slices(),
    *_dynamic(),
    *_in_flight(),
    *_scopes(),
    *_smem(),
)
