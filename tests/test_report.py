"""Results files, the matrix, and when a test passes, skips or fails."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from conformance.loading import schema
from conformance.report.lines import Lines, read
from conformance.report.matrix import Matrix, legend, render
from conformance.test_conformance import conclude
from conformance.verdict import BAD, GOOD, MEANING, Status, Verdict

PARAMS = {"m": 8, "n": 128, "dtype": "float32"}


def verdict(status: Status = Status.PASS, **changed) -> Verdict:
    given = {
        "case": "add",
        "kernel": "tiles",
        "mode": "interpret",
        "chip": None,
        "example": "add/m=8,n=128,dtype=float32,inputs=exact,seed=1",
        "params": PARAMS,
        "inputs": "exact",
        "seed": 1,
        "status": status,
        "why": "" if status in GOOD else "a reason",
        "numbers": {"pallas_calls": 1},
    }
    return Verdict(**(given | changed))


def refusal(**changed) -> Verdict:
    """A negative example that was refused as asked."""
    return verdict(Status.REJECTED, expected=True, numbers={}, **changed)


def matrix(*verdicts: Verdict) -> Matrix:
    return Matrix(v.row() for v in verdicts)


def cell(text: str, kernel: str) -> list[str]:
    """The cells of a kernel's line in a rendered table."""
    line = next(line for line in text.splitlines() if f" {kernel} " in line)
    return [part.strip() for part in line.split("│")[1:-1]]


# --------------------------------------------------------------------------- statuses


def test_every_status_is_explained_and_only_two_are_good():
    assert set(MEANING) == set(Status)
    assert {Status.PASS, Status.COMPILED} == GOOD
    assert not GOOD & BAD


@pytest.mark.parametrize("status", Status)
def test_what_fails_and_what_passes(status):
    assert verdict(status).passed == (status in GOOD)
    assert verdict(status).failed == (status in BAD)


def test_an_expected_refusal_neither_fails_nor_passes():
    assert not refusal().failed and not refusal().passed


# --------------------------------------------------------------------------- lines


def test_lines_come_back_and_obey_the_schema(tmp_path):
    lines = Lines(tmp_path / "results.jsonl", "my.py", "gw0")
    numbers = {"error_ratio": np.float32(0.5), "pallas_calls": np.int64(1)}
    given = [verdict(numbers=numbers), refusal(phase="trace"), verdict(Status.WRONG, phase="run")]
    for one in given:
        lines.write(one)
    rows = list(read(tmp_path / "results.jsonl"))
    assert [r["status"] for r in rows] == ["PASS", "REJECTED", "WRONG"]
    assert rows[0]["numbers"] == {"error_ratio": 0.5, "pallas_calls": 1}
    assert {(r["subject"], r["worker"]) for r in rows} == {("my.py", "gw0")}
    for row in rows:
        jsonschema.validate(row, schema("results"))


@pytest.mark.parametrize(
    "change",
    [
        {"status": "FINE"},
        {"phase": "later"},
        {"expected": True},
        {"status": "WRONG", "why": ""},
        {"seconds": -1.0},
        {"extra": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_schema_refuses(change):
    row = verdict().row() | {"subject": "my.py", "worker": "main"}
    jsonschema.validate(row, schema("results"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row | change, schema("results"))


def test_nan_does_not_get_into_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Lines(tmp_path / "r.jsonl", "s", "w").write(verdict(numbers={"error_ratio": np.nan}))
    assert list(read(tmp_path / "r.jsonl")) == []


def test_no_file_means_no_rows(tmp_path):
    assert list(read(tmp_path / "none.jsonl")) == []


def test_lines_are_one_write_each(tmp_path):
    """Long lines of two writers stay whole."""
    path = tmp_path / "r.jsonl"
    writers = [Lines(path, "s", f"gw{n}") for n in range(2)]
    for number in range(40):
        writers[number % 2].write(verdict(Status.WRONG, why=f"{number}" * 5000))
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 40


# --------------------------------------------------------------------------- the matrix


def test_counts_by_kernel_and_column():
    found = matrix(
        verdict(),
        verdict(),
        verdict(Status.WRONG),
        verdict(mode="aot", chip="v5e", status=Status.COMPILED),
        verdict(kernel="rows"),
    )
    assert found.columns == ["aot@v5e", "interpret"]
    assert found.cells["add", "tiles"]["interpret"] == {Status.PASS: 2, Status.WRONG: 1}
    assert found.counts() == {Status.PASS: 3, Status.WRONG: 1, Status.COMPILED: 1}


def test_failures_come_first_and_refusals_are_apart():
    wrong, refused = verdict(Status.WRONG), [refusal(), refusal()]
    text = render(matrix(verdict(), verdict(), wrong, *refused), 120, False)
    assert cell(text, "tiles")[:3] == ["add", "tiles", "WRONG 1 PASS 2 +2 refused"]


def test_expected_refusals_are_not_passes():
    found = matrix(refusal(), refusal())
    assert not found.counts()
    assert cell(render(found, 120, False), "tiles")[2] == "+2 refused"


def test_a_column_that_judged_nothing_shows_a_dash():
    text = render(matrix(verdict(), verdict(kernel="rows", mode="aot", chip="v4")), 120, False)
    assert cell(text, "tiles")[2:4] == ["-", "PASS 1"]
    assert cell(text, "rows")[2:4] == ["PASS 1", "-"]


def test_the_worst_ratio_is_shown():
    rows = [verdict(numbers={"error_ratio": r}) for r in (0.25, 0.75, None)]
    assert cell(render(matrix(*rows), 120, False), "tiles")[3] == "0.750"
    assert cell(render(matrix(verdict()), 120, False), "tiles")[3] == "-"


def test_a_case_is_named_once():
    rows = [verdict(), verdict(kernel="rows"), verdict(case="sum", kernel="accumulate")]
    text = render(matrix(*rows), 120, False)
    assert [cell(text, k)[0] for k in ("tiles", "rows", "accumulate")] == ["add", "", "sum"]


def test_the_legend_explains_what_is_there():
    explained = [line.split(" = ")[0] for line in legend(matrix(verdict(), verdict(Status.CRASH)))]
    assert explained[:-1] == ["PASS", "CRASH"]
    assert "refused" in [line.split(" = ")[0] for line in legend(matrix(refusal()))]
    assert "REJECTED" not in [line.split(" = ")[0] for line in legend(matrix(refusal()))]


def test_no_escape_codes_without_color():
    assert "\x1b" not in render(matrix(verdict(Status.WRONG)), 120, False)
    assert "\x1b" in render(matrix(verdict(Status.WRONG)), 120, True)


# --------------------------------------------------------------------------- conclusions

Failed, Skipped = pytest.fail.Exception, pytest.skip.Exception


def test_right_examples_pass():
    conclude([verdict(), verdict(Status.COMPILED), refusal()], "s")


def test_refusals_alone_pass():
    conclude([refusal()], "s")


@pytest.mark.parametrize("status", sorted(BAD))
def test_one_bad_example_fails_all(status):
    with pytest.raises(Failed, match=rf"add/tiles in interpret: 1 of 3 .*\n  {status}"):
        conclude([verdict(), verdict(status), refusal()], "s")


@pytest.mark.parametrize("status", (Status.UNSUPPORTED, Status.UNAVAILABLE))
def test_nothing_but_declared_limits_skips(status):
    with pytest.raises(Skipped, match=f"{status}: a reason"):
        conclude([verdict(status), verdict(status)], "s")
    conclude([verdict(status), verdict()], "s")


def test_no_example_is_no_pass():
    with pytest.raises(Skipped, match="none of the selected examples"):
        conclude([], "s")


def test_known_failures_are_expected_to_fail():
    waived = verdict(Status.WAIVED)
    with pytest.raises(pytest.xfail.Exception, match="1 of 2 examples WAIVED: a reason"):
        conclude([verdict(), waived], "s")
    with pytest.raises(Failed, match="1 of 2 examples failed"):
        conclude([verdict(Status.WRONG), waived], "s")


def test_a_function_without_pallas_call_fails():
    plain = verdict(numbers={"pallas_calls": 0})
    with pytest.raises(Failed, match="not a Pallas kernel"):
        conclude([plain, plain, refusal()], "s")
    conclude([plain, verdict()], "s")  # an empty sparse matrix needs no call


def test_a_failure_says_enough_to_reproduce_it():
    wrong = verdict(Status.WRONG, why="1 of 8 elements wrong", mode="emulate", chip="v5e")
    with pytest.raises(Failed) as caught:
        conclude([wrong], "/some where/my.py:KERNELS")
    text = str(caught.value)
    assert "add/tiles in emulate@v5e: 1 of 1 examples failed" in text
    assert "m=8, n=128, dtype=float32; inputs exact, seed 1" in text
    for part in (
        "'--subject=/some where/my.py:KERNELS'",
        "--mode emulate --chip v5e",
        "--kernel add/tiles",
        f"--replay {wrong.example}",
    ):
        assert part in text


def test_many_failures_are_shortened():
    with pytest.raises(Failed, match="and 4 more") as caught:
        conclude([verdict(Status.WRONG)] * 9, "s")
    assert str(caught.value).count("replay:") == 5
