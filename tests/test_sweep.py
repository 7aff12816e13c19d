"""Sweeps: search spaces, ties and Pareto tables, kept results, calls with them, real compiles."""

from __future__ import annotations

import contextlib
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from conformance import chips, cli, compiler, serve, sweep, sweeping
from conformance.case import Kernel
from conformance.child import EngineError
from conformance.compiler.process import abstract_mesh
from conformance.loading import DEFAULT_SUBJECT, load_subject
from conformance.sweep import Result, Sweep, Sweeps, tunable
from conformance.sweeping import Worker, compiling_child, points, report, run, space, write

POINT = {"m": 1024, "k": 512, "n": 4096, "dtype": "bfloat16"}
OPERANDS = ("bfloat16[1024,512]", "bfloat16[512,4096]")
V5E = chips.get("v5e")
ROOT = Path(__file__).resolve().parent.parent


def result(name, seconds=None, vmem=None, **more):
    return Result(options={"bm": name}, seconds=seconds, vmem=vmem, spilled=0, **more)


def swept(*results, **fields):
    found = Sweep(
        case="matmul",
        kernel="mine",
        chip="v5e",
        libtpu="1",
        params=POINT,
        arguments=OPERANDS,
        results=list(results),
    )
    return replace(found, **fields)


RESULTS = (
    result(1, 1.00, 300, limits=("here",)),
    result(2, 1.01, 100),
    result(3, 1.20, 200),
    result(4, 1.50, 50),
    result(5, dropped="REJECTED: why"),
    result(6, dropped="REJECTED: why"),
)


def names(results):
    return [r.options["bm"] for r in results]


def array(dtype, *shape):
    return np.zeros(shape, dtype)


def operands():
    return array(ml_dtypes.bfloat16, 1024, 512), array(ml_dtypes.bfloat16, 512, 4096)


# --------------------------------------------------------------------------- results


def test_ties_are_no_winner():
    assert names(swept(*RESULTS).best()) == [2, 1]
    assert names([swept(*RESULTS).shortest()]) == [1]


def test_pareto_leaves_out_what_is_beaten_in_both():
    assert names(swept(*RESULTS).pareto()) == [1, 2, 4]


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match="no configuration of matmul/mine"):
        swept(RESULTS[4]).best()


def test_results_survive_the_file(tmp_path):
    before = Sweeps(sweeps=[swept(*RESULTS), swept(chip="v6e")])
    write(before, tmp_path / "sweeps.json")
    assert sweep.load(tmp_path / "sweeps.json") == before


@pytest.mark.parametrize("text", ["[]", "{}", '{"sweeps": [{"a": 1}]}', "nothing"])
def test_another_file_is_refused(tmp_path, text):
    file = tmp_path / "sweeps.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))}: not the results of sweeps"):
        sweep.load(file)


def test_the_best_of_each_sweep_is_kept():
    found = Sweeps(sweeps=[swept(*RESULTS), swept(RESULTS[4])]).reduced()
    assert [names(s.results) for s in found.sweeps] == [[1]]


# --------------------------------------------------------------------------- calls


def mine(x, y, *, bm=128):
    return bm


def test_a_kernel_takes_its_blocks_from_the_sweeps_in_force():
    call = tunable("matmul/mine")(mine)
    x, y = operands()
    inner = Sweeps(sweeps=[swept(result(7, 1.0, 1))])
    with abstract_mesh(V5E), Sweeps(sweeps=[swept(*RESULTS)]) as outer:
        assert call(x, y) == 1
        assert call(x, y, bm=9) == 9
        assert call(y, x) == 128  # other shapes
        with inner:
            assert call(x, y) == 7
        assert call(x, y) == 1
        with abstract_mesh(chips.get("v6e")):
            assert call(x, y) == 128
    with abstract_mesh(V5E):
        assert call(x, y) == 128
    assert outer.best_for("matmul/mine", "v5e", operands()) == {"bm": 1}
    assert outer.call("matmul/mine", mine, x, y, chip="v5e") == 1


def test_without_a_chip_a_kernel_is_called_as_it_was():
    with Sweeps(sweeps=[swept(*RESULTS)]):
        assert tunable("matmul/mine")(mine)(*operands()) == 128


def test_options_of_the_contract_must_agree():
    found = Sweeps(sweeps=[swept(*RESULTS, options={"activation": "relu"})])
    assert found.find("matmul/mine", "v5e", operands()) is None
    assert found.find("matmul/mine", "v5e", operands(), {"activation": "gelu"}) is None
    assert found.find("matmul/mine", "v5e", operands(), {"activation": "relu"}) == {"bm": 1}


def test_what_was_not_swept_is_an_error_where_it_is_asked_for():
    with pytest.raises(ValueError, match=r"no sweep of matmul/mine on v6e for \(bfloat16\[1024"):
        Sweeps(sweeps=[swept(*RESULTS)]).best_for("matmul/mine", "v6e", operands())


# --------------------------------------------------------------------------- going on


def test_an_interrupted_sweep_goes_on(tmp_path):
    file, asked = tmp_path / "sweeps.json", []

    def evaluate(sweep, options):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(options["bm"])
        return result(options["bm"], 1.0, 1)

    configurations = [{"bm": n} for n in range(4)]
    kept = Sweeps(sweeps=[swept(chip="v6e"), swept()])
    with pytest.raises(KeyboardInterrupt):
        run(kept.of(swept()), configurations, evaluate, lambda: write(kept, file), lambda: None)
    found, seen = sweep.load(file), []
    run(
        found.of(swept()),
        configurations,
        lambda sweep, options: result(options["bm"]),
        lambda: write(found, file),
        lambda: seen.append(1),
    )
    assert asked == [0, 1] and names(found.sweeps[1].results) == [0, 1, 2, 3]
    assert len(seen) == 4 and not found.sweeps[0].results
    assert sweep.load(file) == found


def test_another_libtpu_does_not_go_on():
    with pytest.raises(ValueError, match="made with another libtpu: '1'"):
        Sweeps(sweeps=[swept()]).of(swept(libtpu="2"))


def test_another_point_is_another_sweep():
    kept = Sweeps(sweeps=[swept()])
    assert kept.of(swept(params={**POINT, "m": 8})) is kept.sweeps[1]


# --------------------------------------------------------------------------- spaces


def test_the_space_is_every_length_and_the_whole(cases):
    kernel = Kernel(case="matmul", name="mine", fn=lambda x, y, *, bm, bk, bn: x)
    found = list(space(cases["matmul"], kernel, POINT, V5E))
    assert {o["bm"] for o in found} == {128, 256, 512, 1024}
    assert {o["bk"] for o in found} == {128, 256, 512}
    assert {o["bn"] for o in found} == {128, 256, 512, 1024, 2048}
    assert len(found) == 4 * 3 * 5


def test_a_block_that_is_not_taken_is_not_varied(cases):
    kernel = Kernel(case="matmul", name="mine", fn=lambda x, y, *, bm, bn: x)
    assert {o["bk"] for o in space(cases["matmul"], kernel, POINT, V5E)} == {512}


def test_a_kernel_has_its_own_space(cases):
    own = [{"bm": 8}]
    kernel = Kernel(case="matmul", name="mine", fn=lambda: 0, configs=lambda example, chip: own)
    assert list(space(cases["matmul"], kernel, POINT, V5E)) == own


def test_the_report_says_what_was_dropped():
    text = report(swept(*RESULTS))
    assert "predicted" in text and "within the model's error of 2 %: bm=2, bm=1" in text
    assert "dropped 2: REJECTED: why" in text
    assert report(swept(RESULTS[4])).endswith("dropped 1: REJECTED: why\n")


# --------------------------------------------------------------------------- the command line


def test_points_are_in_the_order_of_the_case(cases):
    case = cases["matmul_activation"]
    found = points(case, ["n=3,k=2,m=1", "m=4,k=5,n=6"], "bfloat16", ["activation=relu"])
    assert [tuple(p.items()) for p in found] == [
        (("m", m), ("k", k), ("n", n), ("dtype", "bfloat16"), ("activation", "relu"))
        for m, k, n in ((1, 2, 3), (4, 5, 6))
    ]


@pytest.mark.parametrize(
    ("shape", "dtype", "others", "said"),
    [
        ("m=1,k=2", "bfloat16", "activation=relu", "n is missing: give it with --shape"),
        ("m=1,k=2,n=3", None, "activation=relu", "dtype is missing: give it with --dtype"),
        ("m=1,k=2,n=3", "bfloat16", "", "activation is missing: give it with --params"),
        ("m=1,k=2,n=3,x=4", "bfloat16", "", "--shape x=4: matmul_activation has the parameters"),
        ("m=1,k=2,n", "bfloat16", "", "--shape n: matmul_activation has the parameters"),
        ("m=1,k=2,n=3,bm=4", "bfloat16", "", "bm is a block: its place is the sweep"),
        ("m=1,m=2", "bfloat16", "", "m is given twice"),
        ("m=one", "bfloat16", "", "'one' is not an integer"),
        ("m=0,k=2,n=3", "bfloat16", "activation=relu", "m must be an integer >= 1, got 0"),
        ("m=1,k=2,n=3", "float16", "activation=relu", "dtype must be one of float32, bfloat16"),
        ("m=1,k=2,n=3", "bfloat16", "activation=tan", "activation must be one of relu, gelu"),
        ("m=1,k=2,n=3", "bfloat16", "dtype=float32", "dtype is a dtype: its place is --dtype"),
        ("m=1", "bfloat16", "k=2", "k is a size: its place is --shape"),
    ],
)
def test_what_is_wrong_with_a_point_is_named(cases, shape, dtype, others, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        points(cases["matmul_activation"], [shape], dtype, [others])


def test_the_command_names_its_commands(python):
    assert "sweep" in python("-m", "conformance", "--help").stdout


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["swep"])
    assert "invalid choice: 'swep'" in capsys.readouterr().err


def test_the_command_says_how_a_point_is_given(capsys):
    with pytest.raises(SystemExit):
        sweeping.main(["--help"])
    assert "--shape" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matmull"], "no case 'matmull'"),
        (["matmul", "--kernel", "none"], "no kernel 'none' of matmul in reference_kernels"),
        (["matmul", "--shape", "m=8,k=8,n=8", "--dtype", "float32", "--chip", "v9"], "chip 'v9'"),
    ],
)
def test_what_is_wrong_with_a_command_is_named(capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        sweeping.main(arguments)
    assert stopped.value.code == 2 and said in capsys.readouterr().err


# --------------------------------------------------------------------------- real compiles

SUBJECT = '''
"""Kernels of case add: good, and odd in one way each."""

import os
import time

import jax
from jax.experimental import pallas as pl

from conformance import Kernel


def body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def corner(x_ref, y_ref, o_ref):
    o_ref[:8, :128] = x_ref[:8, :128] + y_ref[:8, :128]


def good(x, y, *, bm, body=body):
    spec = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], bm),),
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


def wide(x, y, *, bm):
    """Little code for its blocks."""
    return good(x, y, bm=bm, body=corner)


def aborts(x, y, *, bm):
    os.abort()


def sleeps(x, y, *, bm):
    time.sleep(60)


def refuse(x, y, *, bm):
    raise ValueError("bm must be even")


def prepared(x, y, *, bm):
    return good(x, y, bm=bm)


KERNELS = (
    *(Kernel(case="add", name=fn.__name__, fn=fn) for fn in (good, wide, aborts, sleeps)),
    Kernel(case="add", name="prepared", fn=prepared, prepare=refuse),
)
'''
ADD = {"m": 64, "n": 128, "dtype": "float32"}


@pytest.fixture(scope="module")
def child():
    if (reason := compiler.availability()) is not None:
        pytest.skip(reason)
    with compiling_child() as found:
        yield found


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    file = tmp_path_factory.mktemp("subject") / "odd.py"
    file.write_text(textwrap.dedent(SUBJECT))
    return str(file)


def worker_of(cases, child, subject, case, kernel):
    found = load_subject(subject, tuple(cases)).find(case, kernel)
    return Worker(cases[case], found, subject, child)


def evaluated(worker, params, options, chip="v5e"):
    empty = Sweep(
        case=worker.case.name, kernel=worker.kernel.name, chip=chip, libtpu="", params=params
    )
    return empty, worker(empty, options)


def test_configurations_are_compiled_in_a_child(cases, child, subject):
    worker = worker_of(cases, child, subject, "add", "good")
    found, good = evaluated(worker, ADD, {"bm": 8, "bn": 128})
    assert good.dropped is None and 0 < good.seconds < 1e-4 and good.vmem > 0
    assert found.arguments == ("float32[64,128]",) * 2 and found.options == {}
    illegal = evaluated(worker, ADD, {"bm": 12, "bn": 128})[1]
    assert illegal.dropped.startswith("illegal: bm must be")
    assert worker.evaluated == 1 and re.fullmatch(
        r"evaluated 1 in [\d.]+ s, [\d.]+ a second", worker.rate
    )


def test_too_much_vmem_is_a_reason(cases, child, subject):
    worker = worker_of(cases, child, subject, "add", "wide")
    found = evaluated(worker, {**ADD, "m": 2**13, "n": 1024}, {"bm": 2**13, "bn": 1024})[1]
    assert found.seconds is None and found.dropped.startswith("RESOURCE: ")


def test_a_crash_a_timeout_and_a_refusal_are_told_apart(cases, child, subject, monkeypatch):
    def dropped(kernel):
        worker = worker_of(cases, child, subject, "add", kernel)
        return evaluated(worker, ADD, {"bm": 8, "bn": 128})[1].dropped

    assert dropped("aborts").startswith("CRASH: the process died (SIGABRT)")
    assert dropped("prepared") == "REJECTED: prepare: ValueError: bm must be even"
    monkeypatch.setattr(sweeping, "TIMEOUT", 1.0)
    assert dropped("sleeps") == "TIMEOUT: no answer within 1 s"


def test_an_error_of_the_suite_is_no_result(cases, child, subject):
    unknown = Kernel(case="add", name="unknown", fn=lambda x, y: x)
    with pytest.raises(EngineError, match="has no kernel 'unknown'"):
        evaluated(Worker(cases["add"], unknown, subject, child), ADD, {"bm": 8, "bn": 128})


STEERED = (
    (
        "dsd",
        "static_blocks",
        {"m": 64, "k": 512, "n": 256, "pattern": "random"},
        {"bm": 16, "bk": 128, "bn": 128},
    ),
    (
        "dsd",
        "dynamic_blocks",
        {"m": 64, "k": 512, "n": 256, "pattern": "random"},
        {"bm": 16, "bk": 128, "bn": 128},
    ),
    (
        "masked_matmul",
        "prefetch_maps",
        {"m": 64, "k": 128, "n": 256, "mask": "causal"},
        {"bm": 16, "bk": 128, "bn": 128},
    ),
)


@pytest.mark.parametrize(("case", "kernel", "params", "blocks"), STEERED)
def test_kernels_that_numbers_steer_are_predicted(cases, child, case, kernel, params, blocks):
    worker = worker_of(cases, child, DEFAULT_SUBJECT, case, kernel)
    found = evaluated(worker, params | _choices(cases[case], params), blocks)[1]
    assert found.dropped is None and found.seconds > 0
    assert any("for these numbers only" in limit for limit in found.limits)


def _choices(case, params):
    """The first choice of what is not given."""
    chosen = {n: p.choices[0] for n, p in case.params.items() if p.choices and n not in params}
    return {name: "bfloat16" if name == "dtype" else value for name, value in chosen.items()}


# --------------------------------------------------------------------------- the kept table

TABLE = sweep.load(ROOT / "reference_kernels" / "blocks.json")
# One row is quick to compile.
ROWS = [
    pytest.param(
        s,
        id=f"{s.name}-{s.chip}-{s.params['m']}",
        marks=()
        if (s.kernel, s.params["m"]) == ("scratch_accumulator", 4096)
        else pytest.mark.slow,
    )
    for s in TABLE.sweeps
]


@pytest.mark.parametrize("row", ROWS)
def test_the_kept_blocks_take_the_time_that_is_kept(cases, child, row):
    version = child.call(serve.version_request(), 60.0)
    if version != row.libtpu:
        pytest.skip(f"the table was made with {row.libtpu}")
    worker = worker_of(cases, child, DEFAULT_SUBJECT, row.case, row.kernel)
    found = evaluated(worker, row.params, row.results[0].options, row.chip)[1]
    assert abs(found.seconds / row.results[0].seconds - 1) < sweep.MODEL_ERROR


def call_of(cases, case, kernel, *avals, chip=None):
    """Grid, block shapes and compiler parameters of the kernel that is called without blocks."""
    fn = load_subject(DEFAULT_SUBJECT, tuple(cases)).find(case, kernel).fn
    with abstract_mesh(chips.get(chip)) if chip else contextlib.nullcontext():
        (call,) = jax.make_jaxpr(fn)(*avals).eqns
    mapping = call.params["grid_mapping"]
    return mapping.grid, call.params["compiler_params"]


@pytest.mark.parametrize("row", TABLE.sweeps, ids=lambda s: f"{s.name}-{s.chip}-{s.params['m']}")
def test_blocks_that_are_left_out_are_those_of_the_table(cases, row):
    p, best = row.params, row.results[0]
    x = jax.ShapeDtypeStruct((p["m"], p["k"]), p["dtype"])
    y = jax.ShapeDtypeStruct((p["k"], p["n"]), p["dtype"])
    grid, params = call_of(cases, row.case, row.kernel, x, y, chip=row.chip)
    assert grid == tuple(p[d] // best.options[f"b{d}"] for d in ("m", "n", "k"))
    least = best.vmem if best.vmem > 2**24 else 0
    assert least <= (params.vmem_limit_bytes or 0) <= chips.get(row.chip).info.vmem_capacity_bytes


@pytest.mark.parametrize("kernel", ["scratch_accumulator", "peeled"])
@pytest.mark.parametrize("chip", [None, *chips.NAMES])
@pytest.mark.parametrize(("m", "k", "n"), [(8, 128, 128), (100, 300, 20), (4096, 65536, 2048)])
@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2"])
def test_any_shape_has_blocks_that_fit(cases, kernel, chip, m, k, n, dtype):
    x, y = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    grid, params = call_of(cases, "matmul", kernel, x, y, chip=chip)
    blocks = [-(-size // count) for size, count in zip((m, n, k), grid, strict=True)]
    windows = 2 * (blocks[0] * blocks[2] + blocks[2] * blocks[1] + blocks[0] * blocks[1])
    capacity = chips.get(chip).info.vmem_capacity_bytes if chip else 2**24
    assert windows * x.dtype.itemsize <= capacity
    assert (params.vmem_limit_bytes or 0) <= capacity


def test_blocks_are_given_together(cases):
    fn = load_subject(DEFAULT_SUBJECT, tuple(cases)).find("matmul", "peeled").fn
    x = jax.ShapeDtypeStruct((128, 128), "float32")
    with pytest.raises(ValueError, match=r"bm, bk and bn must be given together or left out, got"):
        jax.eval_shape(lambda x: fn(x, x, bm=128), x)
