"""The support matrix from synthetic rows of results.jsonl."""

from __future__ import annotations

import csv
import io
import itertools
from typing import Any

import pytest

from conformance.report.support import Support
from conformance.verdict import Status

CHIPS = ("v4", "v5e", "v6e", "tpu7x")


def row(status: str = "COMPILED", chip: str = "v5e", **changed: Any) -> dict[str, Any]:
    given = {
        "case": "add",
        "kernel": "tiles",
        "mode": "aot",
        "chip": chip,
        "params": {"m": 8, "dtype": "float32"},
        "status": status,
        "code": None,
        "expected": False,
    }
    return given | changed


def table(*rows: dict[str, Any], mode: str = "aot") -> list[list[str]]:
    """The lines of the Markdown table, cut into cells."""
    lines = Support(rows, mode, CHIPS).markdown().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def cell(*rows: dict[str, Any]) -> str:
    """The only cell of a matrix of one kernel and chip."""
    return table(*rows)[2][3]


def test_a_kernel_is_one_line_for_each_dtype():
    header, rule, *lines = table(
        row(),
        row(params={"m": 8, "dtype": "int8"}),
        row(kernel="rows"),
        row(case="dynamic", params={"m": 8}),
    )
    assert header == ["case", "kernel", "dtype", "v5e"]
    assert rule == ["---"] * 4
    assert lines == [
        ["add", "tiles", "float32", "COMPILED"],
        ["add", "tiles", "int8", "COMPILED"],
        ["add", "rows", "float32", "COMPILED"],
        ["dynamic", "tiles", "", "COMPILED"],
    ]


def test_columns_are_the_judged_chips_in_the_order_of_the_chips():
    rows = [row(chip=chip) for chip in ("tpu7x", "v4", "v5e")]
    assert table(*rows)[0][3:] == ["v4", "v5e", "tpu7x"]


def test_what_was_not_judged_is_empty():
    matrix = table(row(chip="v4"), row(chip="v5e", kernel="rows"))
    assert matrix[2:] == [
        ["add", "tiles", "float32", "COMPILED", ""],
        ["add", "rows", "float32", "", "COMPILED"],
    ]


def test_other_modes_and_expected_refusals_are_left_out():
    """An expected refusal says what a contract asks for, not what a chip supports."""
    rows = [row(), row("WRONG", chip=None, mode="interpret"), row("REJECTED", expected=True)]
    assert cell(*rows) == "COMPILED"
    assert Support(rows[1:], "aot", CHIPS).chips == []


ORDER = [
    "CRASH",
    "TIMEOUT",
    "WRONG",
    "RESOURCE",
    "REJECTED",
    "WAIVED",
    "UNSUPPORTED",
    "UNAVAILABLE",
    "COMPILED",
    "PASS",
]


def test_every_status_has_its_rank():
    assert sorted(ORDER) == sorted(Status)


@pytest.mark.parametrize("worse, better", list(itertools.pairwise(ORDER)))
def test_the_worst_status_wins_wherever_it_stands(worse, better):
    for statuses in ((worse, better), (better, worse)):
        assert cell(*map(row, statuses)) == f"{worse} 1/2"


def test_the_share_counts_the_worst_of_all():
    compiled, refused = row(), row("REJECTED", code="E2001")
    assert cell(compiled, compiled, compiled) == "COMPILED"
    assert cell(compiled, refused, compiled) == "REJECTED E2001 1/3"
    assert cell(refused, refused) == "REJECTED E2001"


def test_the_code_is_of_the_worst_status():
    crash = row("CRASH")
    assert cell(row("REJECTED", code="E2001"), crash) == "CRASH 1/2"
    assert cell(row("REJECTED"), row("REJECTED", code="E2003")) == "REJECTED E2003"


@pytest.mark.parametrize(
    "code, shown",
    [("a" * 40, "a" * 40), ("a" * 41, "a" * 37 + "..."), ("i8 | i16", r"i8 \| i16")],
    ids=["longest", "too long", "bar"],
)
def test_codes_are_shortened_and_do_not_break_the_table(code, shown):
    text = Support([row("REJECTED", code=code)], "aot", CHIPS).markdown()
    assert text.splitlines()[2] == f"| add | tiles | float32 | REJECTED {shown} |"


def test_csv_has_a_line_for_each_cell_and_whole_codes():
    code = "Not implemented: " + "x, " * 20
    rows = [row(), row("REJECTED", code=code), row(chip="tpu7x"), row(kernel="rows", chip="v4")]
    lines = list(csv.reader(io.StringIO(Support(rows, "aot", CHIPS).csv())))
    assert lines[0] == ["case", "kernel", "dtype", "chip", "status", "code", "share"]
    cells = [line for line in lines[1:] if line[4]]
    assert len(lines) == 1 + 2 * 3
    assert cells == [
        ["add", "tiles", "float32", "v5e", "REJECTED", code, "1/2"],
        ["add", "tiles", "float32", "tpu7x", "COMPILED", "", ""],
        ["add", "rows", "float32", "v4", "COMPILED", "", ""],
    ]


def test_by_kernel_names_the_dtypes_that_are_not_accepted():
    rows = [
        row(),
        row(params={"m": 8, "dtype": "int8"}),
        row("REJECTED", params={"m": 8, "dtype": "int4"}),
        row(chip="v4"),
        row("UNSUPPORTED", chip="v4", params={"m": 8, "dtype": "int8"}),
        row(kernel="rows"),
    ]
    lines = Support(rows, "aot", CHIPS).by_kernel().splitlines()
    assert lines[2:] == ["| add | tiles | 3 | not int8 | not int4 |", "| add | rows | 1 |  | all |"]
