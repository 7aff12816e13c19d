"""Properties: whoever breaks one is condemned, and none is claimed where it cannot be tried."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jsonschema
import numpy as np
import property_mutants
import pytest
from property_mutants import CONTROLS, KERNELS, MUTANTS, Mutant

from conformance.case import Kernel
from conformance.chips import DEFAULT
from conformance.examples import for_properties
from conformance.judge import Judge
from conformance.loading import (
    DEFAULT_SUBJECT,
    LoadError,
    Subject,
    check_properties,
    load_cases,
    load_subject,
    schema,
)
from conformance.modes import MODES
from conformance.numerics import Judgement, bounded, equal, total
from conformance.properties import PROPERTIES
from conformance.runner import Runner
from conformance.strategies import make_arrays

CASES = load_cases()
SUBJECT = str(Path(property_mutants.__file__).resolve())


@pytest.fixture(scope="module")
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    kept = getattr(request.config, "cache", None)
    cache = None if kept is None else str(kept.mkdir("conformance-xla"))
    runner = Runner(SUBJECT, (), 120.0, cache)
    yield Judge(runner)
    runner.close()


def verdicts(judge: Judge, kernel: Kernel, name: str) -> list:
    if (reason := judge.unavailable(name, PROPERTIES[name].chip)) is not None:
        pytest.skip(reason)
    case = CASES[kernel.case]
    examples = for_properties(case) if PROPERTIES[name].data else for_properties(case)[-1:]
    return [judge.judge_property(case, kernel, name, e) for e in examples]


# --------------------------------------------------------------------------- the judge


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.kernel.name)
def test_mutant_is_condemned(judge: Judge, mutant: Mutant) -> None:
    """On every example, and for its defect."""
    for verdict in verdicts(judge, mutant.kernel, mutant.kernel.properties[0]):
        assert verdict.failed
        assert re.search(mutant.says, f"{verdict.status}: {verdict.why}", re.DOTALL)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(k, name) for k in CONTROLS for name in k.properties],
    ids=lambda value: getattr(value, "name", value),
)
def test_control_passes(judge: Judge, kernel: Kernel, name: str) -> None:
    for verdict in verdicts(judge, kernel, name):
        assert verdict.passed, f"{verdict.status}: {verdict.why}"


@pytest.mark.parametrize("kernel", [m.kernel for m in MUTANTS], ids=lambda k: k.name)
def test_no_mode_condemns_a_mutant(judge: Judge, kernel: Kernel) -> None:
    """What is wrong with them is the property, and only it."""
    case = CASES[kernel.case]
    verdict = judge.judge(case, kernel, "interpret", for_properties(case)[-1])
    assert verdict.passed, f"{verdict.status}: {verdict.why}"


def test_every_property_has_a_mutant_and_a_control() -> None:
    assert {m.kernel.properties[0] for m in MUTANTS} == set(PROPERTIES)
    assert {name for k in CONTROLS for name in k.properties} == set(PROPERTIES)


def test_names_are_not_those_of_modes() -> None:
    assert not set(PROPERTIES) & set(MODES)


# --------------------------------------------------------------------------- claims


def claim(*properties: str, case: str = "add", **stages) -> Subject:
    kernel = Kernel(case=case, name="mine", fn=lambda *arrays: None, properties=properties)
    return Subject("my.py", (replace(kernel, **stages),))


@pytest.mark.parametrize(
    "subject, message",
    [
        (claim("vamp"), "add/mine: unknown property 'vamp'; known: .*vmap"),
        (claim("vmap", "vmap"), r"must be a tuple of unlike names, got \('vmap', 'vmap'\)"),
        (claim(properties="vmap"), "must be a tuple of unlike names, got 'vmap'"),
        (claim("grad"), "cannot claim property 'grad': case add has no gradient"),
        (
            claim("shard_map", case="dynamic_slice"),
            "cannot claim property 'shard_map': case dynamic_slice has no split",
        ),
        (claim("grad", case="matmul", finish=id), "'grad': finish cannot be differentiated"),
        (claim("shard_map", finish=id), "'shard_map': finish sees the whole result"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_claim_that_cannot_be_tried_is_refused(subject: Subject, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        check_properties(subject, CASES)


def test_the_reference_kernels_claim_what_exists() -> None:
    subject = load_subject(DEFAULT_SUBJECT, tuple(CASES))
    check_properties(subject, CASES)
    assert {name for k in subject.kernels for name in k.properties} == set(PROPERTIES)


# --------------------------------------------------------------------------- cases

SPLIT = [case for case in CASES.values() if case.split is not None]


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.name)
def test_halves_are_points_of_the_domain(case) -> None:
    """The reference of the halves is that of the whole, cut; checked without any kernel."""
    example = for_properties(case)[0]
    arrays = make_arrays(case, example)
    (of_arrays, of_results), arithmetic = case.split(example.params), MODES["interpret"].arithmetic
    whole = case.reference(example.params, example.inputs, arrays, arithmetic)
    for half in range(2):
        parts = tuple(cut(a, axis, half) for a, axis in zip(arrays, of_arrays, strict=True))
        halved = halved_params(case, example.params, parts)
        case.check(halved)
        found = case.reference(halved, example.inputs, parts, arithmetic)
        for one, axis, reference in zip(found, of_results, whole, strict=True):
            np.testing.assert_array_equal(one.value, cut(reference.value, axis, half))


def cut(array: np.ndarray, axis: int | None, half: int) -> np.ndarray:
    return array if axis is None else np.split(array, 2, axis)[half]


def halved_params(case, params, parts):
    """The parameters, one or two sizes halved, that make arrays as the parts are."""
    shapes = [p.shape for p in parts]
    sizes = [n for n, p in case.params.items() if p.kind == "size" and params[n] % 2 == 0]
    for count in (1, 2):
        for names in itertools.combinations(sizes, count):
            halved = {**params, **{n: params[n] // 2 for n in names}}
            made = case.make(halved, "normal", np.random.default_rng(0))
            if [a.shape for a in made] == shapes:
                return halved
    raise AssertionError(f"no half of {params} has arrays of {shapes}")


def test_a_point_that_cannot_be_cut_is_not() -> None:
    matmul = CASES["matmul"].split
    point = {"m": 16, "k": 128, "n": 128, "bm": 8, "bk": 128, "bn": 128, "dtype": "float32"}
    assert matmul(point) == ((0, None), (0,))
    assert matmul({**point, "m": 15, "bm": 15}) is None
    assert matmul({**point, "bm": 16}) is None


def test_sums_of_rounded_results() -> None:
    """Exact where both terms are exact in the dtype; else within what both may err by."""
    f32, bf16 = np.dtype(np.float32), np.dtype(jax.numpy.bfloat16)
    whole = total(equal(np.array([3.0]), f32), equal(np.array([4.0]), f32))
    assert (whole.judgement, whole.value[0]) == (Judgement.EQUAL, 7.0)
    rounded = total(equal(np.array([257.0]), bf16), equal(np.array([1.0]), bf16))
    assert rounded.judgement is Judgement.BOUNDED and rounded.error is not None
    assert rounded.error[0] == 258 * 2.0**-8
    both = total(bounded(np.array([1.0]), f32, np.array([0.25])), equal(np.array([2.0]), f32))
    assert both.error is not None and 0.25 < both.error[0] < 0.2500005


# --------------------------------------------------------------------------- a run


def test_a_run_shows_properties_and_how_to_replay_them(python, tmp_path) -> None:
    known = tmp_path / "known.toml"
    known.write_text(
        '[[expectation]]\ncase = "add"\nkernel = "writes"\nmode = "donation"\n'
        'status = "WRONG"\nsignature = "fn wrote to its argument 0"\n'
        'reason = "to be repaired"\nlink = "https://example.com/1"\n'
    )
    options = (f"--expectations={known}", f"--report={tmp_path}", "-p", "no:cacheprovider", "-q")
    chosen = ("--properties", "donation,eager", "--kernel", "donates,right,writes")
    ran = python("-m", "pytest", f"--subject={SUBJECT}", *chosen, *options)
    assert "Kernel x property" in ran.stdout and "Kernel x mode" not in ran.stdout
    assert f"--subject={SUBJECT} --properties donation --kernel add/donates --replay " in ran.stdout
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for row in rows:
        jsonschema.validate(row, schema("results"))
    assert {(r["kernel"], r["mode"], r["status"]) for r in rows} == {
        ("donates", "donation", "WRONG"),
        ("right", "donation", "PASS"),
        ("right", "eager", "PASS"),
        ("writes", "donation", "WAIVED"),
    }
    assert "1 failed, 2 passed, 1 xfailed" in ran.stdout


@pytest.mark.parametrize(
    "args, tests",
    [
        ((), {"test_conforms", "test_has_property"}),
        (("--properties", "none"), {"test_conforms"}),
        (("--mode", "interpret"), {"test_conforms"}),
        (("--mode", "interpret", "--properties", "all"), {"test_conforms", "test_has_property"}),
        (("--properties", "eager"), {"test_has_property"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_runs(pytester, monkeypatch, args, tests) -> None:
    """Naming modes leaves properties out, and the other way round."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    given = ("-p", "conformance.plugin", "--pyargs", "conformance", f"--subject={SUBJECT}")
    result = pytester.runpytest_inprocess(*given, "--collect-only", "-q", "--kernel=right", *args)
    found = set(re.findall(r"::(test_\w+)\[", result.stdout.str()))
    assert found == tests


pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    "args, message",
    [
        (("--properties", "vamp"), "--properties vamp: unknown; known: .*vmap"),
        (("--properties", "none,vmap"), "--properties none,vmap: none of them, or some"),
        (("--properties", "grad"), "--properties grad: none of the selected kernels claims it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refused_with_one_line(pytester, monkeypatch, args, message) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    given = ("-p", "conformance.plugin", f"--subject={SUBJECT}", "--kernel=right")
    result = pytester.runpytest_inprocess(*given, "--collect-only", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(re.search(message, line) for line in result.errlines)


def test_names_are_unique() -> None:
    assert len({(k.case, k.name) for k in KERNELS}) == len(KERNELS)


# --------------------------------------------------------------------------- stored exports

STORED = sorted((Path(__file__).resolve().parent / "data" / "exports").glob("*.bin"))
COMPILE = """
import os, sys
from pathlib import Path
from conformance import chips, compiler

for name, value in compiler.environment(sys.argv[1]).items():
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
from jax import export

stored = export.deserialize(bytearray(Path(sys.argv[2]).read_bytes()))
for chip in chips.DEFAULT:
    told = compiler.compile_for(
        stored.call, stored.in_avals, chips.get(chip), Path(sys.argv[1])
    )
    refused = isinstance(told, compiler.Refused)
    print(chip, told.message if refused else f"{len(told.kernels)} kernel")
"""


@pytest.mark.skipif(
    PROPERTIES["export"].unavailable(None) is not None,
    reason=str(PROPERTIES["export"].unavailable(None)),
)
@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.stem)
def test_what_an_older_jax_exported_compiles(python, tmp_path, stored: Path) -> None:
    """In a process that never saw the kernel."""
    ran = python("-c", COMPILE, str(tmp_path), str(stored))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{chip} 1 kernel" for chip in DEFAULT]
