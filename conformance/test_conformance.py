"""The test functions that pytest parametrizes: does a kernel conform in a mode (on a chip), and
has it a property that it claims."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from conformance.case import Case, Kernel
from conformance.expectations import waive
from conformance.judge import Judge
from conformance.plan import Column, Plan
from conformance.properties import PROPERTIES
from conformance.report.lines import Lines
from conformance.verdict import Status, Verdict

# As many failing examples as a reader takes in; all of them are in results.jsonl.
_SHOWN = 5


def test_conforms(
    judged_kernel: Kernel,
    column: Column,
    plan: Plan,
    judge: Judge,
    lines: Lines,
) -> None:
    """Every example is judged; one that fails does not end the others."""
    mode, chip = column
    _require(f"mode {mode}", judge.unavailable(mode, chip), plan.modes_by_name)
    case = plan.cases[judged_kernel.case]
    _report(_judged(judge, case, judged_kernel, column, plan), plan, lines)


def test_has_property(
    judged_kernel: Kernel, claimed: str, plan: Plan, judge: Judge, lines: Lines
) -> None:
    """The property is tried on a few examples; one that fails does not end the others."""
    reason = judge.unavailable(claimed, PROPERTIES[claimed].chip)
    _require(f"property {claimed}", reason, plan.properties_by_name)
    case, examples = plan.cases[judged_kernel.case], plan.property_examples(judged_kernel, claimed)
    verdicts = (judge.judge_property(case, judged_kernel, claimed, e) for e in examples)
    _report(verdicts, plan, lines)


def _require(what: str, unavailable: str | None, by_name: bool) -> None:
    """Skips what cannot be judged here; fails when it was asked for by name."""
    if unavailable is None:
        return
    if by_name:
        pytest.fail(f"{what} was asked for but is UNAVAILABLE: {unavailable}", pytrace=False)
    pytest.skip(f"UNAVAILABLE: {unavailable}")


def _report(judged: Iterable[Verdict], plan: Plan, lines: Lines) -> None:
    verdicts = []
    for verdict in judged:
        verdicts.append(waive(verdict, plan.expectations))
        lines.write(verdicts[-1])
    conclude(verdicts, plan.subject.spec, plan.case_files)


def _judged(
    judge: Judge, case: Case, kernel: Kernel, column: Column, plan: Plan
) -> Iterator[Verdict]:
    mode, chip = column
    for example in plan.examples(kernel, mode):
        yield judge.judge(case, kernel, mode, example, chip)
    for negative in plan.negatives(kernel, mode, chip):
        yield judge.judge_negative(case, kernel, mode, negative, chip)


def conclude(verdicts: list[Verdict], subject: str, case_files: tuple[str, ...] = ()) -> None:
    """Fails, skips, xfails or passes for a kernel's verdicts in one column."""
    if not verdicts:
        pytest.skip("none of the selected examples is of this case, or affordable in this mode")
    failed = [v for v in verdicts if v.failed]
    if failed:
        command = _command(subject, case_files)
        pytest.fail(explain(failed, len(verdicts), command), pytrace=False)
    run = [v for v in verdicts if not v.expected]
    if run and all(v.numbers.get("pallas_calls") == 0 for v in run):
        why = "fn called pl.pallas_call on no example: it is not a Pallas kernel"
        pytest.fail(why, pytrace=False)
    waived = [v for v in verdicts if v.status is Status.WAIVED]
    if waived:
        pytest.xfail(f"{len(waived)} of {len(verdicts)} examples WAIVED: {waived[0].why}")
    if not any(v.passed or v.expected for v in verdicts):
        first = verdicts[0]
        pytest.skip(f"{first.status}: {first.why}")


def _command(subject: str, case_files: tuple[str, ...]) -> str:
    """What runs this suite on the subject, for a shell: the conftest of a checkout loads the
    plugin, an installed suite is named."""
    checkout = (Path(__file__).resolve().parent.parent / "conftest.py").is_file()
    found = "pytest" if checkout else "pytest -p conformance.plugin --pyargs conformance"
    options = [f"--subject={subject}", *(f"--cases={file}" for file in case_files)]
    return " ".join([found, *map(shlex.quote, options)])


def explain(failed: list[Verdict], judged: int, command: str) -> str:
    """A message that is enough to reproduce the failures."""
    first = failed[0]
    where = first.mode if first.chip is None else f"{first.mode}@{first.chip}"
    parts = [f"{first.case}/{first.kernel} in {where}: {len(failed)} of {judged} examples failed"]
    parts += [_one(v, command) for v in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        more = len(failed) - _SHOWN
        parts.append(f"... and {more} more (--report=DIR keeps all of them in results.jsonl)")
    return "\n".join(parts)


def _one(verdict: Verdict, command: str) -> str:
    point = ", ".join(f"{k}={v}" for k, v in verdict.params.items())
    option = f"--mode {verdict.mode}" + (f" --chip {verdict.chip}" if verdict.chip else "")
    if verdict.mode in PROPERTIES:
        option = f"--properties {verdict.mode}"
    phase = f" in phase {verdict.phase}" if verdict.status is Status.REJECTED else ""
    return (
        f"  {verdict.status}{phase}: {verdict.why}\n"
        f"    {point}; inputs {verdict.inputs}, seed {verdict.seed}\n"
        f"    replay: {command} {option} "
        f"--kernel {verdict.case}/{verdict.kernel} --replay {verdict.example}"
    )
