"""Device time from profiles: made-up ones of a TPU, and a real one of this machine's CPU."""

from __future__ import annotations

import json
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData
from xplane import KERNEL_OP, Event, Plane, profile

from conformance.modes import _profiler
from conformance.modes._profiler import (
    ProfilerClock,
    device_time,
    kernel_ops,
    operations,
    second_opinion,
)
from conformance.timing import ClockError

MODULE = Event("jit_kernel(123)", 2000)
KERNEL, COPY = Event(KERNEL_OP, 1500, 100), Event("%copy.2 = bf16[8,128] copy(%x)", 300, 1600)
HOST = Plane("/host:CPU", {"python": [Event("jit_kernel(123)", 9000)]})


def tpu(number: int = 0, **lines: list[Event]) -> Plane:
    named = {{"modules": "XLA Modules", "ops": "XLA Ops"}.get(n, n): e for n, e in lines.items()}
    return Plane(f"/device:TPU:{number}", named)


def time_of(*planes: Plane):
    return device_time(ProfileData.from_serialized_xspace(profile(*planes)))


def test_the_time_of_a_call_is_its_module_event():
    seconds, ops = time_of(HOST, tpu(modules=[MODULE], ops=[KERNEL, COPY], Steps=[MODULE]))
    assert seconds == 2000 * 1e-9
    assert ops == {"kernel.1": 1500 * 1e-9, "copy.2": 300 * 1e-9}


def test_operations_of_one_name_add_up():
    _, ops = time_of(tpu(modules=[MODULE], ops=[KERNEL, Event(KERNEL_OP, 200, 1700)]))
    assert ops == {"kernel.1": 1500 * 1e-9 + 200 * 1e-9}


def test_without_modules_it_is_what_operations_cover():
    """A loop's event is around those of its body, and the gap counts for nothing."""
    loop, body, late = Event("%while.1", 1000), Event("%dot.1", 400, 100), Event("%add.1", 50, 1500)
    seconds, _ = time_of(tpu(ops=[late, loop, body]))
    assert seconds == 1050 * 1e-9


def test_idle_devices_do_not_matter():
    idle = Plane("/device:TPU:1", {"XLA Modules": []})
    assert time_of(idle, tpu(modules=[MODULE]), tpu(2))[0] == 2000 * 1e-9


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        ([HOST], r"no plane of a TPU \(/device:TPU:0\); it has /host:CPU"),
        ([], "no plane of a TPU .* it has none"),
        ([Plane("/device:GPU:0", {"XLA Modules": [MODULE]})], "no plane of a TPU"),
        ([HOST, tpu()], "no event of a program"),
        ([tpu(modules=[], ops=[])], "no event of a program"),
        ([tpu(Steps=[MODULE])], "no event of a program"),
        (
            [tpu(modules=[MODULE]), tpu(1, modules=[MODULE])],
            "several devices were busy: /device:TPU:0, /device:TPU:1",
        ),
        (
            [tpu(modules=[MODULE, Event("jit_other(4)", 10, 3000)])],
            r"the device ran 2 programs: jit_kernel\(123\), jit_other\(4\)",
        ),
        ([tpu(modules=[], ops=[KERNEL])], "the device ran 0 programs: none"),
    ],
)
def test_one_clear_error(planes, message):
    with pytest.raises(ClockError, match=message):
        time_of(*planes)


def test_kernels_are_known_from_the_program():
    text = (
        "ENTRY %main {\n"
        f"  {KERNEL_OP}\n"
        '  ROOT %k-2.0 = f32[] custom-call(), custom_call_target="tpu_custom_call"\n'
        '  %other = f32[] custom-call(), custom_call_target="Sharding"\n'
        "}"
    )
    assert kernel_ops(text) == {"kernel.1", "k-2.0"}


# --------------------------------------------------------------------------- whole traces


class Program:
    """A program that a test knows the profile of."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def as_text(self) -> str:
        return self._text

    def __call__(self, x):
        return x


@pytest.fixture
def recorded(monkeypatch):
    """Makes the profiler leave the given planes."""

    def record(*planes: Plane) -> None:
        def from_file(file: str):
            return ProfileData.from_serialized_xspace(profile(*planes))

        fake = types.SimpleNamespace(from_file=from_file)
        monkeypatch.setattr(_profiler.jax.profiler, "ProfileData", fake)

    return record


def test_a_sample_from_a_trace(recorded):
    recorded(HOST, tpu(modules=[Event("jit_kernel(1)", 2)], ops=[Event(KERNEL_OP, 1)]))
    sample = ProfilerClock().sample(Program(KERNEL_OP), (jnp.ones(3),))
    assert sample.wall > sample.device == 2e-9
    assert sample.kernel == 1e-9
    assert sample.results.shape == (3,)


def test_kernels_that_the_trace_does_not_show_have_no_time(recorded):
    recorded(tpu(modules=[Event("jit_kernel(1)", 2)]))
    assert ProfilerClock().sample(Program(KERNEL_OP), (jnp.ones(3),)).kernel is None
    assert ProfilerClock().sample(Program(""), (jnp.ones(3),)).kernel is None


@pytest.mark.parametrize(
    ("module", "op", "message"),
    [
        (10**12, 1, "the device was busy for 1000 s in a call of "),
        (0, 0, r"the device time must be positive, got 0\.0 s"),
        (5, 9, r"operation kernel\.1 took 9e-09 s of 5e-09 s on the device"),
    ],
)
def test_impossible_times_are_refused(recorded, module, op, message):
    recorded(tpu(modules=[Event("jit_kernel(1)", module)], ops=[Event(KERNEL_OP, op)]))
    with pytest.raises(ClockError, match=message):
        ProfilerClock().sample(Program(KERNEL_OP), (jnp.ones(3),))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="records a trace of a CPU")
def test_a_real_trace_of_a_cpu_has_no_tpu():
    x = jnp.ones((64, 64))
    program = jax.jit(lambda x: x @ x).lower(x).compile()
    with pytest.raises(ClockError, match=r"no plane of a TPU .*it has .*/host:CPU"):
        ProfilerClock().sample(program, (x,))


# --------------------------------------------------------------------------- xprof


def table(**microseconds: float) -> dict:
    """`hlo_stats` as xprof 2.24 has it, most of its columns left out."""
    names = ("rank", "program_id", "category", "hlo_op_name", "total_time")
    cells = [(n, "12", "custom-call", name, t) for n, (name, t) in enumerate(microseconds.items())]
    return {
        "cols": [{"id": n, "type": "string"} for n in names],
        "rows": [{"c": [{"v": v} for v in row]} for row in cells],
    }


@pytest.fixture
def xprof(monkeypatch):
    """An xprof whose table a test makes up."""

    def install(**microseconds: float) -> list:
        calls: list = []

        def convert(paths, tool, params):
            calls.append((paths, tool))
            return json.dumps(table(**microseconds)).encode(), "application/json"

        module = types.ModuleType("xprof.convert.raw_to_tool_data")
        module.xspace_to_tool_data = convert
        package = types.ModuleType("xprof")
        package.__spec__ = types.SimpleNamespace(name="xprof")
        for name, value in (
            ("xprof", package),
            ("xprof.convert", types.ModuleType("xprof.convert")),
            (module.__name__, module),
        ):
            monkeypatch.setitem(sys.modules, name, value)
        return calls

    return install


def test_a_second_opinion_that_agrees(xprof, tmp_path):
    calls = xprof(kernel=1500.0, copy=3.0)
    second_opinion(tmp_path / "t.xplane.pb", {"kernel": 1.5e-3, "copy": 1.0}, {"kernel"})
    assert calls == [([str(tmp_path / "t.xplane.pb")], "hlo_stats")]


def test_a_second_opinion_that_contradicts(xprof, tmp_path):
    xprof(kernel=1600.0)
    with pytest.raises(ClockError, match=r"kernel took 0\.0015 s by its events, 0\.0016 s by xpr"):
        second_opinion(tmp_path / "t.xplane.pb", {"kernel": 1.5e-3}, {"kernel"})


def test_times_of_one_name_in_the_table_add_up():
    twice = table(a=2.0)
    twice["rows"] *= 2
    assert operations(twice) == {"a": 4.0 * 1e-6}
