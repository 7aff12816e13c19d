"""Block fetches of the reference masked matmul: what the simulator counts is what the mask says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from conformance.examples import for_case
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.runner import Runner
from conformance.serve import make_arrays

CASE = load_cases()["masked_matmul"]
KERNEL = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).find("masked_matmul", "prefetch_maps")
POINTS = list(
    {repr(e.params): e for e in for_case(CASE, "ci", None) if e.inputs == "exact"}.values()
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner(DEFAULT_SUBJECT, (), 120.0, None)
    yield runner
    runner.close()


def test_counts_equal_what_the_mask_predicts(runner):
    """On every point, for every operand; and some mask saves something."""
    saved = 0
    for example in POINTS:
        outcome = runner.run("tpu-interpret", None, KERNEL, example, None)
        predicted = CASE.fetches(example.params, make_arrays(CASE, example))
        assert outcome.evidence["fetches"] == predicted, example
        dense = replace(example, params={**example.params, "mask": "all"})
        saved += CASE.fetches(dense.params, make_arrays(CASE, dense))["x"] - predicted["x"]
    assert saved > 0
