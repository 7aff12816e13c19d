"""A pytest plugin that puts a TPU in place where there is none.

Kernels are interpreted on the CPU, and a clock that knows no time tells what it is told to tell:
everything else is as on a TPU host. Points and targets come from the files in POINTS and TARGETS.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from conformance import chips, plan
from conformance.modes import MODES
from conformance.modes.tpu import Tpu
from conformance.timing import Sample, check

MILLISECOND = 1e-3


class FakeClock:
    """Calls the program; a device time that depends on the operands, and not on any clock."""

    def __init__(self, seconds: Callable[[tuple[Any, ...]], float]) -> None:
        self._seconds = seconds
        self.programs: list[Any] = []

    def sample(self, program: Any, arguments: tuple[Any, ...]) -> Sample:
        results = jax.block_until_ready(program(*arguments))
        self.programs.append(program)
        device = self._seconds(arguments)
        return check(Sample(wall=2 * device, device=device, results=results))


class Interpreted(Tpu):
    """Mode tpu with the interpreter for a device."""

    def unavailable(self, chip):
        return None

    def attached(self):
        return chips.get("v5e")

    def run(self, call, chip):
        return MODES["interpret"].run(call, chip)

    def samples(self, calls, part, *, xla=False):
        with pltpu.force_tpu_interpret_mode(True):
            yield from super().samples(calls, part, xla=xla)


def by_rows(arguments: tuple[Any, ...]) -> float:
    """A millisecond, but a femtosecond, which no chip can reach, for operands of 24 rows."""
    return 1e-15 if arguments[0].shape[0] == 24 else MILLISECOND


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: Any) -> None:
    MODES["tpu"] = Interpreted(FakeClock(by_rows))
    plan.load_points = functools.partial(plan.load_points, file=Path(os.environ["POINTS"]))
    plan.load_targets = functools.partial(plan.load_targets, file=Path(os.environ["TARGETS"]))
