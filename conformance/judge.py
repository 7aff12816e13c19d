"""(case, kernel, mode, example) -> Verdict. The only place that decides.

What a kernel raises is its verdict; an exception in an oracle, a bound or the engine escapes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import chips
from conformance.case import Case, Example, Kernel, Negative
from conformance.child import EngineError
from conformance.loading import negative_example
from conformance.modes import MODES
from conformance.numerics import Comparison, Reference, compare
from conformance.properties import PROPERTIES, References
from conformance.recent import Recent
from conformance.runner import Runner
from conformance.strategies import make_arrays
from conformance.verdict import Failure, Outcome, Status, Use, Verdict


class Judge:
    """Judges one worker's examples; keeps references and baselines that kernels share."""

    def __init__(self, runner: Runner, recent: int = 256) -> None:
        """Args:
        runner: where calls are executed.
        recent: how many examples' references and baselines are kept.
        """
        self._runner = runner
        self._references = Recent(recent)
        self._baselines = Recent(recent)

    def unavailable(self, mode: str, chip: str | None) -> str | None:
        """Why a mode or a property cannot be judged here, or None."""
        return self._runner.unavailable(mode, chip)

    def judge(
        self, case: Case, kernel: Kernel, mode: str, example: Example, chip: str | None = None
    ) -> Verdict:
        """The verdict of one kernel on one legal example."""
        start = time.perf_counter()
        outcome = self._runner.run(mode, chip, kernel, example, None)
        decided = self._decide(case, kernel, mode, chip, example, outcome)
        return _verdict(kernel, mode, chip, example, decided, time.perf_counter() - start)

    def judge_negative(
        self, case: Case, kernel: Kernel, mode: str, negative: Negative, chip: str | None = None
    ) -> Verdict:
        """The verdict on input that must be refused: REJECTED as expected, or WRONG."""
        start = time.perf_counter()
        example = negative_example(case, negative)
        outcome = self._runner.run(mode, chip, kernel, example, negative.name)
        decided = _decide_negative(negative, outcome)
        return _verdict(kernel, mode, chip, example, decided, time.perf_counter() - start)

    def judge_property(self, case: Case, kernel: Kernel, name: str, example: Example) -> Verdict:
        """The verdict on one property that a kernel claims, on one legal example."""
        start = time.perf_counter()
        chip = PROPERTIES[name].chip
        outcome = self._runner.run(name, chip, kernel, example, None)
        decided = self._decide_property(case, kernel, name, example, outcome)
        return _verdict(kernel, name, chip, example, decided, time.perf_counter() - start)

    def _decide_property(
        self, case: Case, kernel: Kernel, name: str, example: Example, outcome: Outcome
    ) -> dict[str, Any]:
        refusal = _of_refusal(kernel, example, outcome)
        if refusal is not None:
            return refusal
        chip = PROPERTIES[name].chip
        if chip is not None:
            return _of_compilation(kernel, example, chip, outcome)
        if outcome.failure is not None:
            return of_failure(outcome.failure)
        references = self._references.get(
            (name, example.id), lambda: PROPERTIES[name].references(case, example)
        )
        if not outcome.parts:
            raise EngineError(f"property {name} gave neither values nor a failure on {example.id}")
        numbers = {**outcome.evidence, "xla_ratio": self._xla_property(name, example, references)}
        verdict = _of_parts(outcome.parts, references)
        numbers["error_ratio"] = verdict.pop("ratio")
        return verdict | {"numbers": numbers}

    def _xla_property(self, name: str, example: Example, references: References) -> float | None:
        """As `_xla_ratio`, of the baseline's own parts; None where a property has none."""

        def compute() -> float | None:
            decided = _of_parts(self._runner.property_baseline(name, example), references)
            if decided["status"] is not Status.PASS:
                raise EngineError(
                    f"XLA's own result breaks the bound of property {name} on {example.id}: "
                    f"{decided['why']}; the case's reference, bound or baseline is wrong"
                )
            return decided["ratio"]

        return self._baselines.get((name, example.id), compute)

    def _decide(
        self,
        case: Case,
        kernel: Kernel,
        mode: str,
        chip: str | None,
        example: Example,
        outcome: Outcome,
    ) -> dict[str, Any]:
        refusal = _of_refusal(kernel, example, outcome)
        if refusal is not None:
            return refusal
        if not MODES[mode].values:
            return _of_compilation(kernel, example, chip, outcome)
        if outcome.failure is not None:
            if MODES[mode].chips and outcome.failure.phase in ("lower", "compile"):
                return _of_compilation(kernel, example, chip, outcome)
            return of_failure(outcome.failure)
        if MODES[mode].chips:
            compiled = _of_compilation(kernel, example, chip, outcome)
            if compiled["status"] is not Status.COMPILED:
                return compiled
        if outcome.values is None:
            raise EngineError(f"mode {mode} gave neither values nor a failure on {example.id}")
        references = self._reference(case, mode, example)
        numbers: dict[str, Any] = dict(outcome.evidence)
        numbers["xla_ratio"] = self._xla_ratio(mode, example, references)
        verdict = _of_stages(outcome, references)
        numbers["error_ratio"] = verdict.pop("ratio")
        verdict["numbers"] = numbers
        if verdict["status"] is Status.PASS and "fetches" in numbers:
            verdict |= self._of_fetches(case, kernel, example, numbers["fetches"])
        return verdict

    def _reference(self, case: Case, mode: str, example: Example) -> tuple[Reference, ...]:
        arithmetic = MODES[mode].arithmetic

        def compute() -> tuple[Reference, ...]:
            arrays = make_arrays(case, example)
            return case.reference(example.params, example.inputs, arrays, arithmetic)

        return self._references.get((example.id, arithmetic), compute)

    def _xla_ratio(
        self, mode: str, example: Example, references: tuple[Reference, ...]
    ) -> float | None:
        """XLA's achieved/allowed; EngineError when XLA breaks the bound that judges kernels."""

        def compute() -> float | None:
            values = self._runner.baseline(mode, example)
            decided = of_values(values, references)
            if decided["status"] is not Status.PASS:
                raise EngineError(
                    f"XLA's own result breaks the bound on {example.id}: {decided['why']}; "
                    "the case's reference, bound or baseline is wrong"
                )
            return decided["ratio"]

        return self._baselines.get((example.id, MODES[mode].arithmetic), compute)

    def _of_fetches(
        self, case: Case, kernel: Kernel, example: Example, counted: Mapping[str, int] | None
    ) -> dict[str, Any]:
        assert case.fetches is not None
        if counted is None:
            return {
                "status": Status.WRONG,
                "phase": "run",
                "why": "the kernel names its operands, but their block fetches cannot be counted: "
                "a scalar-prefetch operand is computed inside fn; make it in prepare",
            }
        allowed = case.fetches(example.params, make_arrays(case, example))
        for name in kernel.operands:
            if counted[name] > allowed.get(name, counted[name]):
                return {
                    "status": Status.WRONG,
                    "phase": "run",
                    "why": f"values are right, but {counted[name]} blocks of {name} are fetched "
                    f"where the contract allows {allowed[name]}",
                }
        return {}


def _of_refusal(kernel: Kernel, example: Example, outcome: Outcome) -> dict[str, Any] | None:
    """UNSUPPORTED where the kernel declares a limit and raises; None where it declares none.

    Where it does not raise, before anything is lowered, the declaration is wrong.
    """
    if kernel.refuses is None:
        return None
    try:
        declared = kernel.refuses(example)
    except Exception as e:
        why = f"refuses(example) raised {type(e).__name__}: {e}"
        return {"status": Status.WRONG, "phase": "prepare", "why": why}
    if declared is None:
        return None
    failure = outcome.failure
    if failure is None or failure.phase not in ("prepare", "trace"):
        why = f"declared as refused ({declared}), but nothing was raised"
        return {"status": Status.WRONG, "phase": "trace", "why": why}
    decided = of_failure(failure)
    if failure.status is not Status.REJECTED:
        return decided
    return decided | {"status": Status.UNSUPPORTED, "why": f"{declared}: {decided['why']}"}


def _of_compilation(
    kernel: Kernel, example: Example, chip: str | None, outcome: Outcome
) -> dict[str, Any]:
    """COMPILED, a refusal, or UNSUPPORTED where the kernel declared the refusal.

    A declaration is a claim: where the compiler accepts what the kernel calls unsupported, the
    declaration is wrong.
    """
    numbers = {"numbers": outcome.evidence}
    try:
        claim = declared(kernel, example, chip)
    except Exception as e:
        why = f"unsupported(example, chip) raised {type(e).__name__}: {e}"
        return {"status": Status.WRONG, "phase": "compile", "why": why} | numbers
    if outcome.failure is None:
        if claim is None:
            return {"status": Status.COMPILED} | numbers
        why = f"declared unsupported ({claim}), but the compiler accepts it"
        return {"status": Status.WRONG, "phase": "compile", "why": why} | numbers
    decided = of_failure(outcome.failure) | numbers
    if claim is not None and outcome.failure.status in (Status.REJECTED, Status.RESOURCE):
        return decided | {"status": Status.UNSUPPORTED, "why": f"{claim}: {decided['why']}"}
    return decided


def declared(kernel: Kernel, example: Example, chip: str | None) -> str | None:
    """Why the kernel says that it does not support an example on a chip, or None."""
    if kernel.unsupported is None or chip is None:
        return None
    return kernel.unsupported(example, chips.get(chip))


def limit(kernel: Kernel, example: Example, chip: str) -> str | None:
    """What the kernel says that it cannot do, everywhere or on a chip; None if it can. What
    raises instead of saying so is told when it is judged."""
    try:
        refused = kernel.refuses(example) if kernel.refuses is not None else None
        return refused or declared(kernel, example, chip)
    except Exception as e:
        return f"unsupported or refuses raised {type(e).__name__}: {e}"


def of_failure(failure: Failure) -> dict[str, Any]:
    """The verdict on a call without values, as fields of a Verdict."""
    kind = f"{failure.error}: " if failure.error else ""
    text = failure.clause or _shortened(failure.message)
    if failure.code:
        text = f"{failure.code}: {text}"
    part = f"{failure.part}: " if failure.part else ""
    return {
        "status": failure.status,
        "phase": failure.phase,
        "code": failure.code or failure.clause or None,
        "error": failure.error or None,
        "why": part + (f"{kind}{text}" or "an exception without a message"),
    }


def _shortened(message: str, limit: int = 1200) -> str:
    """The last part of a long message: interpreter errors end in the exception that matters."""
    message = message.strip()
    return message if len(message) <= limit else "... " + message[-limit:]


def of_values(values: tuple[np.ndarray, ...], references: tuple[Reference, ...]) -> dict[str, Any]:
    """The verdict on values, as fields of a Verdict, and the worst error by what is allowed."""
    if len(values) != len(references):
        why = f"{len(values)} results, expected {len(references)}"
        return {"status": Status.WRONG, "phase": "run", "why": why, "ratio": None}
    comparisons = [compare(v, r) for v, r in zip(values, references, strict=True)]
    ratios = [c.ratio for c in comparisons if c.ratio is not None]
    ratio = max(ratios) if len(ratios) == len(comparisons) else None
    wrong = [(n, c) for n, c in enumerate(comparisons) if not c.ok]
    if not wrong:
        return {"status": Status.PASS, "ratio": ratio}
    number, first = wrong[0]
    return {
        "status": Status.WRONG,
        "phase": "run",
        "why": _which(number, len(values), first),
        "ratio": ratio,
    }


def _of_stages(outcome: Outcome, references: tuple[Reference, ...]) -> dict[str, Any]:
    """Of the first form that is wrong, with whose fault that is; else of the last form."""
    for stage in outcome.stages:
        decided = of_values(stage.values, references)
        if decided["status"] is not Status.PASS:
            return decided | {"why": f"{decided['why']}; {stage.blame}"}
    assert outcome.values is not None
    return of_values(outcome.values, references)


def _of_parts(parts: tuple[Use, ...], references: References) -> dict[str, Any]:
    """Of the first part that is wrong, named; else PASS with the worst ratio of all."""
    ratios = []
    for part in parts:
        reference = references[part.name]
        if reference is None:
            continue
        decided = of_values(part.values, reference)
        if decided["status"] is not Status.PASS:
            return decided | {"why": f"{part.name}: {decided['why']}"}
        ratios.append(decided["ratio"])
    known = [r for r in ratios if r is not None]
    return {"status": Status.PASS, "ratio": max(known) if known else None}


def _which(number: int, count: int, comparison: Comparison) -> str:
    return comparison.why if count == 1 else f"result {number}: {comparison.why}"


def _decide_negative(negative: Negative, outcome: Outcome) -> dict[str, Any]:
    """Refused in the right phase, with the right error and words; anything else is WRONG."""
    asked = f"{negative.error} in phase {negative.phase!r} matching {negative.match!r}"
    failure = outcome.failure
    if failure is None:
        why = f"accepted, but the contract asks for {asked}"
        return {"status": Status.WRONG, "phase": negative.phase, "why": why}
    decided = of_failure(failure)
    if failure.status not in (Status.REJECTED, Status.RESOURCE):
        return decided
    as_asked = (
        failure.phase == negative.phase
        and negative.error in (failure.error, failure.code, failure.status)
        and re.search(negative.match, failure.message)
    )
    if as_asked:
        return decided | {"expected": True}
    why = f"refused with {failure.error} in phase {failure.phase!r}: {failure.message[:300]}; "
    return decided | {"status": Status.WRONG, "why": f"{why}the contract asks for {asked}"}


def _verdict(
    kernel: Kernel,
    mode: str,
    chip: str | None,
    example: Example,
    decided: Mapping[str, Any],
    seconds: float,
) -> Verdict:
    return Verdict(
        case=kernel.case,
        kernel=kernel.name,
        mode=mode,
        chip=chip,
        example=example.id,
        params=example.params,
        inputs=example.inputs,
        seed=example.seed,
        seconds=seconds,
        **decided,
    )
