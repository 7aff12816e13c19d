"""What a kernel's verdicts in one mode (on one chip) come to, and the words for it.

Shared by the suite's own test and the test file of a vendored folder; pytest is told of it by
`outcome.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from conformance.case import Case, Kernel
from conformance.expectations import waive
from conformance.judge import Judge
from conformance.plan import Column, Plan
from conformance.verdict import Status, Verdict

# As many failing examples as a reader takes in.
_SHOWN = 5


@dataclass(frozen=True)
class Advice:
    """How a reader goes on from a failure.

    Attributes:
      replay: the shell command that judges a verdict's example again.
      rest: where the failures are that a message leaves out; may be "".
    """

    replay: Callable[[Verdict], str]
    rest: str = ""


@dataclass(frozen=True)
class Conclusion:
    """What a test is told.

    Attributes:
      outcome: "passed", "failed", "skipped" or "xfailed".
      text: why; "" for what passed.
    """

    outcome: str
    text: str = ""


def conform(
    judge: Judge,
    plan: Plan,
    kernel: Kernel,
    column: Column,
    write: Callable[[Verdict], None],
    advice: Advice,
) -> Conclusion:
    """Judges every example of a kernel in a column; one that fails does not end the others.

    Args:
      write: is given each verdict as it comes.
    """
    mode, chip = column
    reason = judge.unavailable(mode, chip)
    if reason is not None:
        if plan.modes_by_name:
            return Conclusion("failed", f"mode {mode} was asked for but is UNAVAILABLE: {reason}")
        return Conclusion("skipped", f"UNAVAILABLE: {reason}")
    verdicts = []
    for verdict in _judged(judge, plan.cases[kernel.case], kernel, column, plan):
        verdicts.append(waive(verdict, plan.expectations))
        write(verdicts[-1])
    return concluded(verdicts, advice)


def _judged(
    judge: Judge, case: Case, kernel: Kernel, column: Column, plan: Plan
) -> Iterator[Verdict]:
    mode, chip = column
    for example in plan.examples(kernel, mode):
        yield judge.judge(case, kernel, mode, example, chip)
    for negative in plan.negatives(kernel, mode, chip):
        yield judge.judge_negative(case, kernel, mode, negative, chip)


def concluded(verdicts: Sequence[Verdict], advice: Advice) -> Conclusion:
    """What the verdicts on a kernel in one column come to."""
    if not verdicts:
        why = "none of the selected examples is of this case, or affordable in this mode"
        return Conclusion("skipped", why)
    failed = [v for v in verdicts if v.failed]
    if failed:
        return Conclusion("failed", explain(failed, len(verdicts), advice))
    run = [v for v in verdicts if not v.expected]
    if run and all(v.numbers.get("pallas_calls") == 0 for v in run):
        why = "fn called pl.pallas_call on no example: it is not a Pallas kernel"
        return Conclusion("failed", why)
    waived = [v for v in verdicts if v.status is Status.WAIVED]
    if waived:
        why = f"{len(waived)} of {len(verdicts)} examples WAIVED: {waived[0].why}"
        return Conclusion("xfailed", why)
    if not any(v.passed or v.expected for v in verdicts):
        return Conclusion("skipped", f"{verdicts[0].status}: {verdicts[0].why}")
    return Conclusion("passed")


def explain(failed: Sequence[Verdict], judged: int, advice: Advice) -> str:
    """A message that is enough to reproduce the failures."""
    first = failed[0]
    where = first.mode if first.chip is None else f"{first.mode}@{first.chip}"
    parts = [f"{first.case}/{first.kernel} in {where}: {len(failed)} of {judged} examples failed"]
    parts += [_one(v, advice) for v in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        more = len(failed) - _SHOWN
        parts.append(f"... and {more} more {advice.rest}".rstrip())
    return "\n".join(parts)


def _one(verdict: Verdict, advice: Advice) -> str:
    point = ", ".join(f"{k}={v}" for k, v in verdict.params.items())
    phase = f" in phase {verdict.phase}" if verdict.status is Status.REJECTED else ""
    return (
        f"  {verdict.status}{phase}: {verdict.why}\n"
        f"    {point}; inputs {verdict.inputs}, seed {verdict.seed}\n"
        f"    replay: {advice.replay(verdict)}"
    )
