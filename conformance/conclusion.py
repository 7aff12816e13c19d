"""What a kernel's verdicts in one mode (on one chip) come to, and the words for it.

Shared by the suite's own test and the test file of a vendored folder; pytest is told of it by
`outcome.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from conformance.case import Case, Kernel
from conformance.expectations import waive
from conformance.judge import Judge
from conformance.plan import Column, Plan
from conformance.properties import PROPERTIES
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
    missing = _missing(f"mode {mode}", judge.unavailable(mode, chip), plan.modes_by_name)
    if missing is not None:
        return missing
    verdicts = _judged(judge, plan.cases[kernel.case], kernel, column, plan)
    return concluded(_written(verdicts, plan, write), advice, kernel.pallas)


def has_property(
    judge: Judge,
    plan: Plan,
    kernel: Kernel,
    name: str,
    write: Callable[[Verdict], None],
    advice: Advice,
) -> Conclusion:
    """Tries a property that a kernel claims on a few examples; see `conform`."""
    reason = judge.unavailable(name, PROPERTIES[name].chip)
    missing = _missing(f"property {name}", reason, plan.properties_by_name)
    if missing is not None:
        return missing
    case, examples = plan.cases[kernel.case], plan.property_examples(kernel, name)
    verdicts = (judge.judge_property(case, kernel, name, e) for e in examples)
    return concluded(_written(verdicts, plan, write), advice, kernel.pallas)


def _missing(what: str, unavailable: str | None, by_name: bool) -> Conclusion | None:
    """What cannot be judged here is skipped, but failed when it was asked for by name."""
    if unavailable is None:
        return None
    if by_name:
        return Conclusion("failed", f"{what} was asked for but is UNAVAILABLE: {unavailable}")
    return Conclusion("skipped", f"UNAVAILABLE: {unavailable}")


def _written(
    judged: Iterable[Verdict], plan: Plan, write: Callable[[Verdict], None]
) -> list[Verdict]:
    verdicts = []
    for verdict in judged:
        verdicts.append(waive(verdict, plan.expectations))
        write(verdicts[-1])
    return verdicts


def _judged(
    judge: Judge, case: Case, kernel: Kernel, column: Column, plan: Plan
) -> Iterator[Verdict]:
    mode, chip = column
    for example in plan.examples(kernel, mode):
        yield judge.judge(case, kernel, mode, example, chip)
    for negative in plan.negatives(kernel, mode, chip):
        yield judge.judge_negative(case, kernel, mode, negative, chip)


def concluded(verdicts: Sequence[Verdict], advice: Advice, pallas: bool = True) -> Conclusion:
    """What the verdicts on a kernel in one column come to.

    Args:
      pallas: see `Kernel.pallas`.
    """
    if not verdicts:
        why = "none of the selected examples is of this case, or affordable in this mode"
        return Conclusion("skipped", why)
    failed = [v for v in verdicts if v.failed]
    if failed:
        return Conclusion("failed", explain(failed, len(verdicts), advice))
    run = [v for v in verdicts if not v.expected]
    called = [bool(v.numbers.get("pallas_calls", pallas)) for v in run]
    if pallas and run and not any(called):
        why = "fn called pl.pallas_call on no example: it is not a Pallas kernel"
        return Conclusion("failed", f"{why}; an XLA fallback is declared with pallas=False")
    if not pallas and any(called):
        return Conclusion("failed", "declared as pallas=False, but fn calls pl.pallas_call")
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
