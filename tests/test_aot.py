"""Mode aot through the engine: what is compiled, refused, kept, and what ends a process.

The library below it is tested in test_compiler.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accepted
import jax
import pytest

from conformance import chips, compiler
from conformance.case import Example, Kernel
from conformance.judge import Judge
from conformance.loading import load_cases, load_subject
from conformance.runner import Runner
from conformance.verdict import Outcome, Status, Verdict

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)

HERE = Path(__file__).resolve().parent
TIMEOUT = 120.0
# libtpu 0.0.50, which belongs to jax 0.12, cuts the tiles of 8-bit arrays; before, E2002.
CUTS_TILES = jax.__version_info__ >= (0, 12)

SUBJECT = '''
"""Kernels to be compiled, with declarations right and wrong."""

import time

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

REFERENCE = load_subject(DEFAULT_SUBJECT, tuple(load_cases()))


def by_rows(body, bm, *arrays, **options):
    spec = pl.BlockSpec((bm, arrays[0].shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(arrays[0].shape[0], bm),),
        in_specs=[spec] * len(arrays),
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype),
        **options,
    )(*arrays)


def copies(x, y, *, bm):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    return by_rows(body, bm, x)


def edited(x, y, *, bm):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    return by_rows(body, bm, x, y)


def exhausts(x, y, *, bm):
    """Touches 4 MiB where it may have 1 MiB."""

    def body(x_ref, o_ref, large):
        @pl.loop(0, 1024)
        def fill(i):
            large[pl.ds(pl.multiple_of(i * 8, 8), 8)] = x_ref[:8, :128] * i

        o_ref[...] = x_ref[...]
        o_ref[:8, :128] = large[8184:]

    scratch = [pltpu.VMEM((8192, 128), "float32")]
    limit = pltpu.CompilerParams(vmem_limit_bytes=2**20)
    return by_rows(body, bm, x, scratch_shapes=scratch, compiler_params=limit)


def sleeps(x, y):
    time.sleep(600)


def raises(*arrays):
    raise LookupError("no such block")


def never(example, chip):
    return f"not on {chip.name}"


ROWS = REFERENCE.find("add", "rows")
DOT = REFERENCE.find("matmul", "scratch_accumulator")
PLAIN = (copies, edited, exhausts, sleeps, raises)
KERNELS = (
    *(Kernel(case="add", name=fn.__name__, fn=fn) for fn in PLAIN),
    Kernel(case="add", name="copies_limited", fn=copies, unsupported=ROWS.unsupported),
    Kernel(case="add", name="copies_denied", fn=copies, unsupported=never),
    Kernel(case="add", name="exhausts_denied", fn=exhausts, unsupported=never),
    Kernel(case="add", name="sleeps_denied", fn=sleeps, unsupported=never),
    Kernel(case="matmul", name="undeclared", fn=DOT.fn),
    DOT,
    *(k for k in REFERENCE.kernels if k.case == "add"),
)
'''
ADD = {"m": 64, "n": 256, "bm": 16, "bn": 128, "dtype": "float32"}
DOT = {"m": 16, "k": 256, "n": 256, "bm": 8, "bk": 128, "bn": 128, "dtype": "bfloat16"}


class Bench:
    """A judge with one runner, and short names for what it is asked."""

    def __init__(self, subject: Path | str, cache: Path | None) -> None:
        self.cases = load_cases()
        self._subject = load_subject(str(subject), tuple(self.cases))
        self.runner = Runner(str(subject), (), TIMEOUT, None if cache is None else str(cache))
        self._judge = Judge(self.runner)

    def kernel(self, name: str) -> Kernel:
        case, _, kernel = name.rpartition("/")
        return self._subject.find(case or "add", kernel)

    def example(self, case: str, **params: Any) -> Example:
        point = {"add": ADD, "matmul": DOT}.get(case) or self._smoke(case)
        return Example(case=case, params=point | params, inputs="exact", seed=1)

    def _smoke(self, case: str) -> dict[str, Any]:
        return next(r["params"] for r in self.cases[case].rows if r["tier"] == "smoke")

    def judge(self, name: str, chip: str | None = "v5e", mode: str = "aot", **p: Any) -> Verdict:
        kernel = self.kernel(name)
        example = self.example(kernel.case, **p)
        return self._judge.judge(self.cases[kernel.case], kernel, mode, example, chip)

    def run(self, name: str, chip: str = "v5e", **params: Any) -> Outcome:
        kernel = self.kernel(name)
        return self.runner.run("aot", chip, kernel, self.example(kernel.case, **params), None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def bench(cache, tmp_path_factory) -> Iterator[Bench]:
    subject = tmp_path_factory.mktemp("aot") / "kernels.py"
    subject.write_text(SUBJECT)
    made = Bench(subject, cache)
    yield made
    made.runner.close()


# --------------------------------------------------------------------------- accepted


@pytest.mark.parametrize("chip, windows", [("v5e", 2), ("v6e", 2), ("tpu7x", 1)])
def test_what_was_compiled_is_measured(bench, chip, windows):
    """Both buffers of each window. On tpu7x XLA itself brings so small an operand to VMEM."""
    verdict = bench.judge("copies", chip)
    assert (verdict.status, verdict.why) == (Status.COMPILED, "")
    numbers = verdict.numbers
    assert numbers["vmem_bytes"] == windows * 2 * ADD["bm"] * ADD["n"] * 4
    assert numbers["vmem_capacity_bytes"] == chips.get(chip).info.vmem_capacity_bytes
    assert numbers["spilled_bytes"] == 0
    assert 20 < numbers["bundles"] < 2000
    assert numbers["code_bytes"] > 16 * numbers["bundles"]


@pytest.mark.parametrize("axes", ["rows", "tiles"])
@pytest.mark.parametrize("chip", ["v4", "v4-megacore", "v5e", "v5p", "v6e", "tpu7x"])
def test_megacore_kernels_differ_where_two_cores_share_the_grid(bench, axes, chip):
    split, whole = (bench.judge(name, chip) for name in (f"megacore_{axes}", axes))
    assert (split.status, whole.status) == (Status.COMPILED, Status.COMPILED)
    differ = split.numbers["bundles"] != whole.numbers["bundles"]
    assert differ == (chip in ("v4-megacore", "v5p"))


# --------------------------------------------------------------------------- refused


def test_a_refusal_has_phase_and_code(bench):
    verdict = bench.judge("matmul/undeclared", "v2")
    assert (verdict.status, verdict.phase, verdict.code) == (Status.REJECTED, "compile", "E2001")
    assert verdict.why.startswith("MosaicError: E2001: Unsupported matmul RHS type")
    assert verdict.failed


def test_a_refusal_that_was_declared_skips(bench):
    verdict = bench.judge("matmul/scratch_accumulator", "v2")
    assert (verdict.status, verdict.phase, verdict.code) == (Status.UNSUPPORTED, "compile", "E2001")
    assert verdict.why.startswith("v2 has no bfloat16 matmul: MosaicError: E2001: ")
    assert not verdict.failed and not verdict.passed


def test_a_declaration_that_the_compiler_does_not_confirm_is_wrong(bench):
    verdict = bench.judge("copies_denied")
    assert (verdict.status, verdict.phase) == (Status.WRONG, "compile")
    assert verdict.why == "declared unsupported (not on v5e), but the compiler accepts it"
    assert verdict.numbers["bundles"] > 0


def test_what_a_kernel_raises_is_refused_in_its_phase(bench):
    verdict = bench.judge("raises")
    assert (verdict.status, verdict.phase, verdict.error) == (
        Status.REJECTED,
        "trace",
        "LookupError",
    )
    assert "no such block" in verdict.why
    assert verdict.numbers == {"cached": False}


@pytest.mark.parametrize("chip", chips.DEFAULT)
def test_exhausted_vmem_is_a_resource(bench, chip):
    verdict = bench.judge("exhausts", chip)
    assert (verdict.status, verdict.phase, verdict.code) == (Status.RESOURCE, "compile", "E1001")
    assert "vmem" in verdict.why
    assert bench.judge("exhausts_denied", chip).status is Status.UNSUPPORTED


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v5e", "v6e", "tpu7x"])
@pytest.mark.parametrize("m, bm", [(64, 16), (64, 32), (40, 16)])
def test_8_bit_blocks_that_cut_tiles(bench, chip, m, bm):
    """The compiler's rule, and that the reference kernels' declaration is that rule."""
    point = {"m": m, "bm": bm, "n": 128, "dtype": "int8"}
    refused = m == 64 and bm == 16 and chip not in ("v2", "v3") and not CUTS_TILES
    plain, declared = (bench.judge(name, chip, **point) for name in ("copies", "copies_limited"))
    if refused:
        assert (plain.status, plain.code) == (Status.REJECTED, "E2002")
        assert declared.status is Status.UNSUPPORTED
    else:
        assert (plain.status, plain.code) == (Status.COMPILED, None)
        assert declared.status is Status.COMPILED


# --------------------------------------------------------------------------- kept between runs


def test_a_warm_run_compiles_nothing_but_what_was_edited(bench, cache, tmp_path):
    """Another process, the source renamed and its lines moved; one kernel is another program."""
    asked = [(k, c) for k in ("copies", "edited", "exhausts") for c in ("v5e", "tpu7x")]
    cold = {a: bench.run(*a, m=48) for a in asked}
    assert not any(outcome.evidence["cached"] for outcome in cold.values())

    moved = tmp_path / "renamed.py"
    changed = SUBJECT.replace("x_ref[...] + y_ref", "x_ref[...] - y_ref")
    moved.write_text("\n# moved\n" * 9 + changed)
    other = Bench(moved, cache)
    warm = {a: other.run(*a, m=48) for a in asked}
    again = {a: other.run(*a, m=48) for a in asked}
    other.runner.close()
    for a in asked:
        assert warm[a].evidence["cached"] == (a[0] != "edited")
        assert again[a].evidence["cached"]
        if a[0] != "edited":
            assert warm[a].failure == cold[a].failure
            assert dict(warm[a].evidence) == dict(cold[a].evidence) | {"cached": True}


def test_nothing_is_kept_without_a_cache(bench, monkeypatch):
    """And a run that kept something before does not profit."""
    monkeypatch.setattr(bench.runner, "_cache", None)
    assert not any(bench.run("copies", m=48).evidence["cached"] for _ in range(2))


# --------------------------------------------------------------------------- death and silence


def test_a_trace_that_never_ends_is_a_timeout(bench, monkeypatch):
    """Declared or not: only a refusal confirms a declaration."""
    assert bench.judge("copies").status is Status.COMPILED  # its child is warm
    with monkeypatch.context() as patch:
        patch.setattr(bench.runner, "_timeout", 2.0)
        verdict = bench.judge("sleeps_denied")
    assert (verdict.status, verdict.phase) == (Status.TIMEOUT, "run")
    assert "no answer within 2 s" in verdict.why
    assert bench.judge("copies").status is Status.COMPILED


CHECKS = {
    "mask_across_lanes": r"Check failed: rem == 0",
    "block_out_of_range": r"Check failed: llo::CouldLeS32",
    "negative_vmem_limit": r"Check failed: ",
}
SPY = """
import os, pathlib, sys

def pytest_sessionfinish(session):
    maps = pathlib.Path("/proc/self/maps").read_text()
    seen = "libtpu" in sys.modules or "libtpu.so" in maps
    pathlib.Path(os.environ["SPY"], str(os.getpid())).write_text(str(seen))
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_aborts_are_verdicts_and_nothing_is_lost(python, tmp_path, workers):
    """And libtpu does not come near the processes of pytest."""
    spied = tmp_path / "spied"
    spied.mkdir()
    (tmp_path / "spy.py").write_text(SPY)
    options = ["-p", "spy", "-p", "no:cacheprovider", "-q", *(["-n", "2"] if workers else [])]
    options += [f"--subject={HERE / 'aborting.py'}", "--mode=aot", "--chip=tpu7x"]
    options += ["--max-examples=0", "--tier=smoke", f"--report={tmp_path}"]
    run = python("-m", "pytest", *options, SPY=str(spied), PYTHONPATH=str(tmp_path))
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "3 failed, 1 passed" in run.stdout

    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({r["worker"] for r in rows}) == max(1, workers)
    found = {r["kernel"]: r for r in rows}
    assert len(found) == len(rows)
    assert found.keys() == {*CHECKS, "good"}
    for kernel, row in found.items():
        if kernel == "good":
            assert (row["status"], row["why"]) == ("COMPILED", "")
        else:
            assert (row["status"], row["error"]) == ("CRASH", "SIGABRT")
            assert re.search(rf"\(SIGABRT\): .*{CHECKS[kernel]}", row["why"])

    seen = [file.read_text() for file in spied.iterdir()]
    assert seen == ["False"] * (1 + workers)


# --------------------------------------------------------------------------- not there


def test_a_broken_libtpu_skips_unless_asked_for_by_name(pytester, monkeypatch):
    library = pytester.path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    given = ("-p", "conformance.plugin", "--pyargs", "conformance", "--kernel=add/whole")
    given += ("--replay=add/smoke,inputs=exact", "--chip=v5e", "-rs", "-v")

    run = pytester.runpytest_inprocess(*given)
    assert run.ret == 0
    outcomes = run.parseoutcomes()
    assert outcomes["skipped"] == 4  # aot, emulate and what is compiled for a property
    assert outcomes["passed"] >= 2
    run.stdout.fnmatch_lines_random(
        ["*whole-interpret? PASSED*", "SKIPPED*UNAVAILABLE: libtpu describes no topology: *"]
    )
    run = pytester.runpytest_inprocess(*given, "--mode=aot")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    run.stdout.fnmatch_lines(["*mode aot was asked for but is UNAVAILABLE: libtpu describes no *"])


# --------------------------------------------------------------------------- accepted is not right


@pytest.fixture(scope="module")
def wrong() -> Iterator[Bench]:
    made = Bench(HERE / "accepted.py", None)
    yield made
    made.runner.close()


@pytest.mark.parametrize("name", accepted.KILLED_BY)
def test_accepted_is_not_right(wrong, name):
    """COMPILED on every default chip, and condemned by the mode that looks at values."""
    mode, says = accepted.KILLED_BY[name]
    for chip in chips.DEFAULT:
        assert wrong.judge(name, chip).status is Status.COMPILED
    verdict = wrong.judge(name, None, mode)
    assert verdict.status is Status.WRONG
    assert re.search(says, verdict.why), verdict.why
