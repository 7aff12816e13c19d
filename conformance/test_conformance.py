"""The test function that pytest parametrizes: does a kernel conform in a mode (on a chip)."""

from __future__ import annotations

import shlex
from pathlib import Path

from conformance.case import Kernel
from conformance.conclusion import Advice, concluded, conform
from conformance.judge import Judge
from conformance.outcome import tell
from conformance.plan import Column, Plan
from conformance.report.lines import Lines
from conformance.verdict import Verdict


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


def conclude(verdicts: list[Verdict], subject: str, case_files: tuple[str, ...] = ()) -> None:
    """Fails, skips, xfails or passes for a kernel's verdicts in one column."""
    tell(concluded(verdicts, _advice(subject, case_files)))


def _advice(subject: str, case_files: tuple[str, ...]) -> Advice:
    """What runs this suite on the subject, for a shell: the conftest of a checkout loads the
    plugin, an installed suite is named."""
    checkout = (Path(__file__).resolve().parent.parent / "conftest.py").is_file()
    found = "pytest" if checkout else "pytest -p conformance.plugin --pyargs conformance"
    options = [f"--subject={subject}", *(f"--cases={file}" for file in case_files)]
    command = " ".join([found, *map(shlex.quote, options)])

    def replay(verdict: Verdict) -> str:
        chip = f" --chip {verdict.chip}" if verdict.chip else ""
        return (
            f"{command} --mode {verdict.mode}{chip} "
            f"--kernel {verdict.case}/{verdict.kernel} --replay {verdict.example}"
        )

    return Advice(replay, "(--report=DIR keeps all of them in results.jsonl)")
