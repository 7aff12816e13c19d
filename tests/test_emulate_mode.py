"""Mode emulate through the engine: right kernels pass, and wrong ones are told what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import compiler
from conformance.case import Example, Kernel
from conformance.judge import Judge
from conformance.loading import load_cases, load_subject
from conformance.report.lines import read
from conformance.runner import Runner
from conformance.verdict import Status, Verdict

pytestmark = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)

TIMEOUT = 120.0
LABEL = "compiler IR, not hardware"
LOWERED = "wrong already in the IR that JAX lowered: the kernel, or JAX's lowering"

SUBJECT = '''
"""Somebody's kernels: right ones, and ones that are wrong in one way each."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel

F32 = jnp.float32


# ---------------------------------------------------------------- right


def dot_body(x_ref, y_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def clear():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def store():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def dot(x, y, *, bm, bk, bn):
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        dot_body,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), F32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def add_body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def blocked(body, x, y, index=lambda i: (i, 0), **options):
    """Blocks of 16 rows; which ones of y is up to `index`."""
    rows = pl.BlockSpec((16, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], 16),),
        in_specs=[rows, pl.BlockSpec(rows.block_shape, index)],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        **options,
    )(x, y)


def right(x, y):
    return blocked(add_body, x, y)


def in_scan(x, y):
    """The parts of the sum in reverse, and how many there were, by XLA."""
    parts = (x.reshape(-1, 32, x.shape[1]), y.reshape(-1, 32, x.shape[1]))
    count, sums = lax.scan(lambda n, xy: (n + 1, right(*xy)), 0, parts, reverse=True)
    return sums.reshape(x.shape) + (count - 2).astype(x.dtype)


def in_cond(x, y):
    """Either branch once."""
    add = lambda a, b: right(a, b)
    zero = lambda a, b: jnp.zeros_like(a)
    some = x[0, 0] * 0 == 0
    return lax.cond(some, add, zero, x, y) + lax.cond(~some, add, zero, x, y)


def in_while(x, y):
    def again(carry):
        n, total = carry
        return n + 1, right(total, y)

    return lax.while_loop(lambda carry: carry[0] < 3, again, (0, x))[1] - 2 * y


def twice(x, y):
    """XLA before, between and after; the first result is used again at the end."""
    first = right(x * 2, y)
    second = jax.jit(right)(first - x, y[::-1][::-1])
    return second + first - right(x * 2, y) - y


def negated(x, y):
    """What `prepare` and `finish` make right."""
    return right(-x, y)


def prepare(x, y):
    return x, -y


def finish(result):
    return -result


def finish_raises(result):
    raise ArithmeticError("cannot finish")


# ---------------------------------------------------------------- wrong


def no_init_body(x_ref, y_ref, o_ref):
    o_ref[...] += x_ref[...] + y_ref[...]


def no_init(x, y):
    return blocked(no_init_body, x, y)


def sum_body(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def clear():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.sum(x_ref[...], axis=0)


def summed(x, size, semantics):
    b, m, n = x.shape
    return pl.pallas_call(
        sum_body,
        grid=(pl.cdiv(b, size),),
        in_specs=[pl.BlockSpec((size, m, n), lambda i: (i, 0, 0))],
        out_specs=pl.BlockSpec((m, n), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
    )(x)


def whole(x):
    return summed(x, 1, "arbitrary")


def ragged_tail(x):
    """3 in parts of 2: the last part's second half is not there."""
    return summed(x, 2, "arbitrary")


def parallel_sum(x):
    return summed(x, 1, "parallel")


def copied(body, x, y):
    return pl.pallas_call(
        body,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x, y)


def awaited(x, y):
    def body(x_ref, y_ref, o_ref, scratch, semaphore):
        copy = pltpu.make_async_copy(x_ref, scratch, semaphore)
        copy.start()
        copy.wait()
        o_ref[...] = scratch[...] + y_ref[...]

    return copied(body, x, y)


def awaited_too_late(x, y):
    def body(x_ref, y_ref, o_ref, scratch, semaphore):
        copy = pltpu.make_async_copy(x_ref, scratch, semaphore)
        copy.start()
        o_ref[...] = scratch[...] + y_ref[...]
        copy.wait()

    return copied(body, x, y)


def never_awaited(x, y):
    def body(x_ref, y_ref, o_ref, scratch, semaphore):
        pltpu.make_async_copy(x_ref, scratch, semaphore).start()
        o_ref[...] = scratch[...] + y_ref[...]

    return copied(body, x, y)


def wrong_map(x, y):
    return blocked(add_body, x, y, lambda i: (0, 0))


def map_outside(x, y):
    return blocked(add_body, x, y, lambda i: (i + 1, 0))


# ---------------------------------------------------------------- not executed


def random_body(x_ref, y_ref, o_ref):
    pltpu.prng_seed(0)
    bits = pltpu.bitcast(pltpu.prng_random_bits(x_ref.shape), jnp.int32)
    o_ref[...] = x_ref[...] + y_ref[...] + (bits * 0).astype(x_ref.dtype)


def random(x, y):
    return blocked(random_body, x, y)


def refused(x, y):
    """Blocks of 12 rows are no multiple of 8."""
    rows = pl.BlockSpec((12, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        add_body,
        grid=(2,),
        in_specs=[rows, rows],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


def exhausts(x, y):
    """More VMEM than it asks for."""

    def body(x_ref, y_ref, o_ref, large):
        @pl.loop(0, 1024)
        def fill(i):
            large[pl.ds(pl.multiple_of(i * 8, 8), 8)] = x_ref[:8, :128] * i

        o_ref[...] = x_ref[...] + y_ref[...]
        o_ref[:8, :128] = large[8184:]

    scratch = [pltpu.VMEM((8192, 128), x.dtype)]
    limit = pltpu.CompilerParams(vmem_limit_bytes=2**20)
    return blocked(body, x, y, scratch_shapes=scratch, compiler_params=limit)


def raises(x, y):
    raise LookupError("no such block")


def never(example, chip):
    return f"not on {chip.name}"


ADD = (
    *(right, in_scan, in_cond, in_while, twice, no_init, awaited, awaited_too_late, never_awaited),
    *(wrong_map, map_outside, random, refused, exhausts, raises),
)
KERNELS = (
    Kernel(case="matmul", name="dot", fn=dot),
    *(Kernel(case="add", name=fn.__name__, fn=fn) for fn in ADD),
    Kernel(case="add", name="staged", fn=negated, prepare=prepare, finish=finish),
    Kernel(case="add", name="finish_raises", fn=right, finish=finish_raises),
    Kernel(case="add", name="prepare_raises", fn=right, prepare=raises),
    Kernel(case="add", name="right_denied", fn=right, unsupported=never),
    Kernel(case="add", name="refused_denied", fn=refused, unsupported=never),
    Kernel(case="add", name="exhausts_denied", fn=exhausts, unsupported=never),
    *(Kernel(case="sum", name=fn.__name__, fn=fn) for fn in (whole, ragged_tail, parallel_sum)),
)
'''
POINTS: dict[str, dict[str, Any]] = {
    "add": {"m": 64, "n": 128, "bm": 16, "bn": 128, "dtype": "float32"},
    "sum": {"b": 3, "m": 16, "n": 128, "bm": 16, "bn": 128, "dtype": "float32"},
    "matmul": {"m": 16, "k": 256, "n": 128, "bm": 8, "bk": 128, "bn": 128, "dtype": "bfloat16"},
}


class Bench:
    """A judge with one runner, and short names for what it is asked."""

    def __init__(self, subject: Path) -> None:
        self._cases = load_cases()
        self._subject = load_subject(str(subject), tuple(self._cases))
        self.runner = Runner(str(subject), (), TIMEOUT, None)
        self._judge = Judge(self.runner)

    def judge(self, name: str, chip: str = "v5e", mode: str = "emulate", **more: Any) -> Verdict:
        case, _, kernel_name = name.rpartition("/")
        kernel: Kernel = self._subject.find(case or "add", kernel_name)
        params = POINTS[kernel.case] | more
        example = Example(case=kernel.case, params=params, inputs="position", seed=1)
        return self._judge.judge(self._cases[kernel.case], kernel, mode, example, chip)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("somebody else") / "their_kernels.py"
    path.write_text(SUBJECT)
    return path


@pytest.fixture(scope="module")
def bench(subject: Path) -> Iterator[Bench]:
    made = Bench(subject)
    yield made
    made.runner.close()


# --------------------------------------------------------------------------- right


@pytest.mark.parametrize("chip", ["v5e", "tpu7x"])
def test_a_right_kernel_passes(bench, chip):
    for name in ("matmul/dot", "right", "awaited", "sum/whole"):
        verdict = bench.judge(name, chip)
        assert (verdict.status, verdict.why) == (Status.PASS, "")
        assert verdict.passed
        assert verdict.numbers["executes"] == LABEL
        assert verdict.numbers["error_ratio"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_ragged_blocks_pass(bench, dtype):
    """Of packed rows too."""
    assert bench.judge("right", "tpu7x", dtype=dtype, m=72).status is Status.PASS


@pytest.mark.parametrize("name", ["in_scan", "in_cond", "in_while", "twice"])
def test_kernels_inside_of_a_program(bench, name):
    verdict = bench.judge(name)
    assert (verdict.status, verdict.why) == (Status.PASS, "")


def test_host_stages_run_before_and_after(bench):
    verdict = bench.judge("staged")
    assert (verdict.status, verdict.why) == (Status.PASS, "")


@pytest.mark.parametrize(
    ("name", "phase", "error"),
    [
        ("finish_raises", "finish", "ArithmeticError"),
        ("prepare_raises", "prepare", "LookupError"),
        ("raises", "trace", "LookupError"),
    ],
)
def test_what_a_stage_raises_is_refused_in_its_phase(bench, name, phase, error):
    verdict = bench.judge(name)
    assert (verdict.status, verdict.phase, verdict.error) == (Status.REJECTED, phase, error)


# --------------------------------------------------------------------------- wrong

CAUSES = {
    "no_init": "result 0 depends on memory that was never written",
    "sum/ragged_tail": "result 0 depends on memory that was never written",
    "awaited_too_late": "a wait is missing",
    "never_awaited": "semaphores were left at [32768]",
    "sum/parallel_sum": "`parallel` axes",
    "wrong_map": "elements wrong; first at [16, 0]: got ",
    "map_outside": "out of bounds: block index (4, 0) of an operand of shape (64, 128)",
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_wrong_kernel_is_told_what_is_wrong_and_whose_fault_it_is(bench, name):
    """Although each of them compiles."""
    verdict = bench.judge(name)
    assert (verdict.status, verdict.phase) == (Status.WRONG, "run")
    assert CAUSES[name] in verdict.why
    assert verdict.why.endswith(f"; {LOWERED}")
    assert verdict.failed
    assert bench.judge(name, mode="aot").status is Status.COMPILED


# --------------------------------------------------------------------------- not executed


def test_an_operation_that_is_not_known_is_unsupported(bench):
    """The compiler takes it; what its bits are is the chip's affair. Never a pass."""
    verdict = bench.judge("random")
    assert (verdict.status, verdict.phase) == (Status.UNSUPPORTED, "run")
    assert "the executor does not know tpu.prng_" in verdict.why
    assert not verdict.passed and not verdict.failed


def test_a_refusal_that_was_not_declared_fails(bench):
    verdict = bench.judge("refused")
    assert (verdict.status, verdict.phase) == (Status.REJECTED, "lower")
    assert verdict.failed
    resource = bench.judge("exhausts")
    assert (resource.status, resource.phase, resource.code) == (
        Status.RESOURCE,
        "compile",
        "E1001",
    )


@pytest.mark.parametrize("name", ["refused_denied", "exhausts_denied"])
def test_a_refusal_that_was_declared_skips(bench, name):
    verdict = bench.judge(name)
    assert verdict.status is Status.UNSUPPORTED
    assert verdict.why.startswith("not on v5e: ")
    assert not verdict.passed and not verdict.failed


def test_a_declaration_that_the_compiler_does_not_confirm_is_wrong(bench):
    """As in mode aot: a declaration is a claim."""
    verdict = bench.judge("right_denied")
    assert verdict.status is Status.WRONG
    assert "declared unsupported (not on v5e), but the compiler accepts it" in verdict.why


# --------------------------------------------------------------------------- through pytest


def test_a_run_says_what_was_executed_and_what_is_wrong(python, subject, tmp_path):
    """In results.jsonl, and in the failure that is printed."""
    point = ",".join(f"{k}={v}" for k, v in POINTS["add"].items())
    run = python(
        *("-m", "pytest", "-p", "no:cacheprovider", "-q", f"--subject={subject}"),
        *("--mode=emulate", "--chip=v5e", "--kernel=add/right,add/no_init,add/random"),
        *(f"--replay=add/{point},inputs=exact", f"--report={tmp_path}"),
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    rows = {row["kernel"]: row for row in read(tmp_path / "results.jsonl")}
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"right": "PASS", "no_init": "WRONG", "random": "UNSUPPORTED"}
    assert rows["right"]["numbers"]["executes"] == LABEL
    assert "add/no_init in emulate@v5e: 1 of 1 examples failed" in run.stdout
    assert "never written" in run.stdout and LOWERED in run.stdout
    assert "--mode emulate --chip v5e" in run.stdout
