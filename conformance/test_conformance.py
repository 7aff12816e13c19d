"""The test function that pytest parametrizes: does a kernel conform in a mode (on a chip)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.case import Case, Kernel
from conformance.expectations import waive
from conformance.judge import Judge
from conformance.plan import Column, Plan
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
    reason = judge.unavailable(mode, chip)
    if reason is not None:
        if plan.modes_by_name:
            pytest.fail(f"mode {mode} was asked for but is UNAVAILABLE: {reason}", pytrace=False)
        pytest.skip(f"UNAVAILABLE: {reason}")
    case = plan.cases[judged_kernel.case]
    verdicts = []
    for verdict in _judged(judge, case, judged_kernel, column, plan):
        verdicts.append(waive(verdict, plan.expectations))
        lines.write(verdicts[-1])
    conclude(verdicts, plan.subject.spec, plan.case_files, judged_kernel.pallas)


def _judged(
    judge: Judge, case: Case, kernel: Kernel, column: Column, plan: Plan
) -> Iterator[Verdict]:
    mode, chip = column
    for example in plan.examples(kernel, mode):
        yield judge.judge(case, kernel, mode, example, chip)
    for negative in plan.negatives(kernel, mode, chip):
        yield judge.judge_negative(case, kernel, mode, negative, chip)


def conclude(
    verdicts: list[Verdict], subject: str, case_files: tuple[str, ...] = (), pallas: bool = True
) -> None:
    """Fails, skips, xfails or passes for a kernel's verdicts in one column.

    Args:
      pallas: see `Kernel.pallas`.
    """
    if not verdicts:
        pytest.skip("none of the selected examples is of this case, or affordable in this mode")
    failed = [v for v in verdicts if v.failed]
    if failed:
        command = _command(subject, case_files)
        pytest.fail(explain(failed, len(verdicts), command), pytrace=False)
    run = [v for v in verdicts if not v.expected]
    called = [bool(v.numbers.get("pallas_calls", pallas)) for v in run]
    if pallas and run and not any(called):
        why = "fn called pl.pallas_call on no example: it is not a Pallas kernel"
        pytest.fail(f"{why}; an XLA fallback is declared with pallas=False", pytrace=False)
    if not pallas and any(called):
        pytest.fail("declared as pallas=False, but fn calls pl.pallas_call", pytrace=False)
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
    chip = f" --chip {verdict.chip}" if verdict.chip else ""
    phase = f" in phase {verdict.phase}" if verdict.status is Status.REJECTED else ""
    return (
        f"  {verdict.status}{phase}: {verdict.why}\n"
        f"    {point}; inputs {verdict.inputs}, seed {verdict.seed}\n"
        f"    replay: {command} --mode {verdict.mode}{chip} "
        f"--kernel {verdict.case}/{verdict.kernel} --replay {verdict.example}"
    )
