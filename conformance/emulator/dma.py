"""Copies between memories, and the semaphores that count them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from conformance.emulator.memory import Ref, allocate
from conformance.emulator.types import MemRef


class Hang(Exception):
    """A wait that nothing will ever end."""


def size_of(ref: Ref) -> int:
    """Bytes that a wait for a copy to this memref counts."""
    bits = ref.element.bits
    for n in ref.shape:
        bits *= n
    return bits // 8


@dataclass(frozen=True)
class _Copy:
    source: Ref
    target: Ref
    bytes: int

    def perform(self) -> None:
        self.target.write(self.source.read())


class Dma:
    """The DMA engine of a core.

    A copy may happen at any time between its start and the wait for it: at once, or, when `late`,
    at the wait. A kernel that reads its target before it waits, or changes its source, shows.
    """

    def __init__(self, late: bool) -> None:
        self._late = late
        self._pending: dict[tuple[int, int], deque[_Copy]] = {}
        self._allocated: list[Ref] = []

    def semaphores(self, of: MemRef, shape: tuple[int, ...]) -> Ref:
        """Semaphores that count 0."""
        made = allocate(of, shape, (0,))
        self._allocated.append(made)
        return made

    def start(self, source: Ref, target: Ref, semaphore: Ref) -> None:
        """Starts a copy that will signal the semaphore."""
        copy = _Copy(source, target, size_of(target))
        if self._late:
            self._pending.setdefault(semaphore.place, deque()).append(copy)
        else:
            copy.perform()
            self.signal(semaphore, copy.bytes)

    def signal(self, semaphore: Ref, amount: int) -> None:
        """Adds to a semaphore."""
        semaphore.buffer.words[self._word(semaphore)] += np.int64(amount).astype(np.uint32)

    def value(self, semaphore: Ref) -> int:
        """What a semaphore counts now."""
        return int(semaphore.buffer.words[self._word(semaphore)])

    def wait(self, semaphore: Ref, amount: int) -> None:
        """Takes from a semaphore; Hang when it can never count that much."""
        waiting = self._pending.get(semaphore.place)
        while waiting and self.value(semaphore) < amount:
            copy = waiting.popleft()
            copy.perform()
            self.signal(semaphore, copy.bytes)
        if self.value(semaphore) < amount:
            raise Hang(f"a wait for {amount} on a semaphore that stays at {self.value(semaphore)}")
        semaphore.buffer.words[self._word(semaphore)] -= amount

    def left_over(self) -> str | None:
        """What a kernel that has ended must not leave: copies without a wait, or signals."""
        count = sum(len(waiting) for waiting in self._pending.values())
        if count:
            return f"{count} DMAs were started and never waited for"
        counts = [int(n) for ref in self._allocated for n in ref.buffer.words if n]
        if counts:
            return f"semaphores were left at {counts}: a wait is missing"
        return None

    @staticmethod
    def _word(semaphore: Ref) -> int:
        return semaphore.word((0,) * len(semaphore.shape))
