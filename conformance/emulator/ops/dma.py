"""DMAs and semaphores of one core.

Source: jaxlib/mosaic/dialect/tpu/tpu_ops.td. A DMA semaphore counts what arrived, a regular one
is counted by hand. When a copy happens, between its start and the wait for it, is not defined;
`core.dma` decides.
"""

from __future__ import annotations

from typing import Any

from conformance.emulator.dma import size_of
from conformance.emulator.memory import Ref
from conformance.emulator.ops import Function, Op, Unknown, operation
from conformance.emulator.types import MemRef


def _only_here(op: Op, extra: tuple[int, ...]) -> None:
    if any(extra):
        raise Unknown(f"{op.name} to another device or core")


@operation("tpu.enqueue_dma", core=True)
def _start(op: Op) -> Function:
    """Groups: source, source semaphore, target, target semaphore, device, core[, subcore]."""
    groups = op.segments()
    _only_here(op, groups[4:])
    has_source_semaphore = bool(groups[1])

    def start(core: Any, source: Ref, *rest: Ref) -> None:
        target, semaphore = rest[1:] if has_source_semaphore else rest
        core.dma.start(source, target, semaphore)

    return start


@operation("tpu.wait_dma2", core=True)
def _wait(op: Op) -> Function:
    """Groups: semaphore, source, target, device, core."""
    groups = op.segments()
    _only_here(op, groups[3:])
    return lambda core, semaphore, source, target: core.dma.wait(semaphore, size_of(target))


@operation("tpu.wait_dma", core=True)
def _wait_old(op: Op) -> Function:
    """Either the form of older versions (semaphore, memref) or that of `enqueue_dma`."""
    groups = op.segments()
    if not groups:
        return lambda core, semaphore, target: core.dma.wait(semaphore, size_of(target))
    _only_here(op, groups[4:])
    if groups[1] and not groups[3]:
        raise Unknown(f"{op.name} for a source")
    return lambda core, *refs: core.dma.wait(refs[-1], size_of(refs[-2]))


@operation("tpu.sem_signal", core=True)
def _signal(op: Op) -> Function:
    groups = op.segments()
    _only_here(op, groups[2:])
    return lambda core, semaphore, amount: core.dma.signal(semaphore, amount)


@operation("tpu.sem_wait", core=True)
def _semaphore_wait(op: Op) -> Function:
    return lambda core, semaphore, amount: core.dma.wait(semaphore, amount)


@operation("tpu.sem_read", core=True)
def _read(op: Op) -> Function:
    return lambda core, semaphore: core.dma.value(semaphore)


@operation("tpu.sem_alloc", core=True)
def _allocate(op: Op) -> Function:
    result = op.results[0]
    assert isinstance(result, MemRef)
    shape = tuple(n or 0 for n in result.shape)
    return lambda core: core.dma.semaphores(result, shape)


@operation(
    "tpu.trace_start", "tpu.trace_stop", "tpu.trace_value", "tpu.log", "tpu.log_buffer", "tpu.delay"
)
def _nothing(op: Op) -> Function:
    return lambda *values: None
