"""Schedules of the pinned smoke examples against the record of the installed libtpu."""

from __future__ import annotations

import pytest
import schedule_record as record

from conformance import compiler

BEFORE = {
    "a": {"spilled": 0, "vmem": 1000, "cycles": 1000},
    "b": {"spilled": 0, "vmem": 0, "unpredicted": "why"},
    "c": {"refused": "because"},
}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, []),
        ({"a": {"spilled": 0, "vmem": 1000, "cycles": 1050}}, []),
        ({"a": {"spilled": 0, "vmem": 1000, "cycles": 1100}}, ["a: cycles 1000 -> 1100"]),
        ({"a": {"spilled": 0, "vmem": 900, "cycles": 1000}}, ["a: vmem 1000 -> 900"]),
        ({"a": {"spilled": 4, "vmem": 1000, "cycles": 1000}}, ["a: spilled 0 -> 4"]),
        (
            {"b": {"spilled": 0, "vmem": 0, "cycles": 9}},
            ["b: cycles None -> 9", "b: unpredicted why -> None"],
        ),
        ({"c": {"refused": "another"}}, ["c: refused because -> another"]),
        ({"d": {}}, ["d: is new"]),
    ],
)
def test_changes_beyond_the_band_are_said(now, said):
    assert list(record.changes(BEFORE, BEFORE | now)) == said


def test_what_is_gone_is_said():
    assert list(record.changes(BEFORE, {"b": BEFORE["b"], "c": BEFORE["c"]})) == ["a: is gone"]


def test_schedules_have_not_changed():
    """`schedule_record.py --write` accepts a change, or makes the record of a new libtpu."""
    if (reason := compiler.availability()) is not None:
        pytest.skip(reason)
    before = record.stored(record.version())
    if before is None:
        pytest.skip(f"no record of libtpu {record.version()}")
    assert not list(record.changes(before, record.make()))
