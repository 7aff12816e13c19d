"""(case, kernel, point) -> Timings: fresh operands for every trace, XLA beside, values judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from conformance.benchmarks import Point, xla_target
from conformance.case import Case, Kernel
from conformance.chips import Chip
from conformance.judge import of_failure, of_values
from conformance.modes import Call
from conformance.numerics import Arithmetic, Reference
from conformance.roofline import NoPeak, Roofline, roofline
from conformance.serve import bind
from conformance.targets import XLA, Standing, Target
from conformance.timing import (
    FORWARD,
    MEASURED,
    SAMPLES,
    WHOLE,
    CallFailed,
    ClockError,
    Part,
    Sample,
    Timing,
    cotangents,
    device_target,
    stands,
)
from conformance.verdict import Status


class Times(Protocol):
    """Measures (`Stopwatch`) or predicts (`conformance.predictor`) kernels on one chip."""

    chip: Chip

    def time(self, case: Case, kernel: Kernel, point: Point, part: Part) -> tuple[Timing, Timing]:
        """The kernel's timing, and that of XLA's own code which it is compared with."""


class Timer(Protocol):
    """A mode that can time calls (`conformance.modes.tpu`)."""

    arithmetic: Arithmetic

    def attached(self) -> Chip:
        """The chip of this machine; ValueError for one that the suite does not know."""

    def samples(
        self, calls: Iterable[Call], part: Part, *, xla: bool = False
    ) -> Iterator[tuple[Sample, tuple[np.ndarray, ...]]]:
        """Times and values of all calls but the first."""


@dataclass(frozen=True)
class Timed:
    """What one test times.

    Attributes:
      chip: the attached one, or one that is predicted for.
      unavailable: why nothing can be timed; then there is no point.
    """

    kernel: Kernel
    chip: str = ""
    point: Point | None = None
    part: Part = WHOLE
    unavailable: str = ""


class Stopwatch:
    """Times kernels on one chip."""

    def __init__(
        self, timer: Timer, chip: Chip, targets: Sequence[Target], samples: int = SAMPLES
    ) -> None:
        """Args:
        targets: published times, for XLA's own code; a point has the kernel's.
        samples: traces for each time.
        """
        self._timer = timer
        self.chip = chip
        self._targets = targets
        self._samples = max(samples, SAMPLES)

    def time(self, case: Case, kernel: Kernel, point: Point, part: Part) -> tuple[Timing, Timing]:
        """The kernel's timing, and that of XLA's own code which it is compared with."""
        xla = self._time(case, kernel, point, part, xla=True)
        ours = self._time(case, kernel, point, part)
        return replace(ours, xla_seconds=xla.seconds), xla

    def _time(
        self, case: Case, kernel: Kernel, point: Point, part: Part, *, xla: bool = False
    ) -> Timing:
        timing, limits = untimed(
            case, kernel, point, part, self.chip, self._targets, MEASURED, xla=xla
        )
        try:
            return self._sampled(timing, limits, case, kernel, point, part)
        except CallFailed as e:
            decided = of_failure(e.failure)
            return replace(timing, status=decided["status"], why=decided["why"])
        except ClockError as e:
            return replace(timing, why=str(e))

    def _sampled(
        self,
        timing: Timing,
        limits: Roofline | None,
        case: Case,
        kernel: Kernel,
        point: Point,
        part: Part,
    ) -> Timing:
        """The timing with its samples; values are judged as they come, and not kept."""
        xla = timing.kernel == XLA
        taken, calls = [], _Calls(case, kernel, point, 1 + self._samples)
        for sample, values in self._timer.samples(calls, part, xla=xla):
            taken.append(replace(sample, results=None))
            if xla:
                continue
            decided = of_values(values, self._references(calls.last, part))
            if decided["status"] is not Status.PASS:
                why = f"values are WRONG: {decided['why']} (seed {calls.last.example.seed})"
                return replace(timing, status=decided["status"], why=why)
        kernels = [s.kernel for s in taken if s.kernel is not None]
        seconds = tuple(s.device for s in taken)
        standing, why = stands(seconds, limits, timing.target_seconds)
        return replace(
            timing,
            seconds=seconds,
            wall_seconds=tuple(s.wall for s in taken),
            kernel_seconds=tuple(kernels) if len(kernels) == len(taken) else (),
            status=None if xla else Status.PASS,
            standing=standing,
            why=why,
        )

    def _references(self, call: Call, part: Part) -> tuple[Reference, ...]:
        case, example = call.case, call.example
        found = case.reference(example.params, example.inputs, call.arrays, self._timer.arithmetic)
        if part.results:
            return tuple(found[n] for n in part.results)
        if not part.pulls_back:
            return found
        gradients = self._gradients(call, found)
        return gradients if part.name == "vjp" else (*found, *gradients)

    def _gradients(self, call: Call, results: Sequence[Reference]) -> tuple[Reference, ...]:
        case, example = call.case, call.example
        if case.gradient is None:
            raise ValueError(
                f"kernel {call.kernel.name!r} claims the property 'grad', but case {case.name!r} "
                "has no gradient"
            )
        drawn = cotangents([(r.value.shape, r.dtype) for r in results], example.seed)
        arithmetic = self._timer.arithmetic
        found = case.gradient(example.params, example.inputs, call.arrays, drawn, arithmetic)
        return tuple(g for g in found if g is not None)


def untimed(
    case: Case,
    kernel: Kernel,
    point: Point,
    part: Part,
    chip: Chip,
    targets: Sequence[Target],
    label: str,
    *,
    xla: bool,
) -> tuple[Timing, Roofline | None]:
    """A timing without a time yet, of the kernel or of XLA's own code, and what limits it."""
    # The contract's work is that of all its results, once.
    whole = part == WHOLE or (part.results and part.name == "both")
    limits = limits_of(case, point, chip) if whole else None
    target = xla_target(case, point.params, chip.name, targets) if xla else point.target
    seconds, described = device_target(target, limits) if part.name == FORWARD else (None, "")
    timing = Timing(
        case=case.name,
        kernel=XLA if xla else kernel.name,
        part=part.name,
        point=point.id,
        params=point.params,
        inputs=point.inputs,
        chip=chip.name,
        label=label,
        seconds=(),
        least_seconds=limits.least_seconds if limits else None,
        compute_seconds=limits.compute_seconds if limits else None,
        target_seconds=seconds,
        target=described,
        standing=Standing.INVALID,
    )
    return timing, limits


class _Calls:
    """Calls of one kernel at one point, each with arrays of its own, made when they are needed."""

    def __init__(self, case: Case, kernel: Kernel, point: Point, count: int) -> None:
        self._make: Callable[[int], Call] = lambda seed: bind(
            case, kernel, point.example(seed), None
        )
        self._count = count
        self.last: Call

    def __iter__(self) -> Iterator[Call]:
        for seed in range(self._count):
            self.last = self._make(seed)
            yield self.last


def limits_of(case: Case, point: Point, chip: Chip) -> Roofline | None:
    """The roofline of a point; None where JAX publishes no peak for its dtype."""
    dtype = str(point.params.get("dtype", "float32"))
    try:
        return roofline(case.work(point.params), chip, dtype)
    except NoPeak:
        return None
