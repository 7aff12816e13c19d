"""`pytest --benchmark` without a TPU: every time is predicted, and called so."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jsonschema
import pytest

from conformance import chips, compiler
from conformance.benchmarks import Point
from conformance.loading import DEFAULT_SUBJECT, load_subject, schema
from conformance.predictor import Predictor
from conformance.runner import Runner
from conformance.schedule import ACCURACY, DMA_LATENCY, Prediction, Unpredicted, bandwidth, clock
from conformance.targets import XLA, Standing, load_targets
from conformance.timing import WHOLE
from conformance.verdict import Failure, Status

V5E = chips.get("v5e")
SIZES = {"m": 4096, "k": 4096, "n": 4096}
POINT = Point(
    id="a",
    case="matmul",
    params=SIZES | {"bm": 512, "bk": 1024, "bn": 1024, "dtype": "bfloat16"},
    inputs="normal",
)
LEAST = 2 * 4096**3 / 197e12

compiles = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)


def prediction(seconds: float) -> Prediction:
    return Prediction(
        chip="v5e",
        seconds=seconds,
        operations=(),
        clock=clock(V5E),
        latency=DMA_LATENCY,
        bandwidth=bandwidth(V5E),
        limits=(),
    )


@pytest.fixture
def predicted(cases):
    """Timings of a kernel and of XLA for which the model says what it is told to say."""

    def time(says, target: float | None = None):
        asked = []

        def predict(chip, kernel, example, part, *, xla=False):
            asked.append(xla)
            return prediction(2 * LEAST) if xla else says

        subject = load_subject(DEFAULT_SUBJECT, tuple(cases))
        kernel = subject.find("matmul", "scratch_accumulator")
        published = None
        if target is not None:
            published = SimpleNamespace(id="t", value=target, measured="device time")
        point = SimpleNamespace(**vars(POINT) | {"target": published, "example": POINT.example})
        predictor = Predictor(SimpleNamespace(predict=predict), V5E, ())
        first = predictor.time(cases["matmul"], kernel, point, WHOLE)
        predictor.time(cases["matmul"], kernel, point, WHOLE)
        assert asked == [True, False, False]  # XLA's time does not depend on the kernel
        return first

    return time


def test_a_time_is_called_predicted_and_stands_beside_xla(predicted):
    ours, xla = predicted(prediction(1.25 * LEAST), target=1.3 * LEAST)
    assert (ours.label, xla.label) == ("predicted", "predicted")
    assert (ours.kernel, xla.kernel) == ("scratch_accumulator", XLA)
    assert ours.of_peak == LEAST / ours.seconds[0] == 1 / 1.25
    assert ours.xla_ratio == 2 / 1.25
    assert ours.standing is Standing.ON_TARGET
    assert ours.status is None  # no values were judged
    jsonschema.validate(json.loads(json.dumps(ours.row() | {"subject": "s"})), schema("timings"))


@pytest.mark.parametrize(("over", "standing"), [(0.9, "ON_TARGET"), (1.1, "BELOW_TARGET")])
def test_less_than_the_accuracy_of_the_model_is_no_difference(predicted, over, standing):
    target = 1.5 * LEAST
    ours, _ = predicted(prediction(target * (1 + over * ACCURACY.value)), target)
    assert ours.standing == standing
    assert ours.failed == (standing == "BELOW_TARGET")


def test_a_time_that_the_model_cannot_give_is_nobodys_failure(predicted):
    for says in (Unpredicted(chip="v5e", reason="it waits"), prediction(LEAST / 2)):
        ours, _ = predicted(says, target=LEAST)
        assert ours.standing is Standing.INVALID
        assert not ours.failed
    assert "above the roofline" in ours.why


@pytest.mark.parametrize("status", (Status.REJECTED, Status.RESOURCE, Status.CRASH))
def test_a_kernel_that_does_not_compile_fails(predicted, status):
    failure = Failure(status=status, phase="compile", error="", message="no", code="E1001")
    ours, _ = predicted(failure)
    assert (ours.status, ours.failed) == (status, True)
    assert "E1001" in ours.why


@compiles
def test_published_times_are_predicted_within_the_accuracy(cases):
    """The rows of 4096 in large blocks, none of which a constant was fitted to."""
    runner = Runner(DEFAULT_SUBJECT, (), 300.0, None)
    predictor = Predictor(runner, V5E, load_targets(cases))
    errors = []
    for target in load_targets(cases):
        if target.id not in ("plain-512x1024x1024-4096", "relu-512x1024x1024-4096"):
            continue
        kernel = load_subject(DEFAULT_SUBJECT, tuple(cases)).find(target.case, target.kernel)
        point = Point(
            id=target.id, case=target.case, params=target.params, inputs="normal", target=target
        )
        for timing in predictor.time(cases[target.case], kernel, point, WHOLE):
            if timing.target_seconds is not None:
                errors.append(timing.seconds[0] / timing.target_seconds - 1)
    runner.close()
    assert len(errors) == 3  # XLA is published for plain only
    assert max(map(abs, errors)) <= ACCURACY.value


@compiles
def test_the_run_says_predicted_everywhere(python, tmp_path):
    """A kernel of a gradient in three parts, and one that integers steer."""
    small = "m=256,k=256,n=256,bm=128,bk=128,bn=128,dtype=bfloat16,inputs=normal,seed=0"
    run = python(
        *("-m", "pytest", "-p", "no:cacheprovider", "--benchmark", f"--report={tmp_path}"),
        *(f"--benchmark-json={tmp_path / 'b.json'}", "--cases=matmul_grad,dsd"),
        *(f"--replay=matmul_grad/{small}", "--replay=dsd/smoke,inputs=normal,seed=0"),
        "--kernel=custom_vjp,dynamic_blocks",
        timeout=300,
    )
    assert run.returncode == 0, run.stdout
    assert "test_conforms" not in run.stdout
    rows = [json.loads(r) for r in (tmp_path / "benchmarks.jsonl").read_text().splitlines()]
    assert {r["kernel"] for r in rows} == {"custom_vjp", "dynamic_blocks", XLA}
    assert {r["label"] for r in rows} == {"predicted"}
    assert all(r["seconds"] for r in rows if r["kernel"] != XLA)
    times = json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    assert times and all(t["name"].endswith("@v5e-predicted]") for t in times)
    assert all(t["stats"]["mean"] == t["extra_info"]["median_seconds"] for t in times)
    assert (tmp_path / "roofline-v5e.png").is_file()
