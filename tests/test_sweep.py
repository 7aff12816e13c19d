"""Sweeps: search spaces, ties and Pareto tables, results that are kept, and two real compiles."""

from __future__ import annotations

import pytest

from conformance import chips, compiler, sweep
from conformance.case import Kernel
from conformance.sweep import Result, Sweep, report, resumed, run, space

POINT = {"m": 1024, "k": 512, "n": 4096, "dtype": "bfloat16"}


def result(name, seconds=None, vmem=None, **more):
    return Result(options={"bm": name}, seconds=seconds, vmem=vmem, spilled=0, **more)


def swept(*results):
    return Sweep(
        case="matmul",
        kernel="mine",
        chip="v5e",
        libtpu="1",
        params=POINT,
        results=list(results),
    )


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


def test_ties_are_no_winner():
    assert names(swept(*RESULTS).best()) == [2, 1]


def test_pareto_leaves_out_what_is_beaten_in_both():
    assert names(swept(*RESULTS).pareto()) == [1, 2, 4]


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match="no configuration of matmul/mine"):
        swept(RESULTS[4]).best()


def test_results_survive_the_file():
    before = swept(*RESULTS)
    assert Sweep.loads(before.dumps()) == before


@pytest.mark.parametrize("text", ["[]", "{}", '{"results": [{"a": 1}]}'])
def test_another_file_is_refused(text):
    with pytest.raises(ValueError, match="not the results of a sweep"):
        Sweep.loads(text)


def test_an_interrupted_sweep_goes_on(tmp_path):
    file, asked = tmp_path / "sweep.json", []

    def evaluate(options):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(options["bm"])
        return result(options["bm"], 1.0, 1)

    configurations = [{"bm": n} for n in range(4)]
    with pytest.raises(KeyboardInterrupt):
        run(swept(), configurations, evaluate, file, lambda done, of: None)
    found = resumed(file, swept())
    seen = []
    run(found, configurations, lambda o: result(o["bm"]), file, lambda *n: seen.append(n))
    assert asked == [0, 1] and names(found.results) == [0, 1, 2, 3]
    assert seen[-1] == (4, 4)
    assert Sweep.loads(file.read_text()) == found


def test_the_file_of_another_sweep_is_not_continued(tmp_path):
    file = tmp_path / "sweep.json"
    file.write_text(swept().dumps())
    other = swept()
    other.chip = "v6e"
    with pytest.raises(ValueError, match=r"another sweep: its chip is 'v5e'"):
        resumed(file, other)


def test_the_space_is_every_length_and_the_whole(cases):
    kernel = Kernel(case="matmul", name="mine", fn=lambda x, y, *, bm, bk, bn: x)
    found = list(space(cases["matmul"], kernel, POINT, chips.get("v5e")))
    assert {o["bm"] for o in found} == {128, 256, 512, 1024}
    assert {o["bk"] for o in found} == {128, 256, 512}
    assert {o["bn"] for o in found} == {128, 256, 512, 1024, 2048}
    assert len(found) == 4 * 3 * 5


def test_a_kernel_has_its_own_space(cases):
    own = [{"bm": 8}]
    kernel = Kernel(case="matmul", name="mine", fn=lambda: 0, configs=lambda example, chip: own)
    assert list(space(cases["matmul"], kernel, POINT, chips.get("v5e"))) == own


def test_the_report_says_what_was_dropped():
    text = report(swept(*RESULTS))
    assert "predicted" in text and "within the model's error of 2 %: bm=2, bm=1" in text
    assert "dropped 2: REJECTED: why" in text
    assert report(swept(RESULTS[4])).endswith("dropped 1: REJECTED: why\n")


def test_configurations_are_compiled_in_a_child():
    if (reason := compiler.availability()) is not None:
        pytest.skip(reason)
    params = {"m": 256, "k": 256, "n": 256, "dtype": "bfloat16"}
    worker = sweep.Worker(
        {
            "case": "matmul",
            "kernel": "scratch_accumulator",
            "subject": "reference_kernels",
            "params": params,
            "chip": "v5e",
        }
    )
    try:
        good = worker({"bm": 128, "bk": 256, "bn": 256})
        illegal = worker({"bm": 100, "bk": 256, "bn": 256})
    finally:
        worker.stop()
    assert good.dropped is None and 0 < good.seconds < 1e-4 and good.vmem > 0
    assert illegal.dropped.startswith("illegal: bm must be")
    assert worker.version


def test_the_command_names_its_commands(python):
    assert "sweep" in python("-m", "conformance", "--help").stdout
    assert "--params" in python("-m", "conformance", "sweep", "--help").stdout
    unknown = python("-m", "conformance", "swep")
    assert unknown.returncode == 2 and "invalid choice: 'swep'" in unknown.stderr
    case = python("-m", "conformance", "sweep", "matmull")
    assert case.returncode == 2 and "no case 'matmull'" in case.stderr
