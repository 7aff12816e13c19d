"""The judge is tested: every known-bad kernel is condemned, every odd but right one passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import mutants
import pytest
from mutant_table import (
    CHIPS,
    COMPILER_REFUSES,
    CONTROLS,
    MODES,
    MUTANTS,
    NO_KERNEL,
    Mutant,
)

from conformance.case import Example, Kernel
from conformance.examples import for_case
from conformance.judge import Judge
from conformance.loading import load_cases, load_subject
from conformance.modes import MODES as KNOWN
from conformance.runner import Runner
from conformance.test_conformance import conclude
from conformance.verdict import Status, Verdict

SUBJECT = str(Path(mutants.__file__).resolve())
CASES = load_cases()
# Points of a kernel that ought to pass; each costs a compile in each mode.
POINTS = 2
SECONDS = 120.0
# For kernels that hang: enough to start a process and compile.
FEW_SECONDS = 20.0


def in_modes(modes: str) -> pytest.MarkDecorator:
    """Parametrizes over (mutant, mode) for the modes that an attribute of each mutant lists."""
    pairs = [(mutant, mode) for mutant in MUTANTS for mode in getattr(mutant, modes)]
    names = [f"{mutant.name}-{mode}" for mutant, mode in pairs]
    return pytest.mark.parametrize(("mutant", "mode"), pairs, ids=names)


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> str | None:
    """Where compiled programs stay from run to run, as in a run of the suite itself."""
    kept = getattr(request.config, "cache", None)
    return None if kept is None else str(kept.mkdir("conformance-xla"))


@pytest.fixture(scope="module")
def judge(cache: str | None) -> Iterator[Judge]:
    runner = Runner(SUBJECT, (), SECONDS, cache)
    yield Judge(runner)
    runner.close()


@pytest.fixture
def impatient(cache: str | None) -> Iterator[Judge]:
    runner = Runner(SUBJECT, (), FEW_SECONDS, cache)
    yield Judge(runner)
    runner.close()


def examples(case: str, mode: str) -> list[Example]:
    """What a plain run judges."""
    return [e for e in for_case(CASES[case], "ci", None) if not e.modes or mode in e.modes]


def shown(mutant: Mutant, mode: str) -> list[Example]:
    """The examples on which the defect makes a difference."""
    return [e for e in examples(mutant.kernel.case, mode) if mutant.shows(e.params)]


def few(found: Iterable[Example]) -> list[Example]:
    """The examples of the first few points, with all their distributions."""
    points: dict[str, list[Example]] = {}
    for example in found:
        points.setdefault(repr(example.params), []).append(example)
    return [example for point in list(points.values())[:POINTS] for example in point]


def verdicts(judge: Judge, mutant: Mutant, mode: str, kind: str) -> Iterator[Verdict]:
    """Verdicts on the examples of one input kind, judged as they are asked for."""
    case, kernel = CASES[mutant.kernel.case], mutant.kernel
    if kind == "negative":
        for negative in case.negatives:
            if negative.phase in KNOWN[mode].phases:
                yield judge.judge_negative(case, kernel, mode, negative)
        return
    for example in shown(mutant, mode):
        if example.inputs == kind:
            yield judge.judge(case, kernel, mode, example, CHIPS.get(mode))


def condemned(judge: Judge, mutant: Mutant, mode: str, kind: str) -> Verdict:
    """The first verdict on an input kind that fails; there must be one."""
    judged = []
    for verdict in verdicts(judge, mutant, mode, kind):
        judged.append(verdict)
        if verdict.failed:
            return verdict
    assert judged, f"no {kind} example can show the defect: {mutant.defect}"
    raise AssertionError(f"survives {len(judged)} {kind} examples: {mutant.defect}")


@in_modes("killed_in")
def test_mutant_is_condemned(request: pytest.FixtureRequest, mutant: Mutant, mode: str) -> None:
    """By each input kind that ought to, and for its defect rather than for something else."""
    judge = request.getfixturevalue("impatient" if "TIMEOUT" in mutant.says else "judge")
    for kind in mutant.kinds(mode):
        verdict = condemned(judge, mutant, mode, kind)
        assert re.search(mutant.pattern(mode), f"{verdict.status}: {verdict.why}", re.DOTALL)


@in_modes("missed_in")
def test_blind_spot_is_still_there(judge: Judge, mutant: Mutant, mode: str) -> None:
    """Fails when a mode learns to see the defect: then it can be asked to."""
    found = few(shown(mutant, mode))
    assert found
    for example in found:
        verdict = judge.judge(CASES[example.case], mutant.kernel, mode, example, CHIPS.get(mode))
        if verdict.status is Status.REJECTED and mutant.name in COMPILER_REFUSES:
            pytest.skip(verdict.why)
        assert verdict.passed, f"{verdict.status}: {verdict.why}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", CONTROLS, ids=lambda k: f"{k.case}/{k.name}")
def test_control_passes(judge: Judge, kernel: Kernel, mode: str) -> None:
    judged = [
        judge.judge(CASES[kernel.case], kernel, mode, example, CHIPS.get(mode))
        for example in few(for_case(CASES[kernel.case], "smoke", POINTS))
    ]
    if mode == "emulate" and f"{kernel.case}/{kernel.name}" in COMPILER_REFUSES:
        judged = [verdict for verdict in judged if verdict.status is not Status.REJECTED]
    conclude(judged, SUBJECT)
    assert all(verdict.passed for verdict in judged)


def test_a_function_without_a_kernel_is_told(judge: Judge) -> None:
    """Its values are right, so that only the end of a run can tell."""
    case = CASES[NO_KERNEL.case]
    judged = [judge.judge(case, NO_KERNEL, "interpret", e) for e in for_case(case, "smoke", 0)]
    assert all(verdict.passed for verdict in judged)
    with pytest.raises(pytest.fail.Exception, match="not a Pallas kernel"):
        conclude(judged, SUBJECT)


def test_a_failure_leaves_nothing_behind(judge: Judge) -> None:
    """The simulator raises; were that to linger, right kernels would be condemned after it."""
    kernels = load_subject(SUBJECT, tuple(CASES))
    wrong = kernels.find("sum", "reduction_axis_first")
    right = kernels.find("sum", "at_once")
    example = for_case(CASES["sum"], "smoke", 0)[0]
    for _ in range(5):
        assert judge.judge(CASES["sum"], wrong, "tpu-interpret", example).failed
        assert judge.judge(CASES["sum"], right, "tpu-interpret", example).passed


def test_the_file_is_a_subject() -> None:
    assert load_subject(SUBJECT, tuple(CASES)).find("sum", "naive")


def test_every_case_has_mutants() -> None:
    assert {m.kernel.case for m in MUTANTS} == set(CASES)
    assert len(MUTANTS) >= 44


def test_every_input_kind_is_needed() -> None:
    """A kind that no mutant asks for has not been shown to work."""
    kinds = {e.inputs for case in CASES for e in examples(case, "interpret")}
    assert {kind for m in MUTANTS for kind in m.by} == kinds | {"negative"}


def test_defects_are_told_apart() -> None:
    assert len({(m.kernel.case, m.defect) for m in MUTANTS}) == len(MUTANTS)
