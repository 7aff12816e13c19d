"""What the command says of a case, and the file that it starts a kernel with."""

from __future__ import annotations

import re

import pytest

from conformance import cli
from conformance.case import Example
from conformance.judge import Judge
from conformance.loading import load_cases, load_subject
from conformance.runner import Runner
from conformance.shapes import layout
from conformance.starting import new_subject, signature
from conformance.verdict import Status

CASES = load_cases()

each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command in this process."""
    status = 0
    try:
        cli.main(list(arguments))
    except SystemExit as e:
        status = int(e.code or 0)
    return (status, *capsys.readouterr())


def test_cases_are_listed(capsys):
    status, text, _ = command(capsys, "cases")
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()] == list(CASES)
    assert CASES["dsd"].contract in text


@each_case
def test_a_signature_is_that_of_the_case(case):
    text = signature(case)
    shown = layout(case)
    assert text.startswith(f"{case.name}: {case.contract}\n{case.spec}\n")
    for name in case.params:
        assert re.search(rf"^  {name} ", text, re.MULTILINE)
    for negative in case.negatives:
        assert f"  {negative.name} " in text
    for form in (*shown.arrays, *shown.results):
        assert f"{form.example_dtype}{list(form.shape)}" in text
    assert all(f"{k}={v}" in text for k, v in shown.example.params.items())


@pytest.mark.parametrize(
    "case, call, arrays, results",
    [
        (
            "matmul",
            "fn(x, y, *, bm=..., bk=..., bn=...)",
            "x (m, k) dtype; y (k, n) dtype",
            "o (m, n) dtype",
        ),
        (
            "matmul_int8",
            "fn(x, y, *, bm=..., bk=..., bn=...)",
            "x (m, k) dtype; y (k, n) dtype",
            "o (m, n) int32",
        ),
        ("sum", "fn(x, *, bm=..., bn=...)", "x (b, m, n) dtype", "o (m, n) dtype"),
        (
            "dynamic_slice",
            "fn(x, starts, *, size_m, size_n)",
            "x (m, n) dtype; starts (2,) int32",
            "o (size_m, size_n) dtype",
        ),
        (
            "masked_matmul",
            "fn(x, y, mask, *, bm=..., bk=..., bn=...)",
            "x (m, k) dtype; y (k, n) dtype; mask (m, n) mask_dtype",
            "o (m, n) dtype",
        ),
        (
            "matmul_grad",
            "fn(x, y, dz, *, bm=..., bk=..., bn=...)",
            "x (m, k) dtype; y (k, n) dtype; dz (m, n) dtype",
            "o1 (m, n) dtype; o2 (m, k) dtype; o3 (k, n) dtype",
        ),
        (
            "dsd",
            "fn(indices_i, indices_k, blocks, y, *, m, bm=..., bk=..., bn=...)",
            "indices_i (?,) int32; indices_k (?,) int32; blocks (?, bm, bk) dtype; y (k, n) dtype",
            "o (m, n) dtype",
        ),
    ],
)
def test_shapes_are_learnt_from_examples(case, call, arrays, results):
    shown = layout(CASES[case])
    assert "; ".join(map(str, shown.arrays)) == arrays
    assert "; ".join(map(str, shown.results)) == results
    assert f"\n{call}\n" in signature(CASES[case])


@each_case
def test_a_starting_file_is_a_subject(case, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(new_subject(case, file))
    (kernel,) = load_subject(str(file), tuple(CASES)).kernels
    assert (kernel.case, kernel.name, kernel.checks_inputs) == (case.name, "mine", False)
    assert f"--subject={file.name}" in file.read_text()


@pytest.mark.parametrize("name", ["matmul_grad", "dynamic_slice", "dsd"])
def test_a_starting_file_is_judged(name, tmp_path):
    """Zeros of the right shapes and dtypes: wrong in their values only."""
    case, file = CASES[name], tmp_path / "mine.py"
    file.write_text(new_subject(case, file))
    (kernel,) = load_subject(str(file), tuple(CASES)).kernels
    row = next(r for r in case.rows if r["tier"] == "smoke")
    kind = case.inputs(row["params"])[0]
    example = Example(case=name, params=row["params"], inputs=kind, seed=0)
    runner = Runner(str(file), (), 60.0, None)
    try:
        verdict = Judge(runner).judge(case, kernel, "interpret", example)
    finally:
        runner.close()
    assert verdict.status is Status.WRONG
    assert re.search(r"elements wrong; first at .*: got 0", verdict.why), verdict.why


def test_the_command_writes_it_once(capsys, tmp_path):
    file = tmp_path / "mine.py"
    status, text, _ = command(capsys, "new-subject", str(file), "--case", "matmul")
    assert status == 0 and f"pytest --subject={file}" in text
    written = file.read_text()
    status, _, error = command(capsys, "new-subject", str(file), "--case", "add")
    assert status == 2 and f"{file} is not written: File exists" in error
    assert file.read_text() == written


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("signature", "matmull"), "no case 'matmull'; known: add, "),
        (("signature",), "the following arguments are required: case"),
        (("new-subject", "x.py", "--case", "nope"), "no case 'nope'; known: add, "),
        (("new-subject", "x.py"), "the following arguments are required: --case"),
        (("new-subject", "x.txt", "--case", "add"), "x.txt: the name of a subject file ends in"),
        (("new-subject", "no/x.py", "--case", "add"), "no/x.py is not written: No such file"),
    ],
)
def test_bad_arguments_are_refused(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, error = command(capsys, *arguments)
    assert status == 2 and message in error
    assert not list(tmp_path.iterdir())
