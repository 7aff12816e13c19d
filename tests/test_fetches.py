"""Block fetches of the reference masked matmul: what the simulator counts is what the mask says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from conformance.examples import for_case
from conformance.judge import Judge
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.runner import Runner
from conformance.strategies import make_arrays

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


UNCOUNTABLE = """
from conformance import Kernel
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

KERNEL = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).find("masked_matmul", "prefetch_maps")


def fn(*arrays, **options):
    return KERNEL.fn(*(a + 0 for a in arrays), **options)


KERNELS = (
    Kernel(
        case="masked_matmul",
        name="computed",
        fn=fn,
        prepare=lambda *arrays, **options: KERNEL.prepare(*arrays, **options),
        operands=KERNEL.operands,
    ),
)
"""


def test_fetches_that_cannot_be_counted_are_told(tmp_path):
    """The kernel asks for them by naming its operands."""
    subject = tmp_path / "computed.py"
    subject.write_text(UNCOUNTABLE)
    kernel = load_subject(str(subject), tuple(load_cases())).kernels[0]
    runner = Runner(str(subject), (), 120.0, None)
    try:
        example = for_case(CASE, "smoke", 0)[0]
        verdict = Judge(runner).judge(CASE, kernel, "tpu-interpret", example)
    finally:
        runner.close()
    assert verdict.failed and "cannot be counted" in verdict.why
