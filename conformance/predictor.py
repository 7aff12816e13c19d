"""(case, kernel, point) -> Timings, predicted: compiled for a chip that is not here, XLA beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.benchmarks import Point
from conformance.case import Case, Kernel
from conformance.chips import Chip
from conformance.judge import of_failure
from conformance.roofline import Roofline
from conformance.runner import Runner
from conformance.schedule import ACCURACY, LABEL, Prediction, Unpredicted
from conformance.stopwatch import untimed
from conformance.targets import Target
from conformance.timing import Part, Timing, stands


class Predictor:
    """Predicts kernels for one chip; nothing is run, so no values are judged."""

    def __init__(self, runner: Runner, chip: Chip, targets: Sequence[Target]) -> None:
        """Args:
        targets: published times, for XLA's own code; a point has the kernel's.
        """
        self._runner = runner
        self.chip = chip
        self._targets = targets
        self._xla: dict[tuple[str, Part], Timing] = {}

    def time(self, case: Case, kernel: Kernel, point: Point, part: Part) -> tuple[Timing, Timing]:
        """The kernel's timing, and that of XLA's own code which it is compared with."""
        # XLA's does not depend on the kernel, so that all kernels of a case share it.
        key = (f"{case.name}/{point.id}", part)
        if key not in self._xla:
            self._xla[key] = self._time(case, kernel, point, part, xla=True)
        xla = self._xla[key]
        ours = self._time(case, kernel, point, part)
        return replace(ours, xla_seconds=xla.seconds), xla

    def _time(
        self, case: Case, kernel: Kernel, point: Point, part: Part, *, xla: bool = False
    ) -> Timing:
        timing, limits = untimed(
            case, kernel, point, part, self.chip, self._targets, LABEL, xla=xla
        )
        found = self._runner.predict(self.chip.name, kernel, point.example(0), part, xla=xla)
        if isinstance(found, Unpredicted):
            return replace(timing, why=f"not predicted: {found.reason}")
        if not isinstance(found, Prediction):
            decided = of_failure(found)
            return replace(timing, status=decided["status"], why=decided["why"])
        return _predicted(timing, limits, found)


def _predicted(timing: Timing, limits: Roofline | None, found: Prediction) -> Timing:
    """The timing with its time. What differs from a target by less than the model's accuracy is
    no difference, so that much is allowed."""
    allowed = timing.target_seconds
    if allowed is not None:
        allowed *= 1 + ACCURACY.value
    standing, why = stands((found.seconds,), limits, allowed)
    kernels = [o for o in found.operations if o.kernel]
    cycles = sum(o.cycles + o.stalled for o in kernels)
    return replace(
        timing,
        seconds=(found.seconds,),
        kernel_seconds=(cycles / found.clock.value,) if kernels else (),
        standing=standing,
        why=why,
        limits=found.limits,
    )
