"""The cases as a table: complete, legal, reproducible, and honest about their numbers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import contraction, examples
from conformance.case import PHASES, Case, Example
from conformance.loading import (
    DEFAULT_SUBJECT,
    LoadError,
    bundled,
    check_params,
    load_cases,
    load_subject,
    negative_example,
)
from conformance.numerics import COMPILED, FUNCTIONS, INTERPRETED, dtype_of, is_float, largest
from conformance.serve import make_arrays, negative_arrays

CASES = load_cases()
SUBJECT = load_subject(DEFAULT_SUBJECT, tuple(CASES))

RUNGS = {
    "add": ["whole", "rows", "tiles", "megacore_rows", "megacore_tiles"],
    "sum": ["accumulate", "tiled", "megacore"],
    "sum_narrow": ["scratch_accumulator"],
    "matmul_f32": ["output_accumulator"],
    "matmul": ["scratch_accumulator", "peeled"],
    "matmul_transpose_rhs": ["dot_general", "swapaxes"],
    "matmul_activation": ["epilogue"],
    "matmul_template": ["transpose_epilogue"],
    "matmul_prologue": ["input_fusion"],
    "matmul_int8": ["scratch_accumulator", "peeled"],
    "matmul_grad": ["custom_vjp"],
    "dynamic_slice": ["block_aligned"],
    "dynamic_slice_blocked": ["blocked"],
    "dynamic_slice_unaligned": ["unaligned"],
    "dsd": ["static_blocks", "dynamic_blocks"],
    "masked_matmul": ["prefetch_maps"],
}
POINTS = 8
SLICES = {"dynamic_slice", "dynamic_slice_blocked", "dynamic_slice_unaligned"}
DOTS = set(RUNGS) - SLICES - {"add", "sum", "sum_narrow"}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
each_dot = pytest.mark.parametrize("name", sorted(DOTS))


def drawn(case: Case) -> tuple[Example, ...]:
    return examples.generated(case, POINTS, "ci")


def digest(example: Example) -> str:
    """A hash of an example's id and the bytes of its arrays."""
    found = hashlib.sha256(example.id.encode())
    for array in make_arrays(CASES[example.case], example):
        found.update(f"{array.dtype.name}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def digest_of_everything() -> str:
    """One hash for all generated examples of all cases."""
    parts = [digest(e) for case in CASES.values() for e in drawn(case)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


# --------------------------------------------------------------------------- the table


def test_every_case_has_its_rungs():
    found: dict[str, list[str]] = {name: [] for name in CASES}
    for kernel in SUBJECT.kernels:
        found[kernel.case].append(kernel.name)
    assert found == RUNGS


def test_names_are_unique():
    pairs = [(k.case, k.name) for k in SUBJECT.kernels]
    assert len(set(pairs)) == len(pairs)


def test_reference_kernels_promise_the_errors_of_their_contract():
    assert [k.name for k in SUBJECT.kernels if not k.checks_inputs] == []


@each_case
def test_contract_and_source(case):
    assert case.spec.startswith("https://docs.jax.dev/en/latest/pallas/")
    assert "\n" not in case.contract
    assert len(case.contract.split()) >= 4


@each_case
def test_parameters_are_of_known_kinds(case):
    for name, param in case.params.items():
        assert param.kind in ("size", "count", "block", "dtype", "choice"), name
        assert bool(param.choices) == (param.kind in ("dtype", "choice")), name


@each_case
def test_negatives_are_well_formed(case):
    assert case.negatives
    names = [n.name for n in case.negatives]
    assert len(set(names)) == len(names)
    for negative in case.negatives:
        re.compile(negative.match)
        assert negative.phase in PHASES
        assert not re.search(negative.match, ""), "the expression matches anything"
        assert negative_arrays(case, negative, negative_example(case, negative))


# --------------------------------------------------------------------------- generated examples


@each_case
def test_points_are_distinct_legal_and_judged_in_several_ways(case):
    points = {repr(e.params): e.params for e in drawn(case)}
    assert len(points) >= POINTS
    for params in points.values():
        check_params(case, params)
        kinds = case.inputs(params)
        assert len(kinds) == len(set(kinds)) >= 2


@each_case
def test_points_differ_in_shape_and_dtype(case):
    points = [e.params for e in drawn(case)]
    assert len({tuple(p[d] for d in ("m", "n")) for p in points}) >= 4
    assert {p["dtype"] for p in points} > {points[0]["dtype"]} or case.name in (
        "matmul_f32",
        "matmul_int8",
    )


@each_case
def test_arrays_come_from_the_seed(case):
    last = [e for e in drawn(case) if e.params == drawn(case)[-1].params]
    for example in last:
        assert digest(example) == digest(example)
    random = next(e for e in last if e.inputs in ("exact", "normal"))
    first = make_arrays(case, random)
    other = make_arrays(case, Example(**(vars(random) | {"seed": 12345})))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(first, other, strict=True))


def test_another_process_generates_the_same(python):
    here = Path(__file__).resolve()
    code = f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as t; "
    run = python("-c", f"{code}print(t.digest_of_everything())", PYTHONHASHSEED="7")
    assert run.stdout.strip() == digest_of_everything(), run.stderr


@each_case
def test_references_are_finite_where_the_inputs_are(case):
    """Under compiled arithmetic, whose bounds are the larger."""
    for example in drawn(case):
        if example.inputs == "special":
            continue
        arrays = make_arrays(case, example)
        for reference in case.reference(example.params, example.inputs, arrays, COMPILED):
            assert np.isfinite(reference.value.astype(np.float64)).all(), example
            allowed = reference.allowed()
            assert np.isfinite(allowed).all() and (allowed >= 0).all(), example


def test_special_inputs_hold_nan_and_infinities():
    for name in ("add", "sum", "masked_matmul", "dsd", "dynamic_slice"):
        example = next(e for e in drawn(CASES[name]) if e.inputs == "special")
        values = np.concatenate(
            [a.astype(np.float64).ravel() for a in make_arrays(CASES[name], example)]
        )
        assert np.isnan(values).any() or np.isinf(values).any(), example


# --------------------------------------------------------------------------- what is multiplied


def factors(case: Case, example: Example) -> list[tuple[np.ndarray, np.ndarray]]:
    """The float64 matrices that each result of a contraction multiplies."""
    params, arrays = example.params, make_arrays(case, example)
    if case.name == "dsd":
        return [(dense(params, arrays), arrays[3].astype(np.float64))]
    x, y, *others = (a.astype(np.float64) for a in arrays)
    if case.name in ("matmul_transpose_rhs", "matmul_template"):
        return [(x, y.T)]
    if case.name == "matmul_prologue":
        return [(FUNCTIONS[params["f"]].exact(x), FUNCTIONS[params["g"]].exact(y))]
    if case.name == "matmul_grad":
        return [(x, y), (others[0], y.T), (x.T, others[0])]
    return [(x, y)]


def dense(params: Any, arrays: Any) -> np.ndarray:
    """The sparse operand with its zeros."""
    rows, columns, blocks, _ = arrays
    out = np.zeros((params["m"], params["k"]))
    bm, bk = params["bm"], params["bk"]
    for i, k, block in zip(rows, columns, blocks, strict=True):
        out[i * bm : (i + 1) * bm, k * bk : (k + 1) * bk] = block
    return out


def contractions(name: str, *kinds: str) -> list[tuple[Example, np.ndarray, np.ndarray]]:
    return [
        (e, a, b)
        for e in drawn(CASES[name])
        if e.inputs in kinds
        for a, b in factors(CASES[name], e)
    ]


@each_dot
def test_probes_are_exact_in_every_order(name):
    found = contractions(name, *contraction.PROBES)
    assert found
    for example, a, b in found:
        for operand in (a, b):
            assert (operand == np.rint(operand)).all(), example
            assert np.abs(operand).max(initial=0) <= 256, example
        assert (np.abs(a) @ np.abs(b)).max() < 2**24, example


@each_dot
def test_probes_pass_the_reach_of_a_bf16_accumulator(name):
    """Sums that stay within 2^8 would be exact there too."""
    wide = [
        (e, a, b)
        for e, a, b in contractions(name, "exact")
        if not e.params["dtype"].startswith("float8") and a.any()
    ]
    assert wide
    for example, a, b in wide:
        if "square" in (example.params.get("f"), example.params.get("g")):
            continue
        rows = a[a.any(axis=1)][:8]  # sparse operands have empty ones
        partial = np.cumsum(rows[:, :, None] * b[None, :, :8], axis=1)
        assert np.abs(partial).max() > 2**9, example


@each_dot
def test_real_inputs_stay_a_quarter_below_the_range_of_the_output(name):
    kinds = ("normal", "cancel", "wide")
    for example, a, b in contractions(name, *kinds):
        magnitude = np.abs(a) @ np.abs(b)
        assert magnitude.max() < largest(dtype_of(example.params["dtype"])) / 4, example


@each_dot
def test_references_are_the_product_of_the_factors(name):
    """Against a plain dense product, with nothing of the case's own code."""
    case = CASES[name]
    for example in drawn(case):
        if example.inputs != "exact":
            continue
        arrays = make_arrays(case, example)
        references = case.reference(example.params, "exact", arrays, INTERPRETED)
        for reference, (a, b) in zip(references, factors(case, example), strict=True):
            z = FUNCTIONS[example.params.get("activation", "identity")].exact(a @ b)
            if name == "masked_matmul":
                z = np.where(arrays[2] != 0, z, 0.0)
            np.testing.assert_array_equal(reference.value, z, repr(example))


def test_sum_probes_are_exact():
    for name in ("sum", "sum_narrow"):
        for example in drawn(CASES[name]):
            (x,) = make_arrays(CASES[name], example)
            if example.inputs in ("exact", "position") and is_float(x.dtype):
                x = x.astype(np.float64)
                assert (x == np.rint(x)).all() and np.abs(x).max() <= 256, example
                assert np.abs(x).sum(axis=0).max() < 2**24, example


@pytest.mark.parametrize("bm, bk, bn", [(4, 5, 3), (12, 20, 15), (5, 7, 4), (1, 1, 1)])
def test_block_matmul_is_the_product(bm, bk, bn):
    rng = np.random.default_rng(1)
    x, y = rng.integers(-99, 99, (12, 20)), rng.integers(-99, 99, (20, 15))
    blocked = contraction.block_matmul(x, y, bm=bm, bk=bk, bn=bn)
    np.testing.assert_array_equal(blocked, x.astype(np.float64) @ y.astype(np.float64))


# --------------------------------------------------------------------------- work

MKN = {"m": 16, "k": 32, "n": 8, "bm": 16, "bk": 32, "bn": 8}
SPARSE = {"m": 32, "k": 64, "n": 8, "bm": 16, "bk": 32, "bn": 8}
SLICE = {"m": 64, "n": 512, "size_m": 16, "size_n": 256, "start_m": 0, "start_n": 0}

# 2 m k n = 8192 operations; m k + k n = 768 elements read, m n = 128 written.
WORK = [
    ("add", {"m": 4, "n": 10, "bm": 4, "bn": 10, "dtype": "int16"}, 40, 240),
    ("sum", {"b": 3, "m": 4, "n": 5, "bm": 4, "bn": 5, "dtype": "float32"}, 60, 320),
    ("sum_narrow", {"b": 3, "m": 4, "n": 5, "bm": 4, "bn": 5, "dtype": "int8"}, 60, 140),
    ("matmul_f32", MKN | {"dtype": "float32"}, 8192, 3584),
    ("matmul", MKN | {"dtype": "bfloat16"}, 8192, 1792),
    ("matmul_transpose_rhs", MKN | {"dtype": "bfloat16"}, 8192, 1792),
    ("matmul_activation", MKN | {"dtype": "float32", "activation": "relu"}, 8192, 3584),
    ("matmul_template", MKN | {"dtype": "float32", "activation": "silu"}, 8192, 3584),
    ("matmul_prologue", MKN | {"dtype": "float32", "f": "relu", "g": "tanh"}, 8192, 3584),
    ("matmul_int8", MKN | {"dtype": "int8"}, 8192, 1280),
    ("matmul_grad", MKN | {"bm": 16, "dtype": "float32"}, 24576, 7168),
    ("dynamic_slice", SLICE | {"dtype": "bfloat16"}, 0, 16384),
    ("dynamic_slice_blocked", SLICE | {"bm": 8, "bn": 128, "dtype": "int32"}, 0, 32768),
    ("dynamic_slice_unaligned", SLICE | {"bm": 8, "bn": 128, "dtype": "int32"}, 0, 32768),
    # Two of four blocks, each 16 x 32, meeting all 64 rows of y.
    ("dsd", SPARSE | {"dtype": "float32", "pattern": "diagonal"}, 16384, 7168),
    # One of four blocks meets half of y.
    ("dsd", SPARSE | {"dtype": "float32", "pattern": "last"}, 8192, 4096),
    # The first of two blocks of columns: 16 rows of x and 4 columns of y, k = 32.
    (
        "masked_matmul",
        MKN | {"bn": 4, "dtype": "float32", "mask": "trailing", "mask_dtype": "bool"},
        4096,
        3200,
    ),
]


@pytest.mark.parametrize("name, params, flops, moved", WORK, ids=[row[0] for row in WORK])
def test_work_by_hand(name, params, flops, moved):
    work = CASES[name].work(params)
    assert (work.flops, work.bytes) == (flops, moved)


def test_every_case_has_its_work_checked():
    assert {row[0] for row in WORK} == set(CASES)


@each_case
def test_work_is_positive(case):
    for example in drawn(case):
        work = case.work(example.params)
        assert work.bytes > 0, example
        assert work.flops >= 0 and type(work.flops) is type(work.bytes) is int, example


# --------------------------------------------------------------------------- pinned rows

GOOD = {
    "id": "one-tile",
    "why": "the smallest legal example",
    "params": {"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"},
    "tier": "smoke",
}
BAD_ROWS = {
    "unknown-param": ({"params": GOOD["params"] | {"k": 3}}, "one-tile.*no parameter 'k'"),
    "missing-param": ({"params": {"m": 8}}, "one-tile.*parameter 'n' is missing"),
    "bad-block": ({"params": GOOD["params"] | {"m": 64, "bm": 12}}, "one-tile.*bm must be 64.*12"),
    "bad-size": ({"params": GOOD["params"] | {"m": 0}}, "one-tile.*m must be an integer.*0"),
    "bool-size": ({"params": GOOD["params"] | {"m": True}}, "m must be an integer.*True"),
    "bad-dtype": ({"params": GOOD["params"] | {"dtype": "float16"}}, "dtype must be.*'float16'"),
    "unknown-mode": ({"modes": ["gpu"]}, "one-tile.*mode 'gpu' is not one of.*interpret"),
    "unknown-inputs": ({"inputs": ["ones"]}, "one-tile.*inputs 'ones' is not one of exact"),
    "id-with-comma": ({"id": "a,b"}, "add_copy/0/id"),
    "no-tier": ({"tier": "daily"}, "add_copy/0/tier.*daily"),
    "no-reason": ({"why": ""}, "add_copy/0/why"),
    "unknown-field": ({"seeds": [1]}, "add_copy/0.*seeds"),
}


@pytest.fixture
def pinned(tmp_path):
    """Writes a case file with pinned rows and loads it beside the bundled ones."""

    def load(rows: Any) -> Case:
        file = tmp_path / "add_copy.py"
        shutil.copy(bundled("cases") / "add.py", file)
        file.write_text(file.read_text().replace('name="add"', 'name="add_copy"'))
        text = rows if isinstance(rows, str) else json.dumps(rows)
        file.with_suffix(".json").write_text(text)
        return load_cases((str(file),))["add_copy"]

    return load


def test_good_rows_are_loaded(pinned):
    case = pinned({"add_copy": [GOOD, GOOD | {"id": "other", "modes": ["interpret"]}]})
    assert [row["id"] for row in case.rows] == ["one-tile", "other"]


@pytest.mark.parametrize("change, message", BAD_ROWS.values(), ids=list(BAD_ROWS))
def test_bad_rows_are_refused(pinned, change, message):
    with pytest.raises(LoadError, match=message):
        pinned({"add_copy": [GOOD | change]})


def test_ids_are_not_used_twice(pinned):
    with pytest.raises(LoadError, match="pinned id 'one-tile' of add_copy is used twice"):
        pinned({"add_copy": [GOOD, GOOD | {"inputs": ["normal"]}]})


def test_rows_belong_to_a_case_of_their_file(pinned):
    with pytest.raises(LoadError, match=r"no case 'sub' in add_copy\.py"):
        pinned({"sub": [GOOD]})


def test_rows_are_json(pinned):
    with pytest.raises(LoadError, match=r"add_copy\.json: not JSON"):
        pinned("{")
