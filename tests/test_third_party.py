"""Somebody else's kernels, outside the checkout, and the suite as an installed package."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from conformance.report.lines import read

SUBJECT = '''
"""Two matmuls with block sizes of their own; the second forgets a block."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel

BLOCK = 128


def body(x_ref, y_ref, o_ref, acc_ref, *, steps):
    @pl.when(pl.program_id(0) == 0)
    def clear():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(pl.program_id(0) < steps)
    def accumulate():
        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def store():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def matmul(x, y, forgotten):
    (m, k), n = x.shape, y.shape[1]
    padding = -k % BLOCK
    x, y = jnp.pad(x, ((0, 0), (0, padding))), jnp.pad(y, ((0, padding), (0, 0)))
    grid = (k + padding) // BLOCK
    return pl.pallas_call(
        functools.partial(body, steps=grid - forgotten),
        grid=(grid,),
        in_specs=[
            pl.BlockSpec((m, BLOCK), lambda step: (0, step)),
            pl.BlockSpec((BLOCK, n), lambda step: (step, 0)),
        ],
        out_specs=pl.BlockSpec((m, n), lambda step: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((m, n), jnp.float32)],
    )(x, y)


def good(x, y):
    return matmul(x, y, 0)


def forgetful(x, y):
    return matmul(x, y, 1)


KERNELS = (
    Kernel(case="matmul", name="good", fn=good),
    Kernel(case="matmul", name="forgetful", fn=forgetful),
)
'''
# A fresh folder name with a space: replay commands are for a shell.
POINT = "matmul/m=8,k=300,n=128,bm=8,bk=128,bn=128,dtype=float32"


@pytest.fixture(scope="module")
def judged(tmp_path_factory, python):
    """A run on the subject: its report directory and what it printed."""
    folder = tmp_path_factory.mktemp("somebody else")
    subject = folder / "their_kernels.py"
    subject.write_text(SUBJECT)
    run = python(
        *("-m", "pytest", "-p", "no:cacheprovider", "-q", f"--subject={subject}"),
        *("--mode=interpret", f"--replay={POINT}", f"--report={folder / 'report'}"),
    )
    return run, folder / "report"


def test_right_passes_and_wrong_fails(judged):
    run, report = judged
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    found: dict[str, set[str]] = {"good": set(), "forgetful": set()}
    for row in read(report / "results.jsonl"):
        found[row["kernel"]].add(row["status"])
        assert row["subject"].endswith("/their_kernels.py")
    assert found == {"good": {"PASS"}, "forgetful": {"WRONG"}}
    assert re.search(r"matmul +│ good +│ PASS 5 ", run.stdout)
    assert re.search(r"│ forgetful +│ WRONG 5 ", run.stdout)


def test_the_failure_says_enough(judged):
    text = judged[0].stdout
    assert "matmul/forgetful in interpret: 5 of 5 examples failed" in text
    assert "m=8, k=300, n=128, bm=8, bk=128, bn=128, dtype=float32; inputs exact, seed 0" in text
    where = r"of 1024 elements wrong; first at \[0, 0\]: got \S+, expected \S+ "
    assert re.search(where + r"\(equal\)", text)
    assert re.search(where + r"\+- \S+; error / allowed = \d", text)
    assert len(text.splitlines()) < 80, "no array dumps"


def test_the_replay_command_fails_again(judged):
    """Verbatim, in a shell, with this interpreter's scripts on the path."""
    command = re.search(r"replay: (pytest .*inputs=normal.*)", judged[0].stdout).group(1)
    scripts = os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent)))
    again = subprocess.run(
        f"{command} -p no:cacheprovider",
        shell=True,
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == pytest.ExitCode.TESTS_FAILED, again.stdout + again.stderr
    assert "matmul/forgetful in interpret: 1 of 1 examples failed" in again.stdout
    assert "WRONG: " in again.stdout and "inputs normal, seed 0" in again.stdout
    assert shlex.split(command)[-1] in again.stdout, "and prints the same command"


# --------------------------------------------------------------------------- installed


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_a_wheel_has_one_module_at_the_top(names):
    tops = {name.partition("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"conformance"}


def test_a_wheel_has_all_of_the_checkout(names):
    root = Path(__file__).resolve().parent.parent
    expected = {
        f"{prefix}{file.relative_to(root).as_posix()}"
        for prefix, folder in (
            ("", "conformance"),
            ("conformance/", "cases"),
            ("conformance/", "reference_kernels"),
        )
        for file in (root / folder).rglob("*")
        if file.is_file() and file.suffix in (".py", ".json")
    }
    assert expected <= set(names)
    assert {"conformance/cases/matmul.json", "conformance/schemas/pinned.schema.json"} <= expected
    assert not [n for n in names if "/tests/" in n or n.endswith(("conftest.py", ".pyc"))]


def test_a_wheel_adds_no_pytest_options_by_itself(wheel):
    """No entry point for pytest: `--mode` and `--report` may belong to somebody else."""
    with zipfile.ZipFile(wheel) as archive:
        points = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        assert not any("pytest11" in archive.read(n).decode() for n in points)


def test_an_installed_suite_judges_from_another_directory(site, tmp_path, python):
    """Cases come with the package, workers inherit the plugin, and the replay line is whole."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.py").write_text(SUBJECT)
    base = ("-m", "pytest", "-p", "conformance.plugin", "--pyargs", "conformance", "-q")
    run = python(
        *base,
        *("--subject", "mine.py", "--mode=interpret", "--report=out", "-n", "2"),
        f"--replay={POINT},inputs=exact",
        cwd=work,
        PYTHONPATH=str(site),
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    found = {row["kernel"]: row["status"] for row in read(work / "out" / "results.jsonl")}
    assert found == {"good": "PASS", "forgetful": "WRONG"}
    assert "replay: pytest -p conformance.plugin --pyargs conformance --subject=" in run.stdout
