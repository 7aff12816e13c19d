"""Options, as a user gives them: what is refused and in which words, and what a run leaves.

Refusals end before anything is collected and are tried in this process; whatever runs kernels
is a process of its own, started in the checkout.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from conformance.loading import schema
from conformance.modes import MODES

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent

KERNELS = '''
"""Kernels of case add."""
from conformance import Kernel

def whole(x, y):
    return x + y

KERNELS = (Kernel(case="add", name="whole", fn=whole),)
'''
POINT = "m=8,n=128,bm=8,bn=128,dtype=float32"
FAST = ("-p", "no:cacheprovider", "-q", "--kernel", "add/whole", "--mode", "interpret")


@pytest.fixture
def refuse(pytester, monkeypatch):
    """Runs pytest in this process on options that must be refused; its one error line."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*args: str, plugins: tuple[str, ...] = ()) -> str:
        given = [option for p in ("conformance.plugin", *plugins) for option in ("-p", p)]
        result = pytester.runpytest_inprocess(*given, "--collect-only", *args)
        assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
        errors = [line for line in result.errlines if line.startswith("ERROR: ")]
        assert len(errors) == 1, result.errlines
        return errors[0].removeprefix("ERROR: ")

    return run


@pytest.fixture
def run_here(pytester, monkeypatch):
    """Runs the suite in this process, as installed; nothing that needs a child process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # it is no worker's run

    def run(*args: str) -> pytest.RunResult:
        given = ("-p", "conformance.plugin", "--pyargs", "conformance", "--kernel=add/whole")
        return pytester.runpytest_inprocess(*given, *args)

    return run


# --------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "args, message",
    [
        (["--cases", "ad"], "--cases ad: unknown; known: add, attention, "),
        (["--kernel", "hole"], "--kernel hole: unknown; known: .*add/whole, "),
        (["--cases", "sum", "--kernel", "whole"], "--kernel whole: unknown; known: accumulate, "),
        (["--mode", "interpet"], "--mode interpet: unknown; known: .*interpret, .*tpu-interpret"),
        (["--mode=all,gpu"], "--mode gpu: unknown"),
        (["--chip", "v9"], "--chip v9: unknown; known: "),
        (["--max-examples", "-1"], "--max-examples -1: must not be negative"),
        (["--example-timeout", "0"], "--example-timeout 0: must be positive"),
        (["--replay", "add/m=eight"], "--replay add/m=eight: m must be an integer, got 'eight'"),
        (["--replay", "nope/m=1"], "--replay nope/m=1: no case 'nope'; known: add, "),
        (["--replay", "add/no-such-row"], "add has no pinned example 'no-such-row'"),
        (["--subject=none.py"], "subject '.*none.py': no such file"),
        (["--subject=no_such_module"], "subject 'no_such_module': no such file, and no such mod"),
        (["--subject=subject.py:OTHER"], "has no attribute 'OTHER', a tuple of Kernel"),
        (["--cases", "./none.py"], "no case file or folder at '.*none.py'"),
        (["--subject=subject.py", "--cases", "sum"], "--subject .*: it has no kernel for case sum"),
        (["--report=subject.py"], "--report subject.py: cannot be written to: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_with_one_line(refuse, pytester, args, message):
    pytester.makepyfile(subject=KERNELS)
    assert re.search(message, refuse(*args))


def test_chips_are_known_by_name(refuse):
    known = [chip for mode in MODES.values() for chip in mode.chips]
    message = refuse("--chip", "v9")
    assert all(chip in message for chip in known)


@pytest.mark.parametrize(
    "args, message",
    [
        (["--benchmark", "--tpu", "-n", "1"], "timings must not share the machine"),
        (["--benchmark", "-n", "1"], "timings must not share the machine"),
        (["--tpu", "-n", "3"], "--tpu -n 3: each worker has a chip of its own, but this machine "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_tpu_is_not_shared(refuse, monkeypatch, args, message):
    monkeypatch.setenv("CONFORMANCE_TPU_CHIPS", "2")
    assert message in refuse(*args, plugins=("xdist",))


def test_a_number_of_chips_must_be_one(refuse, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_TPU_CHIPS", "two")
    message = refuse("--tpu", "-n", "1", plugins=("xdist",))
    assert message == "CONFORMANCE_TPU_CHIPS=two: must be the number of chips"


def test_times_need_pytest_benchmark(refuse):
    message = refuse("--tpu", "--benchmark")
    assert message == "--benchmark needs the plugin pytest_benchmark.plugin (-p)"


CHIP = '''
"""Tells which chip its process may see, when it is loaded."""
import os, sys
from pathlib import Path
from conformance import Kernel

names = ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
found = " ".join(os.environ.get(n, "-") for n in names)
(Path(__file__).parent / worker).write_text(found)
KERNELS = (Kernel(case="add", name="whole", fn=lambda x, y: x + y),)
'''

EARLY = '''
"""Tells whether the chip was known before JAX was loaded in a worker."""
import os, sys
from pathlib import Path

known = os.environ.get("TPU_VISIBLE_CHIPS", "-")
loaded = "jax" in sys.modules
worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
(Path(__file__).parent / f"early-{worker}").write_text(f"{known} {loaded}")
'''


def test_each_worker_has_a_chip_of_its_own(python, tmp_path):
    """Known before JAX is loaded; the controller keeps away from all of them."""
    (tmp_path / "subject.py").write_text(CHIP)
    (tmp_path / "early.py").write_text(EARLY)
    python(
        *("-m", "pytest", "-p", "early", "-p", "no:cacheprovider", "-q", "--tpu", "-n", "2"),
        f"--subject={tmp_path / 'subject.py'}",
        CONFORMANCE_TPU_CHIPS="2",
        PYTHONPATH=f"{ROOT}:{tmp_path}",
    )
    assert (tmp_path / "gw0").read_text() == "0 1,1,1 1,1,1"
    assert (tmp_path / "gw1").read_text() == "1 1,1,1 1,1,1"
    assert (tmp_path / "early-gw1").read_text() == "1 False"
    assert (tmp_path / "controller").read_text() == "- - -"


BROKEN = {
    "syntax error": ("def f(:", "failed to load: SyntaxError: "),
    "raises": ("1 / 0", "failed to load: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(0)", "failed to load: SystemExit: 0"),
    "imports nothing": ("import no_such_thing", "failed to load: ModuleNotFoundError: .*no_such"),
    "no KERNELS": ("x = 1", "has no attribute 'KERNELS', a tuple of Kernel"),
    "empty": ("KERNELS = ()", "KERNELS must be a non-empty tuple of Kernel"),
    "one kernel": ("KERNELS = 3", "KERNELS must be a non-empty tuple of Kernel"),
    "not a Kernel": ("KERNELS = (len,)", "<built-in function len> is not a conformance.Kernel"),
    "unknown case": (
        KERNELS.replace('"add"', '"ad"'),
        "kernel 'whole' claims case 'ad', which is not one of add, attention, ",
    ),
    "not callable": (KERNELS.replace("fn=whole", "fn=3"), "kernel 'whole': fn is not callable"),
    "twice": (KERNELS + "\nKERNELS *= 2", "add/whole is there twice"),
}


@pytest.mark.parametrize("text, message", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_subject_is_refused(refuse, pytester, text, message):
    file = pytester.makepyfile(subject=text)
    found = refuse("--subject=subject.py")
    assert re.search(message, found)
    assert f"subject '{file}'" in found or str(file) in found


def test_a_checkout_needs_the_equals_sign(refuse, pytester, monkeypatch):
    """pytest takes the value for a test path before it knows the option."""
    file = str(pytester.makepyfile(subject=KERNELS))
    monkeypatch.chdir(ROOT)
    assert f"write --subject={file}, with an equals sign" in refuse("--subject", file)


def test_elsewhere_it_does_not(pytester, run_here):
    """Also where an installed suite is a checkout."""
    pytester.makepyfile(subject=KERNELS)
    result = run_here("--subject", "subject.py", "--mode=interpret", "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_conforms?add/whole-interpret?"])


def test_refusals_reach_the_shell(python):
    """From the checkout, through its conftest: exit code 4, one line, no traceback."""
    run = python("-m", "pytest", *FAST, "--cases", "nope")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert run.stderr.strip().startswith("ERROR: --cases nope: unknown; known: add, ")
    assert "Traceback" not in run.stdout + run.stderr


# --------------------------------------------------------------------------- nothing is no pass


@pytest.mark.skipif(MODES["tpu"].unavailable(None) is None, reason="a TPU is attached")
@pytest.mark.parametrize("options", (["--tpu"], ["--mode=tpu"], ["--tpu", "--benchmark"]), ids=str)
def test_without_a_tpu_its_mode_fails_and_says_so(run_here, options):
    result = run_here("-p", "pytest_benchmark.plugin", *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*mode tpu was asked for but is UNAVAILABLE: no TPU is attached*"])


def test_an_empty_selection_fails(run_here):
    assert run_here("-k", "nothing_is_called_this").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_run_that_judges_nothing_fails_and_says_so(run_here):
    """The example that is left is of another case."""
    one = "sum/b=1,m=8,n=128,bm=8,bn=128,dtype=float32,inputs=exact"
    result = run_here("--mode=interpret", "--cases=add", f"--replay={one}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*nothing was judged*"])


# --------------------------------------------------------------------------- runs


def rows_of(directory) -> list[dict]:
    """results.jsonl, every line valid."""
    rows = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    for row in rows:
        jsonschema.validate(row, schema("results"))
    return rows


def keys(rows: list[dict]) -> list[tuple[str, ...]]:
    return sorted((r["case"], r["kernel"], r["mode"], r["example"], r["status"]) for r in rows)


def test_replay_runs_exactly_that_example(python, tmp_path):
    """And a negative one by the id that its line carries; old results are replaced."""
    (tmp_path / "results.jsonl").write_text("stale\n")
    for one in (f"add/{POINT},inputs=normal,seed=5", "add/negative-rank,inputs=exact,seed=0"):
        run = python("-m", "pytest", *FAST, f"--report={tmp_path}", "--replay", one)
        assert run.returncode == 0, run.stdout
        (row,) = rows_of(tmp_path)
        assert row["example"] == one
        assert row["expected"] == ("negative" in one)
        assert f"report: {tmp_path}" in run.stdout
    assert "+1 refused" in run.stdout


def test_workers_lose_no_line(python, tmp_path):
    """The same verdicts with and without xdist, each on one valid line."""
    args = ("-p", "no:cacheprovider", "-q", "--mode=interpret", "--kernel=whole,rows,tiles")
    args += (f"--replay=add/{POINT}", "--replay=add/negative-rank")
    alone = python("-m", "pytest", *args, f"--report={tmp_path / 'alone'}")
    shared = python("-m", "pytest", *args, f"--report={tmp_path / 'shared'}", "-n", "2")
    assert (alone.returncode, shared.returncode) == (0, 0), shared.stdout
    one, two = rows_of(tmp_path / "alone"), rows_of(tmp_path / "shared")
    assert len(one) == 3 * (5 + 1)
    assert keys(one) == keys(two)
    assert {r["worker"] for r in one} == {"main"}
    assert {r["worker"] for r in two} == {"gw0", "gw1"}
    table = (tmp_path / "shared" / "matrix.txt").read_text()
    assert table == (tmp_path / "alone" / "matrix.txt").read_text()
    assert "megacore" not in table and "PASS 5 +1 refused" in table
