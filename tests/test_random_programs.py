"""Random programs: the executor of compiler IR agrees with the interpreter on all that compile.

The environment variable RANDOM_PROGRAMS says how many are tried, and RANDOM_PROGRAMS_SEED which;
more of them are quicker tried by `python tests/random_programs.py --count 2000 --seed 3`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from random_programs import (
    KINDS,
    IllegalStep,
    Plan,
    checked,
    drawn,
    failures,
    parsed,
    program,
    run,
    smaller,
    summary,
)

from conformance import compiler

COUNT = int(os.environ.get("RANDOM_PROGRAMS", "60"))
SEED = int(os.environ.get("RANDOM_PROGRAMS_SEED", "0"))
# Of all programs; the compiler refuses about 30 %.
FEWEST_COMPILED = 0.5
# Of programs that compile.
MOST_UNSUPPORTED = 0.1

X = ((8, 128), "f32", -8, 8)

needs_compiler = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)


@pytest.fixture(scope="module")
def rows() -> Sequence[dict[str, Any]]:
    return run(COUNT, SEED, "v5e")


@needs_compiler
def test_random_programs_agree(rows: Sequence[dict[str, Any]]) -> None:
    assert not failures(rows), summary(rows)


@needs_compiler
def test_most_programs_are_executed(rows: Sequence[dict[str, Any]]) -> None:
    """Or else nothing is tested."""
    statuses = [row["status"] for row in rows]
    assert len(rows) == COUNT
    compiled = len(rows) - statuses.count("REJECTED") - statuses.count("RESOURCE")
    assert compiled >= FEWEST_COMPILED * COUNT, summary(rows)
    assert statuses.count("UNSUPPORTED") <= MOST_UNSUPPORTED * compiled, summary(rows)


def test_draws_are_the_same_every_time() -> None:
    first, again = (list(itertools.islice(drawn(3), 20)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(drawn(4), 20))


def test_draws_have_everything() -> None:
    found = list(itertools.islice(drawn(0), 300))
    assert {name for plan in found for name, *_ in plan.steps} == set(KINDS)
    assert any(plan.loop for plan in found)
    assert any(plan.ragged for plan in found)
    assert any(plan.load for plan in found)
    assert any(plan.store for plan in found)
    assert {len(plan.steps) for plan in found} == {1, 2, 3, 4}


def test_a_plan_survives_its_text() -> None:
    for plan in itertools.islice(drawn(0), 50):
        assert parsed(plan.text()) == plan


def test_a_plan_is_made_smaller_step_by_step() -> None:
    plan = Plan(inputs=(X, X), steps=(("binary", "add", 1), ("unary", "abs")), loop=2)
    found = list(smaller(plan))
    assert Plan(inputs=(X, X), steps=(("unary", "abs"),), loop=2) in found
    assert Plan(inputs=(X, X), steps=plan.steps) in found
    assert all(len(candidate.inputs) == 2 for candidate in found)  # the second one is added


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(inputs=(X,), steps=(("binary", "add", 1),)), "no such operand"),
        (Plan(inputs=(X,), steps=(("unary", "not"),)), "bits of a float"),
        (Plan(inputs=(X,), steps=(("unary", "square"),) * 4), "no longer exact"),
        (Plan(inputs=(X,), steps=(("function", "exp"), ("unary", "abs"))), "inexact"),
        (Plan(inputs=(X,), steps=(("lead", 2),), loop=2), "changes the type"),
        (Plan(inputs=(X,), rows=8, ragged=True, steps=(("roll", 0, 1, "tpu"),)), "mixes rows"),
        (Plan(inputs=(X,), steps=(("plus_step",),)), "no grid"),
    ],
)
def test_what_would_not_be_exact_is_not_drawn(plan: Plan, why: str) -> None:
    with pytest.raises(IllegalStep, match=why):
        checked(plan)


def test_arrays_are_within_the_interval_that_was_assumed() -> None:
    """The steps are done here, outside of a kernel."""
    for plan in itertools.islice(drawn(1), 40):
        made = program(plan).make(np.random.default_rng(0))
        for array, (shape, _, low, high) in zip(made, plan.inputs, strict=True):
            assert array.shape == shape
            assert low <= array.astype(np.int64).min() <= array.astype(np.int64).max() <= high
