"""Kernels that hang, abort, print or race: each is a verdict, and the next example still runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.case import Case, Example, Kernel
from conformance.child import Child, ChildDied, EngineError
from conformance.judge import Judge
from conformance.loading import load_cases, load_subject
from conformance.modes import MODES
from conformance.runner import Runner
from conformance.serve import run_request
from conformance.test_conformance import conclude
from conformance.verdict import Status, Verdict

SUBJECT = '''
"""Kernels of case add, odd in one way each."""

import functools
import os
import sys
import time

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel


def body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def right(x, y):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def aborts(x, y):
    print("a last word before the end", flush=True)
    os.abort()


def exits(x, y):
    os._exit(3)


def sleeps(x, y):
    time.sleep(600)


def raises(x, y):
    raise KeyError("no such block")


def prints(x, y):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, bytes(range(256)))
    return right(x, y)


def process(x, y):
    """Not a sum: tells which process traced it."""
    return jnp.full_like(x, os.getpid() % 2**16)


def plain(x, y):
    return x + y


EARLY = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))


def early(x, y):
    return EARLY(x, y)


def racing_body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def races(x, y):
    """Every step of a parallel axis writes the same output block."""
    whole = pl.BlockSpec(x.shape, lambda i: (0, 0))
    return pl.pallas_call(
        racing_body,
        grid=(3,),
        in_specs=[whole, whole],
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)


def signalling_body(x_ref, y_ref, o_ref, semaphore):
    o_ref[...] = x_ref[...] + y_ref[...]
    pl.semaphore_signal(semaphore, 1)


def signals(x, y):
    return pl.pallas_call(
        signalling_body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x, y)


def copying_body(x_ref, y_ref, o_ref, semaphore, *, waits):
    copy = pltpu.make_async_copy(y_ref, o_ref, semaphore)
    copy.start()
    for _ in range(waits):
        copy.wait()
    o_ref[...] += x_ref[...]


def waits_once(x, y, waits=1):
    return pl.pallas_call(
        functools.partial(copying_body, waits=waits),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x, y)


def waits_twice(x, y):
    """The second wait never returns."""
    return waits_once(x, y, waits=2)


def finish_raises(result):
    raise ValueError("found late")


FUNCTIONS = (right, aborts, exits, sleeps, raises, prints, process, plain, early, races, signals,
             waits_once, waits_twice)
KERNELS = (
    *(Kernel(case="add", name=fn.__name__, fn=fn) for fn in FUNCTIONS),
    Kernel(case="add", name="finish", fn=right, finish=finish_raises),
)
'''

BROKEN_CASE = '''
"""Case add with an engine that fails."""

from dataclasses import replace


def broken(*args):
    raise ZeroDivisionError("the case itself is broken")


add = CASES[0]
CASES = (
    replace(add, name="broken_make", make=broken),
    replace(add, name="broken_reference", reference=broken),
    replace(add, name="broken_baseline", baseline=broken),
    replace(add, name="wrong_baseline", baseline=lambda params, x, y: x - y),
)
'''

TIMEOUT = 60.0
SHORT = 3.0


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[str, tuple[str, ...]]:
    """The subject file and an extra case file."""
    folder = tmp_path_factory.mktemp("child")
    subject = folder / "odd.py"
    names = ("broken_make", "broken_reference", "broken_baseline", "wrong_baseline")
    more = f"KERNELS += tuple(Kernel(case=c, name='right', fn=right) for c in {names})\n"
    subject.write_text(textwrap.dedent(SUBJECT) + more)
    case = folder / "broken.py"
    source = Path(__file__).resolve().parent.parent / "cases" / "add.py"
    case.write_text(source.read_text() + BROKEN_CASE)
    return str(subject), (str(case),)


class Bench:
    """A judge with one runner, and short names for what it is asked."""

    def __init__(self, subject: str, case_files: tuple[str, ...]) -> None:
        self.cases = load_cases(case_files)
        self._subject = load_subject(subject, tuple(self.cases))
        self.runner = Runner(subject, case_files, TIMEOUT, None)
        self._judge = Judge(self.runner)

    def example(self, case: str = "add", seed: int = 1) -> Example:
        params = {"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"}
        return Example(case=case, params=params, inputs="exact", seed=seed)

    def kernel(self, name: str, case: str = "add") -> Kernel:
        return self._subject.find(case, name)

    def judge(self, name: str, mode: str = "interpret", case: str = "add") -> Verdict:
        found: Case = self.cases[case]
        return self._judge.judge(found, self.kernel(name, case), mode, self.example(case))


@pytest.fixture(scope="module")
def bench(places) -> Iterator[Bench]:
    made = Bench(*places)
    yield made
    made.runner.close()


@pytest.fixture
def hurried(bench, monkeypatch):
    """A bench whose runner waits a short time; its child is warm."""
    assert bench.judge("right").status is Status.PASS
    assert bench.judge("right", "tpu-interpret").status is Status.PASS
    monkeypatch.setattr(bench.runner, "_timeout", SHORT)
    yield bench
    monkeypatch.undo()
    assert bench.judge("right").status is Status.PASS, "the next example runs"


# --------------------------------------------------------------------------- what it prints


def test_output_does_not_disturb_the_answers(bench):
    assert bench.judge("prints").status is Status.PASS
    assert bench.judge("right").status is Status.PASS


def test_a_race_is_wrong(bench):
    verdict = bench.judge("races", "tpu-interpret")
    assert verdict.status is Status.WRONG
    assert verdict.why.startswith("race: ")
    assert bench.judge("right", "tpu-interpret").status is Status.PASS


def test_a_semaphore_left_signalled_is_wrong(bench):
    verdict = bench.judge("signals", "tpu-interpret")
    assert verdict.status is Status.WRONG
    assert "semaphore was left signalled" in verdict.why
    assert bench.judge("right", "tpu-interpret").status is Status.PASS


# --------------------------------------------------------------------------- what it raises


@pytest.mark.parametrize("mode", ("interpret", "tpu-interpret"))
def test_what_a_kernel_raises_is_its_verdict(bench, mode):
    verdict = bench.judge("raises", mode)
    assert (verdict.status, verdict.phase, verdict.error) == (Status.REJECTED, "trace", "KeyError")
    assert "no such block" in verdict.why


@pytest.mark.parametrize("mode", ("interpret", "tpu-interpret"))
def test_what_the_host_stage_raises_is_its_verdict(bench, mode):
    verdict = bench.judge("finish", mode)
    assert (verdict.status, verdict.phase) == (Status.REJECTED, "finish")
    assert "found late" in verdict.why


@pytest.mark.parametrize("mode", ("interpret", "tpu-interpret"))
def test_a_call_built_at_import_time_is_refused(bench, mode):
    verdict = bench.judge("early", mode)
    assert (verdict.status, verdict.phase) == (Status.REJECTED, "trace")
    assert "built before fn ran (at import time?)" in verdict.why


def test_a_function_without_a_pallas_call_does_not_conform(bench):
    verdict = bench.judge("plain")
    assert verdict.status is Status.PASS and verdict.numbers["pallas_calls"] == 0
    with pytest.raises(pytest.fail.Exception, match="not a Pallas kernel"):
        conclude([verdict], "odd.py")


# --------------------------------------------------------------------------- the engine's own


def test_an_exception_in_the_oracle_escapes(bench):
    with pytest.raises(ZeroDivisionError, match="the case itself is broken"):
        bench.judge("right", case="broken_reference")


@pytest.mark.parametrize("case", ("broken_make", "broken_baseline"))
def test_an_exception_of_the_case_in_the_child_is_an_engine_error(bench, case):
    with pytest.raises(EngineError, match="ZeroDivisionError: the case itself is broken"):
        bench.judge("right", case=case)
    assert bench.judge("right").status is Status.PASS


def test_a_baseline_that_breaks_the_bound_is_an_engine_error(bench):
    with pytest.raises(EngineError, match="XLA's own result breaks the bound on wrong_baseline/"):
        bench.judge("right", case="wrong_baseline")


# --------------------------------------------------------------------------- death and silence


def test_an_abort_is_a_crash_and_the_next_example_runs(bench):
    verdict = bench.judge("aborts")
    assert (verdict.status, verdict.error) == (Status.CRASH, "SIGABRT")
    assert "the process died (SIGABRT)" in verdict.why
    assert verdict.failed
    assert bench.judge("right").status is Status.PASS


def test_an_exit_is_a_crash(bench):
    verdict = bench.judge("exits")
    assert (verdict.status, verdict.error) == (Status.CRASH, "exit code 3")


def test_a_hanging_kernel_is_a_timeout(hurried):
    verdict = hurried.judge("sleeps")
    assert verdict.status is Status.TIMEOUT
    assert "no answer within 3 s" in verdict.why
    assert verdict.seconds < SHORT + 5


def test_a_hanging_simulator_is_a_timeout(hurried):
    assert hurried.judge("waits_once", "tpu-interpret").status is Status.PASS
    assert hurried.judge("waits_twice", "tpu-interpret").status is Status.TIMEOUT


def test_the_log_of_a_dead_child_is_kept(bench, places):
    child = Child(MODES["interpret"].environment(), 2**40)
    request = run_request(*places, "interpret", None, bench.kernel("aborts"), bench.example())
    with pytest.raises(ChildDied) as caught:
        child.call(request, TIMEOUT)
    assert "a last word before the end" in caught.value.log
    assert caught.value.returncode == -6


@pytest.mark.parametrize("limit, processes", [(1, 2), (2**40, 1)], ids=("over", "within"))
def test_a_child_beyond_its_memory_is_replaced(bench, places, limit, processes):
    child = Child(MODES["interpret"].environment(), limit)
    request = run_request(*places, "interpret", None, bench.kernel("process"), bench.example())
    seen = set()
    for _ in range(2):
        seen.add(float(np.unique(child.call(request, TIMEOUT).values[0])[0]))
    child.stop()
    assert len(seen) == processes


def test_environment_reaches_the_child(bench, places):
    """None removes a variable; what is not named is inherited."""
    environment = dict(MODES["interpret"].environment())
    assert environment["JAX_ENABLE_X64"] is None
    child = Child(environment | {"JAX_PLATFORMS": "nonsense"}, 2**40)
    request = run_request(*places, "interpret", None, bench.kernel("right"), bench.example())
    with pytest.raises(EngineError, match="nonsense"):
        child.call(request, TIMEOUT)
    child.stop()


def test_seeds_are_all_that_crosses(bench):
    """Another seed gives other values from the same program."""
    runner = bench.runner
    first, second = (
        runner.run("interpret", None, bench.kernel("right"), replace(bench.example(), seed=s), None)
        for s in (1, 2)
    )
    assert (first.values[0] != second.values[0]).any()


def test_a_child_that_hangs_dies_with_its_parent(tmp_path):
    """A run that is killed leaves no process behind, not even one that is stuck in a kernel."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, time\n"
        "from conformance.child import Child\n"
        "child = Child({}, 10**10)\n"
        "process = child._started()\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(5)\n"
        "os.kill(process.pid, signal.SIGSTOP)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, script],
        cwd=root,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    child = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _running(child):
        time.sleep(0.1)
    assert not _running(child)


def _running(pid: int) -> bool:
    """Whether a process exists and is more than an entry for its exit code."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


WRITES_ITS_INPUT = '''
"""A kernel that copies its result over its first operand in HBM."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel


def kernel(x, y, aliases):
    def body(x_ref, y_ref, o_ref, a, b):
        pltpu.sync_copy(x_ref, a)
        pltpu.sync_copy(y_ref, b)
        a[...] += b[...]
        pltpu.sync_copy(a, o_ref)
        pltpu.sync_copy(a, x_ref)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        in_specs=[anywhere, anywhere],
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.VMEM(x.shape, x.dtype)],
        input_output_aliases=aliases,
    )(x, y)


KERNELS = (
    Kernel(case="add", name="clobbers", fn=lambda x, y: kernel(x, y, {})),
    Kernel(case="add", name="aliases", fn=lambda x, y: kernel(x, y, {0: 0})),
)
'''


@pytest.mark.parametrize("mode", ["interpret", "tpu-interpret"])
def test_an_operand_that_is_written_must_be_aliased(tmp_path, mode):
    """Its values are right, but on a TPU the caller's array would change."""
    path = tmp_path / "writes.py"
    path.write_text(WRITES_ITS_INPUT)
    runner = Runner(str(path), (), TIMEOUT, None)
    subject = load_subject(str(path), tuple(load_cases()))
    example = Example(
        case="add",
        params={"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"},
        inputs="exact",
        seed=0,
    )
    judged = {
        k.name: Judge(runner).judge(load_cases()["add"], k, mode, example) for k in subject.kernels
    }
    runner.close()
    assert judged["clobbers"].status is Status.WRONG
    assert "writes to its input 0, which no output aliases" in judged["clobbers"].why
    assert judged["aliases"].status is Status.PASS
