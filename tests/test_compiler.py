"""The compile library, on real compiles. They run in a child: libtpu never loads in pytest.

Run as a script, this file is the child; it answers (function name, arguments) on its pipes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import pickle
import platform
import selectors
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from conformance import chips, compiler
from conformance.compiler import dumps, process
from conformance.compiler.refusal import CompilerUnusable, clause, refused

TIMEOUT = 120.0

# ------------------------------------------------------------------ kernels, each () -> (fn, avals)


def _f32(*shape):
    import jax

    return jax.ShapeDtypeStruct(shape, "float32")


def _call(body, *avals, out=None, **options):
    from jax.experimental import pallas as pl

    out = avals[0] if out is None else out
    return (lambda *arrays: pl.pallas_call(body, out_shape=out, **options)(*arrays)), avals


def _elementwise(function, dtype="float32", shape=(64, 128)):
    import jax

    def body(x_ref, o_ref):
        o_ref[...] = function(x_ref[...])

    return _call(body, jax.ShapeDtypeStruct(shape, dtype))


def _blocked(shape, block, index=lambda *i: i, out_index=lambda *i: i, **params):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    return _call(
        body,
        _f32(*shape),
        grid=tuple(-(-n // b) for n, b in zip(shape, block, strict=True)),
        in_specs=[pl.BlockSpec(block, index)],
        out_specs=pl.BlockSpec(block, out_index),
        compiler_params=pltpu.CompilerParams(**params),
    )


def _matmul(dtype, accumulator, rhs=None, **options):
    import jax
    import jax.numpy as jnp

    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=accumulator, **options)

    x, y = (jax.ShapeDtypeStruct((128, 128), d) for d in (dtype, rhs or dtype))
    return _call(body, x, y, out=jax.ShapeDtypeStruct((128, 128), accumulator))


def _scratch(mib, limit=None):
    """Touches a VMEM scratch of `mib` MiB; an untouched one would be eliminated."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows = mib * 2**20 // 512

    def body(x_ref, o_ref, s_ref):
        @pl.loop(0, rows // 8)
        def _(i):
            s_ref[pl.ds(pl.multiple_of(i * 8, 8), 8)] = x_ref[...] * i

        o_ref[...] = s_ref[rows - 8 :]

    return _call(
        body,
        _f32(8, 128),
        scratch_shapes=[pltpu.VMEM((rows, 128), "float32")],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
    )


def _prefetched(words):
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def body(s_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] + s_ref[words - 1]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, s: (s[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, s: (0, 0)),
    )
    index = jax.ShapeDtypeStruct((words,), "int32")
    return _call(body, index, _f32(8, 128), out=_f32(8, 128), grid_spec=spec)


def _unaligned(start_is_multiple=False):
    import jax
    from jax.experimental import pallas as pl

    def body(s_ref, x_ref, o_ref):
        start = s_ref[0, 0]
        o_ref[...] = x_ref[pl.ds(pl.multiple_of(start, 8) if start_is_multiple else start, 16)]

    from jax.experimental.pallas import tpu as pltpu

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec((64, 256))]
    start = jax.ShapeDtypeStruct((1, 1), "int32")
    return _call(body, start, _f32(64, 256), out=_f32(16, 256), in_specs=specs)


def _accumulates_in_bf16():
    """The first kernel of the matmul guide, in bf16."""
    import jax

    def body(x_ref, y_ref, o_ref):
        o_ref[...] += x_ref[...] @ y_ref[...]

    aval = jax.ShapeDtypeStruct((128, 128), "bfloat16")
    return _call(body, aval, aval)


def _masked_reshape():
    import jax.numpy as jnp

    def body(x_ref, o_ref):
        o_ref[...] = jnp.where((x_ref[...] > 0).reshape(2, 128), 1.0, 2.0)

    return _call(body, _f32(256), out=_f32(2, 128))


def _asks_for_generation():
    from jax.experimental.pallas import tpu as pltpu

    return _elementwise(lambda x: x + 1000.0 * pltpu.get_tpu_info().generation)


def _rotates():
    """Lane sums without keepdims need rotations on some chips; a roll needs one on all."""
    from jax.experimental.pallas import tpu as pltpu

    return _elementwise(lambda x: pltpu.roll(x, 3, 0), shape=(8, 128))


def _spills():
    """More live registers than there are: every row is needed again after the last was made."""

    def body(x_ref, o_ref):
        rows = [x_ref[8 * i : 8 * i + 8] * x_ref[8 * i : 8 * i + 8] for i in range(120)]
        total = functools.reduce(lambda a, b: a * 0.5 + b, rows)
        for i, row in enumerate(reversed(rows)):
            o_ref[8 * i : 8 * i + 8] = row * total

    return _call(body, _f32(960, 128))


def _three_calls_and_xla():
    import jax.numpy as jnp

    add, avals = _elementwise(lambda x: x + 1.0)
    return (lambda x: jnp.sort(add(add(add(x))), axis=0)), avals


def _fails_to_trace():
    def fn(x):
        raise TypeError("wants 3 arrays at /home/me/kernel.py:12")

    return fn, (_f32(8, 128),)


def _asserts():
    def checks_silently(x):
        raise AssertionError

    return checks_silently, (_f32(8, 128),)


MIB = 2**20
KERNELS = {
    "add": lambda: _elementwise(lambda x: x + x),
    "multiply": lambda: _elementwise(lambda x: x * x),
    "asks for generation": _asks_for_generation,
    "windows": lambda: _blocked((256, 128), (64, 128), lambda i, j: (i, 0)),
    "arbitrary": lambda: _blocked((512, 128), (64, 128), dimension_semantics=("arbitrary",) * 2),
    "parallel": lambda: _blocked(
        (512, 128), (64, 128), dimension_semantics=("parallel", "arbitrary")
    ),
    "rotates": _rotates,
    "spills": _spills,
    "three calls": _three_calls_and_xla,
    "xla alone": lambda: ((lambda x: x @ x), (_f32(256, 256),)),
    "bf16 matmul": lambda: _matmul("bfloat16", "float32"),
    "aligned": lambda: _unaligned(start_is_multiple=True),
    "vmem fits": lambda: _scratch(12),
    "vmem fits raised": lambda: _scratch(40, 64 * MIB),
    # refused
    "fails to trace": _fails_to_trace,
    "asserts": _asserts,
    "int64": lambda: _elementwise(lambda x: x.astype("int64"), "int64"),
    "block shape": lambda: _blocked((256, 256), (12, 128)),
    "block shape other": lambda: _blocked((512, 256), (8, 64)),
    "rank 1 block": lambda: _blocked((1000,), (100,)),
    "sort": lambda: _elementwise(lambda x: x.sort()),
    "unsigned dot": lambda: _matmul("uint8", "int32"),
    "bf16 accumulator": _accumulates_in_bf16,
    "f16": lambda: _elementwise(lambda x: x, "float16"),
    "int8 add": lambda: _elementwise(lambda x: x + x, "int8"),
    "int8 matmul": lambda: _matmul("int8", "int32"),
    "int8 to f32": lambda: _matmul("int8", "float32"),
    "bf16 in f32 precision": lambda: _matmul("bfloat16", "float32", precision="float32"),
    "unaligned": _unaligned,
    "vmem limit": lambda: _scratch(40),
    "vmem allocation": lambda: _scratch(200, 256 * MIB),
    "vmem sum": lambda: _elementwise(lambda x: x * 2, shape=(17 * MIB // 1024, 128)),
    "smem": lambda: _prefetched(2**19),
    "hbm": lambda: _blocked((2**28, 128), (512, 128)),
    # end the process
    "mask reshaped": _masked_reshape,
    "block out of range": lambda: _blocked((256, 128), (128, 128), out_index=lambda i, j: (7, 0)),
    "negative vmem limit": lambda: _blocked((64, 128), (64, 128), vmem_limit_bytes=-1),
}

# ------------------------------------------------------------------ what the child can be asked


def compiled(kernel, chip):
    fn, avals = KERNELS[kernel]()
    return compiler.compile_for(fn, avals, chips.get(chip), compiler.dump_dir())


def compiled_elsewhere(folder):
    fn, avals = KERNELS["add"]()
    compiler.compile_for(fn, avals, chips.get("v5e"), Path(folder))


def matmuls(chip):
    """(lhs, rhs, accumulator) -> (JAX calls it native, what the compiler said)."""
    import jax.numpy as jnp

    found = {}
    for operands in MATMULS:
        lhs, rhs, accumulator = operands
        fn, avals = _matmul(lhs, accumulator, rhs)
        said = compiler.compile_for(fn, avals, chips.get(chip), compiler.dump_dir())
        native = chips.get(chip).info.is_matmul_supported(jnp.dtype(lhs), jnp.dtype(rhs))
        found[operands] = (native, said if isinstance(said, compiler.Refused) else None)
    return found


def key(kernel, chip):
    fn, avals = KERNELS[kernel]()
    return compiler.lower_for(fn, avals, chips.get(chip)).key


def key_of_argument(dtype):
    fn, _ = KERNELS["add"]()
    argument = types.SimpleNamespace(shape=(64, 128), dtype=dtype)
    return compiler.lower_for(fn, [argument], chips.get("v5e")).key


def key_of_source(source):
    """Key of a kernel whose body is defined by `source`."""
    names = {}
    exec(compile(source, "<kernel>", "exec"), names)
    fn, avals = _call(names["body"], _f32(8, 128))
    return compiler.lower_for(fn, avals, chips.get("v5e")).key


def reused_function():
    """Modules of one function object, lowered for two chips."""
    fn, avals = KERNELS["asks for generation"]()
    return [compiler.lower_for(fn, avals, chips.get(c)).module for c in ("v5e", "v6e")]


def operations(text):
    """Names of the operations in the kernels of a parsed dump."""
    found = set()

    def visit(operation):
        found.add(operation.name)
        for region in operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    visit(inner.operation)

    visit(compiler.parse(text).operation)
    return sorted(found)


def devices():
    return {c.name: (process.device(c).device_kind, process.device(c).num_cores) for c in chips.ALL}


def dumped_files():
    return [str(p) for p in compiler.dump_dir().rglob("*") if p.is_file()]


def with_x64():
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        compiled("add", "v5e")
    finally:
        jax.config.update("jax_enable_x64", False)


def available():
    return compiler.availability(load=True)


def serve():
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            name, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = (globals()[name](*arguments), None)
        except Exception as e:
            answer = (None, f"{type(e).__name__}: {e}")
        pickle.dump(answer, answers)
        answers.flush()


# ------------------------------------------------------------------ the parent's end


class Process:
    def __init__(self, folder, **more):
        environment = os.environ | compiler.environment(folder / "dumps") | more
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={k: v for k, v in environment.items() if v is not None},
            )

    def __call__(self, name, *arguments):
        pickle.dump((name, arguments), self._process.stdin)
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(TIMEOUT), f"{name}{arguments}: no answer in {TIMEOUT} s"
        result, error = pickle.load(self._process.stdout)
        if error is not None:
            raise RuntimeError(error)
        return result

    def death(self, name, *arguments):
        """Exit code and log of a process that must die of this request."""
        with pytest.raises(EOFError):
            self(name, *arguments)
        return self._process.wait(TIMEOUT), self.log.read_text(errors="replace")

    def stop(self):
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts compiling processes; skips where there can be none."""
    if (reason := compiler.availability()) is not None:
        pytest.skip(reason)
    started = []

    def start_one(**more):
        started.append(Process(tmp_path_factory.mktemp("compiler"), **more))
        return started[-1]

    yield start_one
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def child(start):
    answering = start()
    if (reason := answering("available")) is not None:
        pytest.skip(reason)
    return answering


def accepted(answer):
    assert isinstance(answer, compiler.Compiled), answer
    return answer


# ------------------------------------------------------------------ accepted


@pytest.mark.parametrize("chip", chips.ALL, ids=chips.NAMES)
def test_every_chip_compiles_and_leaves_its_evidence(child, chip):
    result = accepted(child("compiled", "add", chip.name))
    (kernel,), (mosaic,) = result.kernels, result.mosaic
    assert result.calls == (kernel.hlo,)
    assert set(mosaic.passes) == {compiler.ORIGINAL, compiler.VREG}
    assert "vector<64x128xf32>" in mosaic.passes[compiler.ORIGINAL]
    assert "vector<8x128xf32>" in mosaic.passes[compiler.VREG]
    assert kernel.text.rstrip().count("\n") >= kernel.count > 0
    assert result.vmem_capacity == chip.info.vmem_capacity_bytes
    assert result.code_bytes > 0
    assert "stable_mosaic.arith.addf" in result.module
    assert __file__ not in result.module
    assert child("dumped_files") == []


def test_topologies_are_the_chips_they_claim(child):
    assert child("devices") == {c.name: (c.device_kind, c.cores) for c in chips.ALL}


def test_vmem_counts_both_buffers_of_both_windows(child):
    result = accepted(child("compiled", "windows", "v5e"))
    assert result.vmem_bytes == 2 * 2 * 64 * 128 * 4
    assert result.spilled_bytes == 0


def test_spills_are_reported(child):
    result = accepted(child("compiled", "spills", "v5e"))
    assert 0 < result.spilled_bytes < result.vmem_bytes
    assert tuple(v.hlo for v in result.vmem) == result.calls


def test_bundles_are_counted_to_the_last_address(child):
    (kernel,) = accepted(child("compiled", "windows", "v5e")).kernels
    addresses = [line.split()[0] for line in kernel.text.splitlines() if " {" in line]
    assert int(addresses[-1], 16) + 1 == kernel.count


@pytest.mark.parametrize("chip", chips.ALL, ids=chips.NAMES)
def test_parallel_changes_code_exactly_where_two_cores_are_one_device(child, chip):
    counts = {
        accepted(child("compiled", semantics, chip.name)).kernels[0].count
        for semantics in ("arbitrary", "parallel")
    }
    assert (len(counts) == 2) == chip.megacore


def test_a_function_without_kernels_has_code_all_the_same(child):
    result = accepted(child("compiled", "xla alone", "v5e"))
    assert (result.calls, result.kernels, result.mosaic) == ((), (), ())
    assert sum(b.count for b in result.bundles) > 0


def test_a_directory_nobody_dumps_into_is_an_error(child, tmp_path):
    with pytest.raises(RuntimeError, match=r"no program in .*start the process with environment"):
        child("compiled_elsewhere", str(tmp_path))


def test_several_calls_are_all_recorded_beside_xla(child):
    result = accepted(child("compiled", "three calls", "v5e"))
    assert len(result.calls) == 3
    assert {b.hlo for b in result.kernels} <= set(result.calls)
    assert {b.hlo.split(".")[0] for b in result.bundles if not b.kernel} >= {"sort"}
    assert 1 <= len(result.kernels) <= 3
    assert 1 <= len(result.texts(compiler.ORIGINAL)) <= 3


@pytest.mark.parametrize("kernel", ["aligned", "vmem fits", "vmem fits raised"])
def test_the_neighbours_of_refused_kernels_compile(child, kernel):
    accepted(child("compiled", kernel, "v5e"))


@pytest.mark.parametrize("chip", chips.DEFAULT)
@pytest.mark.parametrize("kernel", ["rotates", "bf16 matmul", "windows"])
def test_dumps_parse(child, kernel, chip):
    result = accepted(child("compiled", kernel, chip))
    wanted = {"rotates": "tpu.dynamic_rotate", "bf16 matmul": "tpu.matmul"}
    for name in (compiler.ORIGINAL, compiler.VREG):
        (text,) = result.texts(name)
        assert wanted.get(kernel, "arith.addf") in child("operations", text)


def test_static_rotation_parses_as_dynamic(child):
    text = (
        "module { func.func @f(%0: vector<8x128xf32>) -> vector<8x128xf32> {\n"
        "  %1 = tpu.rotate %0 by 3 dim 0 : vector<8x128xf32>\n"
        "  return %1 : vector<8x128xf32>\n} }"
    )
    assert "tpu.dynamic_rotate" in child("operations", text)


# ------------------------------------------------------------------ refused

BLOCK_RULE = (
    "The Pallas TPU lowering currently requires that the last two dimensions of your block shape "
    "are divisible by # and # respectively, or be equal to the respective dimensions of the "
    "overall array"
)
ONE_ALLOCATION = "Allocation (size=#) would exceed memory (size=#)"
# kernel, chips, phase, kind, code, error, start of the clause
REFUSALS = [
    ("fails to trace", ["v5e"], "trace", None, None, "TypeError", "wants # arrays at <path>"),
    (
        "asserts",
        ["v5e"],
        "trace",
        None,
        None,
        "AssertionError",
        "no message, raised in checks_silently",
    ),
    ("int64", ["v5e"], "trace", None, None, "ValueError", "Invalid dtype for `swap`"),
    ("block shape", ["v2", "tpu7x"], "lower", None, None, "ValueError", BLOCK_RULE),
    ("block shape other", ["v5e"], "lower", None, None, "ValueError", BLOCK_RULE),
    (
        "rank 1 block",
        ["v5e"],
        "lower",
        None,
        None,
        "ValueError",
        "The Pallas TPU lowering currently requires that rank # block shapes",
    ),
    (
        "sort",
        ["v5e"],
        "lower",
        None,
        None,
        "NotImplementedError",
        "Unimplemented primitive in Pallas TPU lowering for tc: sort",
    ),
    (
        "unsigned dot",
        ["tpu7x"],
        "lower",
        None,
        None,
        "NotImplementedError",
        "Unsigned integer dtype uint8 is not supported for dot_general (matmul)",
    ),
    (
        "bf16 accumulator",
        chips.NAMES,
        "lower",
        None,
        None,
        "VerificationError",
        "'tpu.matmul' op Expected matmul acc to be #-bit",
    ),
    (
        "f16",
        ["v2", "v5e", "tpu7x"],
        "compile",
        None,
        None,
        "MosaicError",
        "Invalid vector type for load",
    ),
    (
        "int8 add",
        ["v2", "v5e", "tpu7x"],
        "compile",
        None,
        None,
        "MosaicError",
        "Not implemented: Only vector<i16> and vector<i32> are supported, but got 'i8'",
    ),
    (
        "bf16 matmul",
        ["v2", "v3"],
        "compile",
        None,
        "E2001",
        "MosaicError",
        "Unsupported matmul RHS type on target: vector<#xbf16>",
    ),
    ("int8 to f32", ["v5e"], "compile", None, None, "MosaicError", "float acc with int lhs"),
    ("bf16 in f32 precision", ["v5e"], "compile", None, None, "MosaicError", "Bad lhs type"),
    (
        "unaligned",
        ["v2", "v5e", "tpu7x"],
        "compile",
        None,
        "E2003",
        "MosaicError",
        "cannot statically prove that index in dimension # is a multiple of #",
    ),
    (
        "vmem limit",
        ["v5e", "v6e", "tpu7x"],
        "compile",
        "vmem",
        "E1001",
        "JaxRuntimeError",
        "Ran out of memory in memory space vmem while allocating on stack",
    ),
    ("vmem limit", ["v2"], "compile", "vmem", None, "JaxRuntimeError", f"vmem: {ONE_ALLOCATION}"),
    (
        "vmem allocation",
        ["v5e", "v6e", "tpu7x"],
        "compile",
        "vmem",
        None,
        "JaxRuntimeError",
        f"vmem: {ONE_ALLOCATION}",
    ),
    (
        "vmem sum",
        ["v2"],
        "compile",
        "vmem",
        None,
        "JaxRuntimeError",
        "Ran out of memory in memory space vmem",
    ),
    (
        "smem",
        ["v5e", "tpu7x"],
        "compile",
        "smem",
        None,
        "JaxRuntimeError",
        f"smem: {ONE_ALLOCATION}",
    ),
]


@pytest.mark.parametrize(
    ("kernel", "chip", "phase", "memory", "code", "error", "says"),
    [(k, chip, *rest) for k, on, *rest in REFUSALS for chip in on],
)
def test_refusals(child, kernel, chip, phase, memory, code, error, says):
    answer = child("compiled", kernel, chip)
    assert isinstance(answer, compiler.Refused)
    kind = "REJECTED" if memory is None else "RESOURCE"
    said = (answer.phase, answer.kind, answer.memory, answer.code, answer.error)
    assert said == (phase, kind, memory, code, error)
    assert answer.clause.startswith(says)
    assert child("dumped_files") == []


def test_hbm_exhaustion_has_a_code_since_libtpu_0_0_50(child):
    answer = child("compiled", "hbm", "v5e")
    assert (answer.phase, answer.kind, answer.memory) == ("compile", "RESOURCE", "hbm")
    assert answer.code in (None, "E1000")
    assert answer.clause.startswith("Ran out of memory on HBM")


def test_one_reason_has_one_clause_on_every_shape_and_chip(child):
    clauses = {
        child("compiled", kernel, chip).clause
        for kernel in ("block shape", "block shape other")
        for chip in ("v2", "tpu7x")
    }
    assert len(clauses) == 1


MATMULS = [
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("int8", "int8", "int32"),
    ("int4", "int4", "int32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"),
    ("float8_e5m2", "float8_e5m2", "float32"),
    ("uint8", "uint8", "int32"),
]


@pytest.mark.parametrize("chip", chips.NAMES)
def test_what_jax_calls_a_native_matmul_compiles_unless_unsigned(child, chip):
    answers = child("matmuls", chip)
    refused_native = {dtypes for dtypes, (native, refusal) in answers.items() if native and refusal}
    expected = {("uint8", "uint8", "int32")} if chip in ("v5e", "v5p", "v6e") else set()
    assert refused_native == expected


EMULATED = {
    "v5e": {("float8_e4m3fn",) * 2 + ("float32",)},
    "v6e": {("float8_e4m3fn",) * 2 + ("float32",)},
    "tpu7x": {("int8", "int8", "int32"), ("int4", "int4", "int32")},
    "v4": set(),
    "v2": set(),
}


@pytest.mark.parametrize("chip", EMULATED)
def test_matmuls_that_compile_without_being_native(child, chip):
    answers = child("matmuls", chip)
    found = {dtypes for dtypes, (native, refusal) in answers.items() if not native and not refusal}
    assert found == EMULATED[chip]


# ------------------------------------------------------------------ deaths


@pytest.mark.parametrize(
    ("kernel", "chip", "check"),
    [
        ("mask reshaped", "v5e", "rem == 0"),
        ("block out of range", "v5e", "llo::CouldLeS32"),
        ("block out of range", "tpu7x", "llo::CouldLeS32"),
        ("negative vmem limit", "tpu7x", ""),
    ],
)
def test_inputs_that_end_the_process(start, kernel, chip, check):
    """When one of these fails, libtpu was repaired: drop the row."""
    returncode, log = start().death("compiled", kernel, chip)
    assert returncode == -signal.SIGABRT
    assert "Check failed: " + check in log


def test_a_new_process_ignores_what_a_dead_one_dumped(child):
    folder = Path(child.log.parent / "dumps" / process.MOSAIC_DUMPS)
    (folder / f"1-0001-mosaic-dump-stale-{compiler.ORIGINAL}.txt").write_text("stale")
    result = accepted(child("compiled", "add", "v5e"))
    assert [m.name for m in result.mosaic if m.name == "stale"] == []


# ------------------------------------------------------------------ keys


def test_key_is_of_the_program_and_the_chip(child):
    keys = {
        (kernel, chip): child("key", kernel, chip)
        for kernel in ("add", "multiply")
        for chip in ("v5e", "v6e")
    }
    assert len(set(keys.values())) == 4
    assert child("key", "add", "v5e") == keys["add", "v5e"]
    assert child("compiled", "add", "v5e").key == keys["add", "v5e"]


def test_key_does_not_depend_on_where_the_source_stands(child):
    body = "def body(x_ref, o_ref):\n    o_ref[...] = x_ref[...] + {}\n"
    assert child("key_of_source", body.format(1.0)) == child(
        "key_of_source", "\n\n# moved\n" + body.format(1.0)
    )
    assert child("key_of_source", body.format(1.0)) != child("key_of_source", body.format(2.0))


def test_arguments_of_64_bits_are_halved_as_jax_does(child):
    assert child("key_of_argument", "float64") == child("key_of_argument", "float32")


def test_one_function_is_traced_anew_for_each_chip(child):
    v5e, v6e = child("reused_function")
    assert "5.000000e+03" in v5e and "6.000000e+03" in v6e


# ------------------------------------------------------------------ the process


def test_x64_is_refused_with_its_reason(child):
    with pytest.raises(RuntimeError, match="jax_enable_x64 is on"):
        child("with_x64")


def test_environment_shields_from_the_callers_settings(monkeypatch, start):
    for name in ("JAX_ENABLE_X64", "JAX_DISABLE_JIT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("XLA_FLAGS", "--no_such_flag")
    accepted(start()("compiled", "add", "v5e"))


def test_both_dumps_are_asked_for():
    flags = compiler.environment("/dumps")["LIBTPU_INIT_ARGS"].split()
    assert "--xla_mosaic_dump_to=/dumps/mosaic" in flags
    assert "--xla_jf_dump_to=/dumps/schedule" in flags


def test_broken_libtpu_is_a_reason_and_not_an_error(start, tmp_path):
    (tmp_path / "libtpu.so").write_bytes(b"not a library")
    broken = start(TPU_LIBRARY_PATH=str(tmp_path / "libtpu.so"))
    assert broken("available").startswith("libtpu describes no topology: ")


def test_other_machines_and_missing_wheels_are_named(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "arm64")
        assert "no wheel for" in compiler.availability()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "not installed" in compiler.availability()


def test_dump_dir_needs_the_environment(monkeypatch):
    monkeypatch.delenv("CONFORMANCE_DUMP_DIR", raising=False)
    with pytest.raises(RuntimeError, match="environment"):
        compiler.dump_dir()


def test_the_parents_part_loads_no_jax():
    script = (
        "import sys\n"
        "from conformance import compiler\n"
        "compiler.availability(), compiler.environment('d')\n"
        "assert 'jax' not in sys.modules and 'libtpu' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ------------------------------------------------------------------ texts, without a compiler


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "INTERNAL: Mosaic failed to compile TPU kernel: Bad lhs type\n\nat location: loc(x)",
            "Bad lhs type",
        ),
        (
            "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `k` HLO name "
            "`kernel.1`: Bad lhs type",
            "Bad lhs type",
        ),
        (
            "INTERNAL: Mosaic failed to compile TPU kernel: failed to legalize operation "
            "'arith.remf': %430 = \"arith.remf\"(%94, %73)",
            "failed to legalize operation 'arith.remf'",
        ),
        (
            "INTERNAL: LLO_CHECK failure (platforms/xla/llo/region.cc:12) unsupported: bf16",
            "LLO_CHECK failure (<path>) unsupported: bf16",
        ),
        ("block (8, 128) of shape (256,) in [1, 2]", "block # of shape # in [#]"),
        ("cannot cast vector<2x8x128xi8> at 0x7f00", "cannot cast vector<#xi8> at #"),
        ("wants v5e or i32 or bf16", "wants v5e or i32 or bf16"),
        ("", ""),
    ],
)
def test_clause(message, expected):
    assert clause(message) == expected


@pytest.mark.parametrize(
    "error", [RuntimeError("UNAVAILABLE: socket closed"), MemoryError("out of host memory")]
)
def test_a_fault_of_the_machine_is_no_verdict(error):
    with pytest.raises(CompilerUnusable):
        refused("compile", error)


def test_an_unknown_exhaustion_is_still_a_resource():
    answer = refused("compile", RuntimeError("RESOURCE_EXHAUSTED: no more of that"))
    assert (answer.kind, answer.memory) == ("RESOURCE", "unknown")


def test_notes_are_part_of_the_message():
    error = ValueError("bad")
    error.add_note("while lowering `dot`")
    assert refused("lower", error).message == "bad\nwhile lowering `dot`"


def test_answers_are_plain_data():
    vmem = dumps.Vmem(hlo="kernel.1", used=4096, spilled=0, padding=0)
    assert dataclasses.asdict(vmem)["used"] == 4096


def test_report_without_data_is_an_error(tmp_path):
    dumps.clear(tmp_path)
    (tmp_path / process.SCHEDULE_DUMPS / "1-TLP-hlo.txt").write_text("HloModule")
    (tmp_path / process.SCHEDULE_DUMPS / "1-TLP-02-vmem_report.html").write_text("<html>")
    with pytest.raises(ValueError, match="no embedded data"):
        dumps.read(tmp_path)


if __name__ == "__main__":
    serve()
