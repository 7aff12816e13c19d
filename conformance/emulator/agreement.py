"""Executing a kernel under conditions that must not matter, and saying which one did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from conformance.emulator.dma import Hang
from conformance.emulator.grid import HARSH, PLAIN, Conditions, LeftOver
from conformance.emulator.memory import OutOfBounds

Values = tuple[np.ndarray, ...]

_FORBIDDEN = (OutOfBounds, Hang, LeftOver)


class Defect(Exception):
    """What a kernel does that no kernel may do; the message says what."""


# One difference from PLAIN each, and what it means when it shows.
_CAUSES: tuple[tuple[Conditions, str], ...] = (
    (
        Conditions(poison=HARSH.poison),
        "depends on memory that was never written (padding, scratch, or a block outside the array)",
    ),
    (
        Conditions(late_copies=True),
        "depends on when a DMA happens between its start and its wait: a wait is missing, or "
        "what it copies is changed meanwhile",
    ),
    (
        Conditions(early_fetch=True),
        "depends on a block being fetched after the steps just before have written it",
    ),
    (
        Conditions(own_cores=True),
        "depends on the order, or on the shared memory, of grid points along `parallel` axes",
    ),
)


def agreed(results: Callable[[Conditions], Values]) -> Values:
    """What a kernel gives under opposite conditions.

    Args:
      results: executes the kernel, and what is done with its results, under given conditions.
        (What a single call leaves in places that nobody reads may well differ.)

    Raises:
      Defect: the two executions differ, or one did what a kernel must not do.
    """
    plain, harsh = _attempt(results, PLAIN), _attempt(results, HARSH)
    number = _differing(plain, harsh)
    if number is None:
        return plain
    for conditions, cause in _CAUSES:
        try:
            shows = _differing(plain, results(conditions)) is not None
        except _FORBIDDEN:
            shows = True
        if shows:
            raise Defect(f"result {number} {cause}")
    raise Defect(f"result {number} depends on conditions that the chip leaves open")


def _attempt(results: Callable[[Conditions], Values], conditions: Conditions) -> Values:
    try:
        return results(conditions)
    except OutOfBounds as e:
        raise Defect(f"out of bounds: {e}") from e
    except (Hang, LeftOver) as e:
        raise Defect(str(e)) from e


def _differing(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> int | None:
    """The first result whose bits differ, NaN payloads aside."""
    for number, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.tobytes() != y.tobytes():
            same = x == y
            if x.dtype.kind not in "iub":
                same = same | ((x != x) & (y != y))
            if not np.all(same):
                return number
    return None
