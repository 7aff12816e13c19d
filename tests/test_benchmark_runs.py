"""`pytest --tpu --benchmark` from the options to its files, on a device that is put in place."""

from __future__ import annotations

import json

import jsonschema
import pytest
from device import MILLISECOND

from conformance.loading import schema
from conformance.schedule import DISPATCH
from conftest import ROOT

TEST = "conformance/test_conformance.py::test_meets_target"
ROWS = {"on": 8, "below": 16, "invalid": 24, "none": 32}


def params(rows: int) -> dict:
    return {"m": rows, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"}


def target(name: str, seconds: float, **changed) -> dict:
    """A published wall time whose device time is so many seconds."""
    return {
        "id": name,
        "case": "add",
        "kernel": "whole",
        "params": params(ROWS[name]),
        "chip": "v5e",
        "value": seconds + DISPATCH.value,
        "unit": "s",
        "measured": "wall time, of a test",
        "source": "https://example.org",
    } | changed


def point(name: str) -> dict:
    return {
        "id": name,
        "case": "add",
        "params": params(ROWS[name]),
        "inputs": "normal",
        "why": "of a test",
    }


TARGETS = [
    target("on", 2 * MILLISECOND),
    target("below", MILLISECOND / 2),
    target("invalid", MILLISECOND),
    target("none", MILLISECOND, chip="v6e"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The environment with a few small points and made-up targets."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "points.json").write_text(json.dumps([point("none")]))
    (folder / "targets.json").write_text(json.dumps(TARGETS))
    return {
        "POINTS": str(folder / "points.json"),
        "TARGETS": str(folder / "targets.json"),
        "PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "tests"))),
    }


@pytest.fixture(scope="module")
def run(python, data):
    def go(*args: str):
        return python(
            *("-m", "pytest", "-p", "device", "-p", "no:cacheprovider", "--tpu", "--benchmark"),
            *("--kernel=add/whole", "--tier=smoke", "--max-examples=0", *args),
            **data,
        )

    return go


@pytest.fixture(scope="module")
def whole_run(run, tmp_path_factory):
    """A run with one kernel at four points; its folder."""
    folder = tmp_path_factory.mktemp("report")
    run_ = run(f"--report={folder}", f"--benchmark-json={folder / 'b.json'}", "-rA")
    (folder / "log").write_text(run_.stdout + run_.stderr)
    return folder


def rows_of(folder) -> dict[tuple[str, str], dict]:
    """benchmarks.jsonl by kernel and point, every line valid."""
    rows = [json.loads(line) for line in (folder / "benchmarks.jsonl").read_text().splitlines()]
    for row in rows:
        jsonschema.validate(row, schema("timings"))
    return {(row["kernel"], row["point"]): row for row in rows}


def test_four_standings(whole_run):
    log = (whole_run / "log").read_text()
    rows = rows_of(whole_run)
    standings = {point: rows["whole", point]["standing"] for point in ROWS}
    assert standings == {
        "on": "ON_TARGET",
        "below": "BELOW_TARGET",
        "invalid": "INVALID",
        "none": "NO_TARGET",
    }
    assert "3 passed, 2 failed" in log or "2 failed, 3 passed" in log
    for outcome, name in (("PASSED", "on"), ("PASSED", "none"), ("FAILED", "below")):
        assert (
            f"{outcome} conformance/test_conformance.py::test_meets_target[add/whole-{name}" in log
        )
    assert "test_conforms[add/whole-tpu]" in log


def test_a_failure_has_both_numbers_and_the_way_back(whole_run):
    log = (whole_run / "log").read_text()
    assert (
        "add/whole at below on v5e, measured: BELOW_TARGET: 1 ms, but the target is 0.5 ms" in log
    )
    assert "below: published wall time 0.6066 ms less 0.107 ms of dispatch (fitted)" in log
    assert "--tpu --benchmark --kernel add/whole --replay add/m=16,n=128," in log
    assert "at invalid on v5e, measured: INVALID: 1e-12 ms is above the roofline" in log


def test_every_row_is_measured_with_xla_beside(whole_run):
    rows = rows_of(whole_run)
    assert {row["label"] for row in rows.values()} == {"measured"}
    for name in ROWS:
        ours, xla = rows["whole", name], rows["xla", name]
        assert ours["xla_seconds"] == xla["seconds"]
        assert ours["xla_ratio"] == 1
        assert len(ours["seconds"]) == len(ours["wall_seconds"]) == 5
        assert xla["standing"] in ("NO_TARGET", "INVALID")
    assert rows["whole", "on"]["status"] == "PASS"
    assert rows["whole", "invalid"]["of_roofline"] > 1


def test_the_table_shows_them(whole_run):
    for text in ((whole_run / "log").read_text(), (whole_run / "times.txt").read_text()):
        line = next(li for li in text.splitlines() if "│ whole" in li and "below@v5e" in li)
        cells = [c.strip() for c in line.strip().strip("│").split("│")]
        assert cells[1:3] == ["whole", "below@v5e"]
        assert cells[3] == "1" and cells[-4:] == ["1.00", "0.5", "BELOW_TARGET", "measured"]


def test_pytest_benchmark_records_device_time(whole_run):
    recorded = json.loads((whole_run / "b.json").read_text())["benchmarks"]
    stats = {b["extra_info"]["point"]: b["stats"] for b in recorded}
    assert set(stats) == set(ROWS)
    assert stats["on"]["data"] == [MILLISECOND] * 5
    assert stats["on"]["median"] == MILLISECOND
    info = {b["extra_info"]["point"]: b["extra_info"] for b in recorded}["below"]
    assert (info["chip"], info["label"], info["standing"]) == ("v5e", "measured", "BELOW_TARGET")
    assert info["wall_seconds"] == [2 * MILLISECOND] * 5
    for name in ("of_peak", "of_roofline", "target_seconds", "xla_seconds", "status"):
        assert name in info


def test_saved_runs_are_compared(run, tmp_path):
    """--benchmark-save and --benchmark-compare of pytest-benchmark, with a replayed point."""
    one = "--replay=add/m=8,n=128,bm=8,bn=128,dtype=float32,inputs=normal"
    storage = f"--benchmark-storage={tmp_path}"
    saved = run(one, storage, "--benchmark-save=a")
    compared = run(one, storage, "--benchmark-compare=0001", "--benchmark-compare-fail=median:1%")
    assert (saved.returncode, compared.returncode) == (0, 0), compared.stdout
    assert "0001_a" in compared.stdout and "NOW" in compared.stdout


def test_a_run_without_a_time_says_so(run, tmp_path):
    """Also with --benchmark-json, which warns then, and warnings are errors."""
    result = run("--replay=add/negative-rank", f"--benchmark-json={tmp_path / 'b.json'}")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "--benchmark was given, but nothing was timed" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_wrong_values_have_no_time(run, tmp_path):
    subject = tmp_path / "subject.py"
    subject.write_text(WRONG)
    result = run(f"--subject={subject}", "-k", "test_meets_target and on", "--kernel=add/whole")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "INVALID: values are WRONG: " in result.stdout


WRONG = '''
"""A kernel of case add that is wrong."""
import jax
from jax.experimental import pallas as pl
from conformance import Kernel

def body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] - y_ref[...]

def whole(x, y):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

KERNELS = (Kernel(case="add", name="whole", fn=whole),)
'''
