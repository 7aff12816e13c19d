"""Times: benchmarks.jsonl, one a line, and the table kernel x point for the terminal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from conformance.report.lines import append
from conformance.report.table import add_by_case, as_text, titled
from conformance.schedule import LABEL as PREDICTED
from conformance.targets import Standing
from conformance.timing import FORWARD, Timing

FILE = "benchmarks.jsonl"

_STYLE = {
    Standing.ON_TARGET: "green",
    Standing.BELOW_TARGET: "bold red",
    Standing.INVALID: "bold red",
    Standing.NO_TARGET: "dim",
}
MEANING: Mapping[Standing, str] = {
    Standing.ON_TARGET: "not slower than what is published for this point on this chip",
    Standing.BELOW_TARGET: "slower than what is published",
    Standing.NO_TARGET: "nothing is published for this point on this chip, or mostly dispatch",
    Standing.INVALID: "no time: above the roofline, wrong values, or the clock contradicts itself",
}


class Timings:
    """Appends timings to a file."""

    def __init__(self, path: Path, subject: str) -> None:
        self._path = path
        self._subject = subject
        self._written: list[Timing] = []

    def write(self, timing: Timing) -> None:
        """One line; a timing that is there already is not written again, as XLA's, which is
        predicted once for all kernels of a case."""
        if timing in self._written:
            return
        self._written.append(timing)
        append(self._path, json.dumps(timing.row() | {"subject": self._subject}, allow_nan=False))


def render(rows: Iterable[Mapping[str, Any]], width: int, color: bool) -> str:
    """The table of rows of benchmarks.jsonl, and its legend, as text."""
    rows = list(rows)
    table = titled("Time")
    lines = [_cells(row) for row in rows]
    shown = [n for n, _ in enumerate(_COLUMNS) if any(str(line[n]) != "-" for line in lines)]
    for number in shown:
        name, justify = _COLUMNS[number]
        table.add_column(name, justify=justify, no_wrap=True)
    add_by_case(table, ([line[n] for n in shown] for line in lines))
    return as_text(table, legend(rows), width, color)


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("case", "left"),
    ("kernel", "left"),
    ("point", "left"),
    ("device ms", "right"),
    ("spread", "right"),
    ("of peak", "right"),
    ("of roofline", "right"),
    ("XLA ms", "right"),
    ("XLA / kernel", "right"),
    ("target ms", "right"),
    ("standing", "left"),
    ("label", "left"),
)


def _cells(row: Mapping[str, Any]) -> list[str | Text]:
    part = "" if row["part"] == FORWARD else f" {row['part']}"
    xla = row["xla_seconds"]
    standing = Standing(row["standing"])
    return [
        row["case"],
        f"{row['kernel']}{part}",
        f"{row['point']}@{row['chip']}",
        _milliseconds(row["median_seconds"]),
        _percent(row["spread"]),
        _percent(row["of_peak"]),
        _percent(row["of_roofline"]),
        _milliseconds(statistics.median(xla) if xla else None),
        "-" if row["xla_ratio"] is None else f"{row['xla_ratio']:.2f}",
        _milliseconds(row["target_seconds"]),
        "-" if not_predicted(row) else Text(standing, style=_STYLE[standing]),
        row["label"],
    ]


def not_predicted(row: Mapping[str, Any]) -> bool:
    """Whether the model has no time for what compiles: nobody's failure."""
    return row["label"] == PREDICTED and not row["seconds"] and row["status"] is None


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def legend(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the columns and the standings in these rows mean, and what is wrong with times."""
    rows = list(rows)
    standings = {r["standing"] for r in rows if not not_predicted(r)}
    lines = [f"{s} = {MEANING[s]}" for s in Standing if s in standings]
    lines += [
        "device ms: median of the samples, without dispatch; spread: longest less shortest",
        "XLA: the case's own function compiled by XLA at default precision, in the same run",
    ]
    lines += [f"{_name(r)}: {r['why']}" for r in rows if r["why"]]
    limited: dict[str, list[str]] = {}
    for row in rows:
        for limit in row["limits"]:
            limited.setdefault(limit, []).append(_name(row))
    lines += [f"{limit}: {', '.join(names)}" for limit, names in limited.items()]
    return lines


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['case']}/{row['kernel']} {row['point']}@{row['chip']}"
