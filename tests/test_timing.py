"""Timings: arithmetic and standing, programs that are timed, where, and how they are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from device import MILLISECOND, FakeClock, Interpreted

from conformance import Kernel, chips, compiler
from conformance.benchmarks import Point, load_points, parts, points_of, xla_target
from conformance.loading import DEFAULT_SUBJECT, LoadError, load_subject, schema
from conformance.modes import _staging, _timing
from conformance.numerics import equal
from conformance.report.lines import read
from conformance.report.timings import Timings, render
from conformance.roofline import Roofline
from conformance.schedule import DISPATCH
from conformance.serve import bind
from conformance.stopwatch import Stopwatch, limits_of
from conformance.targets import XLA, Standing, load_targets
from conformance.timing import FORWARD, WHOLE, Part, Timing, device_target, stands

V5E = chips.get("v5e")
# A second of arithmetic, half a second of traffic.
LIMITS = Roofline(operations=8, bytes=4, peak=8.0, bandwidth=8.0)


@pytest.fixture(scope="module")
def targets(cases):
    return load_targets(cases)


@pytest.fixture(scope="module")
def points(cases):
    return load_points(cases)


@pytest.fixture(scope="module")
def kernels(cases):
    return load_subject(DEFAULT_SUBJECT, tuple(cases)).kernels


def find(kernels, case: str, name: str) -> Kernel:
    return next(k for k in kernels if (k.case, k.name) == (case, name))


# --------------------------------------------------------------------------- arithmetic


def timing(**changed) -> Timing:
    fields = {
        "case": "add",
        "kernel": "tiles",
        "point": "a",
        "params": {"m": 8, "dtype": "float32"},
        "inputs": "normal",
        "chip": "v5e",
        "label": "measured",
        "seconds": (4.0, 2.0, 3.0),
        "least_seconds": 1.0,
        "compute_seconds": 0.75,
        "xla_seconds": (6.0,),
        "standing": Standing.NO_TARGET,
    }
    return Timing(**fields | changed)


def test_numbers_of_a_timing():
    found = timing()
    assert (found.median, found.spread) == (3.0, 2.0 / 3.0)
    assert (found.of_peak, found.of_roofline) == (0.25, 1.0 / 3.0)
    assert (found.xla, found.xla_ratio) == (6.0, 2.0)


def test_a_timing_without_a_time():
    found = timing(seconds=(), standing=Standing.INVALID, why="a reason")
    assert [found.median, found.spread, found.of_peak, found.xla_ratio] == [None] * 4
    assert found.failed


@pytest.mark.parametrize(
    ("seconds", "limits", "target", "expected"),
    [
        ((2.0, 3.0, 9.0), LIMITS, 3.0, Standing.ON_TARGET),
        ((2.0, 3.5, 9.0), LIMITS, 3.0, Standing.BELOW_TARGET),
        ((2.0, 3.0, 9.0), LIMITS, None, Standing.NO_TARGET),
        ((1.0, 3.0, 9.0), LIMITS, 3.0, Standing.ON_TARGET),
        ((0.99, 3.0, 9.0), LIMITS, 3.0, Standing.INVALID),
        ((0.99, 3.0, 9.0), None, 3.0, Standing.ON_TARGET),
        ((0.99, 3.5, 9.0), None, 3.0, Standing.BELOW_TARGET),
        ((0.99, 3.5, 9.0), None, None, Standing.NO_TARGET),
    ],
)
def test_standing_is_of_the_median_and_one_impossible_sample_spoils_it(
    seconds, limits, target, expected
):
    found, why = stands(seconds, limits, target)
    assert found is expected
    assert bool(why) == (expected in (Standing.BELOW_TARGET, Standing.INVALID))


def test_dispatch_is_taken_off_wall_times(targets):
    target = next(t for t in targets if t.id == "plain-512x1024x1024-4096")
    seconds, text = device_target(target)
    assert seconds == target.value - DISPATCH.value
    assert "less 0.107 ms of dispatch (fitted)" in text
    seconds, text = device_target(replace(target, measured="device time"))
    assert (seconds, text) == (target.value, f"{target.id}: published device time")
    assert device_target(None) == (None, "")


def test_a_target_that_is_mostly_dispatch_is_none(targets):
    target = next(t for t in targets if t.id == "plain-512x1024x1024-1024")
    seconds, text = device_target(target)
    assert seconds is None and "is mostly dispatch" in text


def test_a_target_for_less_work_is_none(targets, cases):
    """The published sparse run stored a tenth of the blocks, the pattern three sevenths."""
    target = next(t for t in targets if t.id == "sparse-16384")
    point = Point(id="a", case="dsd", params=target.params, inputs="normal", target=target)
    seconds, text = device_target(target, limits_of(cases["dsd"], point, V5E))
    assert seconds is None and "published for less work" in text


# --------------------------------------------------------------------------- where


def test_every_kernel_has_a_point_that_takes_long_enough(kernels, points, targets, cases):
    """By the roofline of v5e; what must fit into VMEM as a whole cannot take that long."""
    small = {("add", "whole"), ("dynamic_slice", "block_aligned")}
    for kernel in kernels:
        case = cases[kernel.case]
        found = points_of(kernel, "v5e", case, kernels, points, targets)
        times = [limits_of(case, p, V5E).least_seconds for p in found]
        assert max(times) > (1e-5 if (kernel.case, kernel.name) in small else 1e-4), kernel.name
        assert max(times) < 0.05, kernel.name


def test_a_target_is_its_kernels(kernels, points, targets, cases):
    def ids(case: str, name: str, among=kernels) -> set[str]:
        kernel = Kernel(case=case, name=name, fn=len)
        found = points_of(kernel, "v5e", cases[case], among, points, targets)
        return {p.id for p in found if p.target}

    assert len(ids("matmul_transpose_rhs", "swapaxes")) == 6
    assert not ids("matmul_transpose_rhs", "dot_general")
    mine = (Kernel(case="matmul_transpose_rhs", name="mine", fn=len),)
    assert len(ids("matmul_transpose_rhs", "mine", mine)) == 6


def test_a_point_with_a_target_is_not_timed_twice(kernels, points, targets, cases):
    kernel = find(kernels, "matmul", "scratch_accumulator")
    found = points_of(kernel, "v5e", cases["matmul"], kernels, points, targets)
    assert len({repr(p.params) for p in found}) == len(found) == 6
    assert all(p.target for p in found)
    other = points_of(kernel, "v6e", cases["matmul"], kernels, points, targets)
    assert [p.target for p in other] == [None]


def test_the_target_of_xla_does_not_depend_on_blocks(targets, cases):
    params = next(t for t in targets if t.id == "plain-128x128x128-4096").params
    assert xla_target(cases["matmul"], params, "v5e", targets).id == "xla-4096"
    assert xla_target(cases["matmul"], params, "v6e", targets) is None
    assert xla_target(cases["matmul"], {**params, "m": 64}, "v5e", targets) is None


ROW = {
    "id": "a",
    "case": "add",
    "params": {"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"},
    "inputs": "normal",
    "why": "of a test",
}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW | {"id": "A"}], "benchmark 0/id"),
        ([{k: v for k, v in ROW.items() if k != "inputs"}], "'inputs' is a required property"),
        ([ROW | {"parts": {"backward": [0]}}], "benchmark 0/parts"),
        ([ROW | {"case": "ad"}], "no case 'ad'"),
        ([ROW | {"params": ROW["params"] | {"m": 0}}], "m must be an integer"),
        ([ROW | {"inputs": "zeros"}], "inputs 'zeros' is not one of"),
        ([ROW, ROW], "'a' of add is there twice"),
    ],
)
def test_a_bad_point_is_named(cases, tmp_path, rows, message):
    file = tmp_path / "benchmarks.json"
    file.write_text(json.dumps(rows))
    with pytest.raises(LoadError, match=message):
        load_points(cases, file)


def test_a_file_of_points_that_cannot_be_read(cases, tmp_path):
    with pytest.raises(LoadError, match="not readable as JSON"):
        load_points(cases, tmp_path / "none.json")


# --------------------------------------------------------------------------- what is timed

MATMUL = {"m": 256, "k": 256, "n": 256, "bm": 128, "bk": 128, "bn": 128, "dtype": "float32"}


def call_of(cases, kernel: Kernel, params: dict, seed: int = 0):
    point = Point(id="a", case=kernel.case, params=params, inputs="normal")
    return bind(cases[kernel.case], kernel, point.example(seed), None)


@pytest.fixture
def lowered(monkeypatch):
    """Makes `_timing` lower for a TPU, which needs no libtpu, instead of compiling."""

    def lower(traced):
        return traced.stage.lower(lowering_platforms=("tpu",))

    monkeypatch.setattr(_staging, "compile_traced", lower)


PROGRAMS = """
import jax
from conformance import chips, compiler
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.modes._timing import _selected

fn = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).find("matmul_grad", "custom_vjp").fn
x = jax.ShapeDtypeStruct((256, 256), "float32")
for results in ((0,), (1, 2), ()):
    part = _selected(lambda x, y, dz: fn(x, y, dz, bm=128, bk=128, bn=128), results)
    lowered = compiler.lower_for(part, [x, x, x], chips.get("v5e"))
    compiled = compiler.compile_lowered(lowered, compiler.dump_dir())
    print(sum(b.kernel for b in compiled.bundles), end=" ")
"""


@pytest.mark.skipif(compiler.availability() is not None, reason="libtpu cannot be used here")
def test_a_part_computes_its_results_alone(python, tmp_path):
    """The forward product is one kernel, the pullback two: the compiler drops the rest."""
    environment = {k: v for k, v in compiler.environment(tmp_path).items() if v is not None}
    run = python("-c", PROGRAMS, **environment)
    assert run.stdout == "1 2 3 ", run.stderr


def test_xla_is_asked_for_no_precision(lowered, cases, kernels):
    """Unlike the baseline that kernels are judged beside, which is at HIGHEST."""
    call = call_of(cases, find(kernels, "matmul_grad", "custom_vjp"), MATMUL)
    text = _timing._compiled(_timing.baseline(call, WHOLE), call).compiled.as_text()
    assert text.count("stablehlo.dot_general") == 3
    assert "HIGHEST" not in text
    arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in call.arrays]
    highest = jax.jit(lambda *a: call.case.baseline(MATMUL, *a)).lower(*arrays).as_text()
    assert "HIGHEST" in highest


def test_precision_is_dropped_inside_of_control_flow():
    def product(x):
        return jax.lax.cond(True, lambda x: jnp.dot(x, x, precision="highest"), lambda x: x, x)

    closed = jax.make_jaxpr(jax.jit(product))(jnp.ones((2, 2)))
    assert "HIGHEST" in str(closed)
    assert "HIGHEST" not in str(_timing.at_default_precision(closed.jaxpr))


def test_operands_are_the_contracts_own(cases, kernels):
    """y of x @ y.T stays (n, k), on the device before the call."""
    params = MATMUL | {"n": 128}
    call = call_of(cases, find(kernels, "matmul_transpose_rhs", "dot_general"), params)
    clock = FakeClock(lambda arguments: MILLISECOND)
    list(Interpreted(clock).samples([call, call], WHOLE))
    list(Interpreted(clock).samples([call, call], WHOLE, xla=True))
    for program in clock.programs:
        assert [a.shape for a in jax.tree.leaves(program.in_avals)] == [(256, 256), (128, 256)]


class Recording(FakeClock):
    """Keeps the operands, too."""

    def __init__(self) -> None:
        super().__init__(lambda arguments: MILLISECOND)
        self.operands = []

    def sample(self, program, arguments):
        self.operands.append(jax.tree.leaves(arguments))
        return super().sample(program, arguments)


ADD = {"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"}


def time_at(cases, kernel: Kernel, params: dict, clock, part: Part = WHOLE, case=None, **point):
    stopwatch = Stopwatch(Interpreted(clock), V5E, ())
    where = Point(id="a", case=kernel.case, params=params, inputs="normal", **point)
    return stopwatch.time(case or cases[kernel.case], kernel, where, part)


def test_each_trace_has_operands_of_its_own(cases, kernels):
    clock = Recording()
    ours, xla = time_at(cases, find(kernels, "add", "whole"), ADD, clock)
    assert (ours.status, ours.standing) == ("PASS", Standing.NO_TARGET)
    assert ours.seconds == xla.seconds == (MILLISECOND,) * 5
    assert len(clock.operands) == 10
    for given in (clock.operands[:5], clock.operands[5:]):
        first = [np.asarray(x).tobytes() for x, _ in given]
        assert len(set(first)) == 5
        assert all(np.asarray(x).std() > 0.5 for operands in given for x in operands)


@pytest.mark.parametrize("name", ("forward", "vjp", "both"))
def test_gradients_of_a_contract_are_timed_in_parts(cases, kernels, name):
    results = {"forward": (0,), "vjp": (1, 2), "both": (0, 1, 2)}
    kernel = find(kernels, "matmul_grad", "custom_vjp")
    (part,) = [
        p
        for p in parts(kernel, Point(id="a", case="", params={}, inputs="", parts=results))
        if p.name == name
    ]
    clock = FakeClock(lambda arguments: MILLISECOND)
    ours, xla = time_at(cases, kernel, MATMUL, clock, part, parts=results)
    assert ours.why == ""
    assert (ours.status, ours.part, xla.part) == ("PASS", name, name)
    assert (ours.least_seconds is None) == (name != "both")


@jax.custom_vjp
def differentiable(x, y):
    return x + y


differentiable.defvjp(lambda x, y: (x + y, None), lambda _, dz: (dz, dz))


@pytest.mark.parametrize("name", ("forward", "vjp", "both"))
@pytest.mark.parametrize("scale", (1.0, 2.0), ids=("right", "wrong"))
def test_gradients_that_jax_takes_are_judged(cases, name, scale):
    """A kernel that claims the property: the pullback alone, its residuals made before."""

    def gradient(params, inputs, arrays, cotangents, arithmetic):
        (dz,) = cotangents
        exact = equal(scale * dz.astype(np.float64), dz.dtype)
        return exact, exact

    case = replace(cases["add"], gradient=gradient)
    kernel = Kernel(case="add", name="differentiable", fn=differentiable, properties=("grad",))
    found = {p.name: p for p in parts(kernel, Point(id="a", case="", params={}, inputs=""))}
    assert list(found) == ["forward", "vjp", "both"]
    clock = Recording()
    ours, _ = time_at(cases, kernel, ADD, clock, found[name], case=case)
    if name == FORWARD or scale == 1.0:
        assert (ours.why, ours.status) == ("", "PASS")
    else:
        assert (ours.standing, ours.status) == (Standing.INVALID, "WRONG")


def test_a_kernel_that_does_not_compile_has_no_time(cases):
    def refused(x, y):
        raise ValueError("not this shape")

    kernel = Kernel(case="add", name="refused", fn=refused)
    ours, xla = time_at(cases, kernel, ADD, FakeClock(lambda arguments: MILLISECOND))
    assert (ours.standing, ours.status) == (Standing.INVALID, "REJECTED")
    assert ours.why == "ValueError: not this shape"
    assert xla.seconds and not ours.seconds


def test_a_clock_that_contradicts_itself_has_no_time(cases, kernels):
    ours, _ = time_at(cases, find(kernels, "add", "whole"), ADD, FakeClock(lambda arguments: 0.0))
    assert ours.standing is Standing.INVALID
    assert ours.why == "the device time must be positive, got 0.0 s"


# --------------------------------------------------------------------------- how they are shown


def test_lines_are_valid_and_come_back(tmp_path):
    file = tmp_path / "benchmarks.jsonl"
    lines = Timings(file, "subject")
    invalid = timing(seconds=(), standing=Standing.INVALID, why="a reason", status=None)
    predicted = timing(label="predicted", seconds=(1.0,), limits=("fitted",))
    for one in (timing(), invalid, predicted, timing(kernel=XLA, part="vjp")):
        lines.write(one)
    rows = list(read(file))
    for row in rows:
        jsonschema.validate(row, schema("timings"))
    assert rows[0]["seconds"] == [4.0, 2.0, 3.0] and rows[0]["median_seconds"] == 3.0
    assert [r["label"] for r in rows] == ["measured", "measured", "predicted", "measured"]


@pytest.mark.parametrize(
    "changed",
    [
        {"standing": Standing.INVALID},
        {"standing": Standing.ON_TARGET},
        {"label": "guessed"},
        {"part": "backward"},
    ],
)
def test_lines_that_say_too_little_are_not_valid(changed):
    row = json.loads(json.dumps(timing(**changed).row() | {"subject": "s"}))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row, schema("timings"))


def test_the_table_says_what_is_predicted_and_what_is_wrong():
    rows = [
        timing(target_seconds=2.5, standing=Standing.BELOW_TARGET, why="3 s is too long").row(),
        timing(label="predicted", seconds=(1.0,), limits=("bound by HBM",), part="vjp").row(),
    ]
    text = render(rows, 160, False)
    first, second = (line for line in text.splitlines() if "a@v5e │" in line)
    cells = [c.strip() for c in first.strip("│").split("│")]
    assert cells == [
        *("add", "tiles", "a@v5e", "3000", "66.7 %", "25.0 %", "33.3 %", "6000", "2.00"),
        *("2500", "BELOW_TARGET", "measured"),
    ]
    cells = [c.strip() for c in second.strip("│").split("│")]
    assert cells[:5] == ["", "tiles vjp", "a@v5e", "1000", "-"]
    assert cells[-3:] == ["-", "NO_TARGET", "predicted"]
    assert "add/tiles a@v5e: 3 s is too long" in text and "bound by HBM" in text
    assert "INVALID" not in text
    assert "\x1b" not in text and "\x1b" in render(rows, 160, True)
