"""The test functions that pytest parametrizes: does a kernel conform in a mode (on a chip), and
has it a property that it claims, and is it as fast as what is published."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.benchmarks import Point
from conformance.case import Kernel
from conformance.conclusion import Advice, concluded, conform, has_property
from conformance.judge import Judge, limit
from conformance.outcome import tell
from conformance.plan import Column, Plan
from conformance.properties import PROPERTIES
from conformance.report.lines import Lines
from conformance.report.timings import Timings
from conformance.stopwatch import Timed, Times
from conformance.targets import Standing
from conformance.timing import FORWARD, MEASURED, Timing
from conformance.verdict import Status, Verdict


def test_conforms(
    judged_kernel: Kernel,
    column: Column,
    plan: Plan,
    judge: Judge,
    lines: Lines,
) -> None:
    """Every example is judged; one that fails does not end the others."""
    advice = _advice(plan.subject.spec, plan.case_files)
    tell(conform(judge, plan, judged_kernel, column, lines.write, advice))


def test_has_property(
    judged_kernel: Kernel, claimed: str, plan: Plan, judge: Judge, lines: Lines
) -> None:
    """The property is tried on a few examples; one that fails does not end the others."""
    advice = _advice(plan.subject.spec, plan.case_files)
    tell(has_property(judge, plan, judged_kernel, claimed, lines.write, advice))


def conclude(
    verdicts: list[Verdict], subject: str, case_files: tuple[str, ...] = (), pallas: bool = True
) -> None:
    """Fails, skips, xfails or passes for a kernel's verdicts in one column.

    Args:
      pallas: see `Kernel.pallas`.
    """
    tell(concluded(verdicts, _advice(subject, case_files), pallas))


# --------------------------------------------------------------------------- times


class DeviceTime:
    """A timer for pytest-benchmark that device time alone moves on."""

    __name__ = "device_time"

    def __init__(self) -> None:
        self._now = 0.0
        self._next: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self._now

    def record(self, benchmark: Any, seconds: Sequence[float]) -> None:
        """Each of `seconds` becomes a round of a `benchmark` fixture with this timer."""
        self._next = iter(seconds)
        benchmark.pedantic(self._advance, setup=self._reset, rounds=len(seconds))

    def _reset(self) -> None:
        self._now = 0.0

    def _advance(self) -> None:
        self._now = next(self._next)


DEVICE_TIME = DeviceTime()


@pytest.mark.benchmark(timer=DEVICE_TIME)
def test_meets_target(
    timed: Timed,
    plan: Plan,
    times: Mapping[str, Times],
    timing_lines: Timings,
    benchmark: Any,
) -> None:
    """A kernel is not slower on the device than published; XLA is timed beside, not judged.
    Without a TPU its time is predicted."""
    kernel, point = timed.kernel, timed.point
    if point is None:
        pytest.fail(f"nothing can be timed here, UNAVAILABLE: {timed.unavailable}", pytrace=False)
    claim = limit(kernel, point.example(0), timed.chip)
    if claim is not None:
        pytest.skip(f"{Status.UNSUPPORTED}: {claim}")
    case = plan.cases[kernel.case]
    ours, xla = times[timed.chip].time(case, kernel, point, timed.part)
    timing_lines.write(ours)
    timing_lines.write(xla)
    if ours.seconds:
        benchmark.extra_info.update(ours.row())
        DEVICE_TIME.record(benchmark, ours.seconds)
    if ours.failed:
        pytest.fail(too_slow(ours, point, plan), pytrace=False)
    if ours.standing is Standing.INVALID:
        pytest.skip(f"{ours.label}: {ours.why}")


def too_slow(timing: Timing, point: Point, plan: Plan) -> str:
    """A message with both numbers and the command that times this again."""
    part = "" if timing.part == FORWARD else f" ({timing.part})"
    where = "--tpu" if timing.label == MEASURED else f"--chip {timing.chip}"
    lines = [
        f"{timing.case}/{timing.kernel}{part} at {timing.point} on {timing.chip}, {timing.label}: "
        f"{timing.standing}: {timing.why}",
        *([f"  {timing.target}"] if timing.target else []),
        f"  {', '.join(f'{k}={v}' for k, v in timing.params.items())}; inputs {timing.inputs}",
        f"  again: {_command(plan.subject.spec, plan.case_files)} {where} --benchmark "
        f"--kernel {timing.case}/{timing.kernel} --replay {point.example(0).id}",
    ]
    return "\n".join(lines)


# --------------------------------------------------------------------------- messages


def _command(subject: str, case_files: tuple[str, ...]) -> str:
    """What runs this suite on the subject, for a shell: the conftest of a checkout loads the
    plugin, an installed suite is named."""
    checkout = (Path(__file__).resolve().parent.parent / "conftest.py").is_file()
    found = "pytest" if checkout else "pytest -p conformance.plugin --pyargs conformance"
    options = [f"--subject={subject}", *(f"--cases={file}" for file in case_files)]
    return " ".join([found, *map(shlex.quote, options)])


def _advice(subject: str, case_files: tuple[str, ...]) -> Advice:
    command = _command(subject, case_files)

    def replay(verdict: Verdict) -> str:
        option = f"--mode {verdict.mode}" + (f" --chip {verdict.chip}" if verdict.chip else "")
        if verdict.mode in PROPERTIES:
            option = f"--properties {verdict.mode}"
        return (
            f"{command} {option} "
            f"--kernel {verdict.case}/{verdict.kernel} --replay {verdict.example}"
        )

    return Advice(replay, "(--report=DIR keeps all of them in results.jsonl)")
