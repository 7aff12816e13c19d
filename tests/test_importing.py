"""From the shapes, dtypes and options of a call to a pinned example of its case."""

from __future__ import annotations

import json
import re

import pytest

from conformance import importing, vendor
from conformance.case import Case
from conformance.examples import generated
from conformance.importing import Array, CallSeen, ImportFailed
from conformance.loading import bundled, check_params, load_cases
from conformance.strategies import make_arrays

CASES = load_cases()


def array(*shape: int, dtype: str = "float32") -> dict:
    return {"shape": list(shape), "dtype": dtype}


def call(case: str = "matmul", *args: dict, **statics) -> dict:
    return {"case": case, "args": list(args), "statics": statics}


GOOD = call("matmul", array(24, 300), array(300, 136), bm=8)


@pytest.fixture
def file(tmp_path):
    """Writes a call into a file."""

    def write(content: object) -> str:
        path = tmp_path / "call.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


@pytest.fixture
def folder(tmp_path):
    """A vendored folder with some cases."""
    vendor.create(tmp_path / "vendored", ("matmul", "dsd", "dynamic_slice", "sum"), "installed")
    return tmp_path / "vendored"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = 0
    try:
        importing.main(list(arguments))
    except SystemExit as e:
        status = int(e.code or 0)
    return (status, *capsys.readouterr())


# --------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_case_finds_parameters_of_its_arrays(case: Case):
    """Options that no shape shows are given; blocks are found."""
    for example in generated(case, 12, "ci")[::9]:
        seen = tuple(Array(tuple(a.shape), a.dtype.name) for a in make_arrays(case, example))
        passed = {k: example.params[k] for k, p in case.params.items() if p.passed}
        params, free = importing.parameters(case, CallSeen(case.name, seen, passed))
        check_params(case, params)
        assert importing._arrays(case, params) == seen
        shown = {k for k, p in case.params.items() if p.kind in ("size", "dtype")}
        assert {k: params[k] for k in shown} == {k: example.params[k] for k in shown}
        assert not shown & set(free)


def test_the_row_is_printed_with_what_was_chosen(capsys, file):
    status, text, notes = run(capsys, file(GOOD))
    assert status == 0
    row = json.loads(text)
    assert row["params"] == {
        **{"m": 24, "k": 300, "n": 136, "bm": 8, "bk": 300, "bn": 136},
        "dtype": "float32",
    }
    assert row["why"] == "a call that failed: float32[24, 300], float32[300, 136]"
    assert row["tier"] == "ci" and row["id"].startswith("imported-")
    assert notes.split("\n")[:2] == [
        "not seen from shapes, chosen: bk=300",
        "not seen from shapes, chosen: bn=136",
    ]
    again = json.loads(run(capsys, file(GOOD), "--why", "another reason")[1])
    assert again == row | {"why": "another reason"}, "the id is that of the parameters"


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "not readable as JSON"),
        ("[]", r"the whole: \[\] is not of type 'object'"),
        ({"case": "add"}, "'args' is a required property"),
        ({"case": "add", "args": []}, "args: "),
        (GOOD | {"kwargs": {}}, "'kwargs' was unexpected"),
        (call("add", {"shape": [8, -1], "dtype": "float32"}), "args/0/shape/1: -1 is less than"),
        (call("add", array(8, 8, dtype="float99")), "args/0: no dtype is called 'float99'"),
        (call("nope", array(8, 8)), "no case 'nope'; known: add, "),
        (call("matmul", array(8, 8)), r"matmul takes arrays with \(2, 2\) dimensions, got \(2,\)"),
        (
            call("matmul", array(2, 8, 8), array(8, 8)),
            r"matmul takes arrays with \(2, 2\) dimensions, got \(3, 2\) dimensions",
        ),
        (
            call("matmul", array(8, 256), array(128, 128)),
            "k is 256 by dimension 1 of x, but 128 by dimension 0 of y",
        ),
        (
            call("matmul", array(8, 256), array(256, 128, dtype="bfloat16")),
            "dtype is float32 by the dtype of x, but bfloat16 by the dtype of y",
        ),
        (
            call("matmul", array(8, 256), array(256, 128), m=16),
            "m is 16 by statics, but 8 by dimension 0 of x",
        ),
        (
            call("matmul", array(8, 256), array(256, 128), bz=16),
            "statics: matmul has no parameter 'bz'; it has m, k, n, ",
        ),
        (
            call("matmul", array(8, 256, dtype="int8"), array(256, 128, dtype="int8")),
            "outside the domain of matmul: dtype must be one of float32, .*, got 'int8'",
        ),
        (
            call("matmul", array(8, 256), array(256, 128), bk=100),
            "outside the domain of matmul: bk must be .*got 100",
        ),
        (
            call("matmul", array(0, 256), array(256, 128)),
            "outside the domain of matmul: m must be an integer >= 1, got 0",
        ),
        (
            call("dynamic_slice", array(64, 512), array(2, dtype="int32")),
            "no shape shows size_m: give it in statics",
        ),
        (
            call("dynamic_slice", array(64, 512), array(3, dtype="int32"), size_m=8, size_n=128),
            "dimension 0 of starts must be 2, got 3",
        ),
        (
            call("dynamic_slice", array(64, 512), array(2), size_m=8, size_n=128),
            "starts must be int32, got float32",
        ),
        (
            call(
                "dsd",
                *(array(5, dtype="int32"), array(5, dtype="int32")),
                *(array(5, 16, 128), array(256, 128)),
                m=32,
            ),
            r"no parameters give these arrays: .* gives int32\[\d\]",
        ),
    ],
)
def test_what_makes_no_example_is_refused(capsys, file, content, message):
    status, text, error = run(capsys, file(content))
    assert status == 2 and not text
    (line,) = [line for line in error.splitlines() if "error: " in line]
    assert re.search(message, line), line


# --------------------------------------------------------------------------- writing


def test_a_row_is_appended_and_judged_from_then_on(capsys, file, folder):
    target = folder / "cases" / "matmul.json"
    before = target.read_text()
    status, text, notes = run(capsys, file(GOOD), "--write", "--vendored", str(folder))
    assert status == 0 and f"added to {target}" in notes
    lines = target.read_text().splitlines()
    new = [line for line in lines if line not in before.splitlines()]
    assert len(lines) == len(before.splitlines()) + 1
    assert any(json.loads(text)["id"] in line for line in new) and len(new) <= 2
    load_cases.cache_clear()
    rows = load_cases((str(folder),))["matmul"].rows
    assert rows[-1] == json.loads(text)
    assert vendor.check(folder)[0] == vendor.EDITED
    status, _, error = run(capsys, file(GOOD), "--write", "--vendored", str(folder))
    assert status == 2 and f"matmul has this example already: {rows[-1]['id']}" in error


def test_a_pinned_example_is_not_pinned_again(capsys, file):
    params = next(r["params"] for r in CASES["matmul"].rows if r["id"] == "smoke")
    m, k, n, dtype = (params[name] for name in ("m", "k", "n", "dtype"))
    blocks = {b: params[b] for b in ("bm", "bk", "bn")}
    again = call("matmul", array(m, k, dtype=dtype), array(k, n, dtype=dtype), **blocks)
    status, _, error = run(capsys, file(again))
    assert status == 2 and "matmul has this example already: smoke" in error


def test_a_checkout_is_written_to_and_an_installed_package_is_not(tmp_path, monkeypatch):
    assert importing._file("matmul", None) == bundled("cases") / "matmul.json"
    inside = tmp_path / "site" / "conformance"
    monkeypatch.setattr(importing, "__file__", str(inside / "importing.py"))
    monkeypatch.setattr(importing, "bundled", lambda folder: inside / folder)
    with pytest.raises(ImportFailed, match="installed package are not edited: name --vendored"):
        importing._file("matmul", None)


def test_another_folder_is_refused(capsys, file, tmp_path):
    status, _, error = run(capsys, file(GOOD), "--vendored", str(tmp_path))
    assert status == 2 and "it has no vendored.json" in error


@pytest.mark.parametrize(
    "path",
    [f for f in sorted(bundled("cases").glob("*.json")) if f.with_suffix(".py").is_file()],
    ids=lambda p: p.stem,
)
def test_files_are_written_as_they_are(path):
    """So that an appended row changes one line."""
    assert importing.dumps(json.loads(path.read_text())) == path.read_text()
