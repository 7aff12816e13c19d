"""Other people's kernels: the shipped subjects, and what the engine offers for them."""

from __future__ import annotations

import fnmatch
import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance import Kernel, judge
from conformance.case import Example
from conformance.expectations import load
from conformance.loading import load_cases, load_subject
from conformance.plan import Options, make_plan
from conformance.test_conformance import conclude
from conformance.verdict import Failure, Outcome, Status, Verdict

SUBJECTS = Path(__file__).resolve().parent.parent / "subjects"
EXAMPLE = Example(case="add", params={"m": 8}, inputs="exact", seed=0)


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


each_subject = pytest.mark.parametrize(
    "name", ["jax_ops", pytest.param("tokamax_ops", marks=needs("tokamax"))]
)

# ------------------------------------------------------------------ the shipped subjects


@each_subject
def test_every_expectation_speaks_of_a_kernel(name):
    kernels = load_subject(str(SUBJECTS / f"{name}.py"), tuple(load_cases())).kernels
    for entry in load(SUBJECTS / f"{name}.expectations.toml", version("jax")):
        found = [
            k
            for k in kernels
            if fnmatch.fnmatchcase(k.case, entry.case) and fnmatch.fnmatchcase(k.name, entry.kernel)
        ]
        assert found, str(entry)
        assert entry.link.startswith("https://github.com/"), str(entry)


@each_subject
def test_smoke_examples_pass_or_are_explained(name, python):
    run = python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--subject={SUBJECTS / name}.py",
        *("--mode", "interpret", "--tier", "smoke", "--max-examples", "0"),
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "PASS" in run.stdout


# ------------------------------------------------------------------ what the engine offers


def verdict_of(refuses, outcome):
    kernel = Kernel(case="add", name="k", fn=lambda x: x, refuses=refuses)
    return judge._of_refusal(kernel, EXAMPLE, outcome)


def raised(phase: str) -> Outcome:
    failure = Failure(
        status=Status.REJECTED, phase=phase, error="ValueError", message="8 rows at least"
    )
    return Outcome(failure=failure)


def test_a_declared_refusal_is_unsupported():
    decided = verdict_of(lambda example: "few rows", raised("trace"))
    assert decided["status"] is Status.UNSUPPORTED
    assert decided["why"] == "few rows: ValueError: 8 rows at least"


@pytest.mark.parametrize("outcome", [Outcome(compiled=True), raised("compile"), raised("run")])
def test_a_declared_refusal_must_raise_before_anything_is_lowered(outcome):
    decided = verdict_of(lambda example: "few rows", outcome)
    assert decided["status"] is Status.WRONG
    assert "nothing was raised" in decided["why"]


def test_what_is_not_declared_is_judged_as_ever():
    assert verdict_of(None, raised("trace")) is None
    assert verdict_of(lambda example: None, raised("trace")) is None


def test_a_declaration_that_raises_is_wrong():
    decided = verdict_of(lambda example: example.params["n"], raised("trace"))
    assert decided["status"] is Status.WRONG
    assert "KeyError" in decided["why"]


def passed(calls: int) -> Verdict:
    return Verdict(
        case="add",
        kernel="k",
        mode="interpret",
        chip=None,
        example="add/x",
        params={},
        inputs="exact",
        seed=0,
        status=Status.PASS,
        numbers={"pallas_calls": calls},
    )


def test_a_fallback_must_not_be_a_kernel():
    conclude([passed(0)], "s", pallas=False)
    with pytest.raises(pytest.fail.Exception, match="declared as pallas=False"):
        conclude([passed(0), passed(1)], "s", pallas=False)


TWO = """
from conformance import Kernel

def add(x, y):
    return x + y

KERNELS = (
    Kernel(case="add", name="plain", fn=add, pallas=False),
    Kernel(case="add", name="kernel", fn=add),
)
"""
ENTRY = """
[[expectation]]
case = "add"
status = "WRONG"
signature = "x"
reason = "{}"
link = "https://example.org"
"""


def options(subject: Path) -> Options:
    return Options(
        modes=("all",),
        chips=("v5e",),
        subject=str(subject),
        cases=(),
        kernels=(),
        max_examples=None,
        tier="ci",
        replay=(),
        timeout=1.0,
        expectations=None,
    )


def test_a_fallback_is_judged_where_xla_runs(tmp_path):
    (tmp_path / "two.py").write_text(TWO)
    plan = make_plan(options(tmp_path / "two.py"))
    plain, kernel = plan.kernels
    assert [mode for mode, _ in plan.columns_of(plain)] == ["aot", "interpret", "tpu"]
    assert plan.columns_of(kernel) == plan.columns
    columns = [*((plain, c) for c in plan.columns_of(plain))]
    columns += [(kernel, c) for c in plan.columns]
    rows = [{"case": "add", "kernel": k.name, "mode": m, "chip": c} for k, (m, c) in columns]
    assert plan.covered_by(rows)
    assert not plan.covered_by(rows[1:])


def test_a_subject_has_expectations_of_its_own(tmp_path):
    (tmp_path / "two.py").write_text(TWO)
    assert make_plan(options(tmp_path / "two.py")).expectations == ()
    (tmp_path / "expectations.toml").write_text(ENTRY.format("of the folder"))
    (entry,) = make_plan(options(tmp_path / "two.py")).expectations
    assert entry.reason == "of the folder"
    (tmp_path / "two.expectations.toml").write_text(ENTRY.format("its own"))
    (entry,) = make_plan(options(tmp_path / "two.py")).expectations
    assert entry.reason == "its own"
