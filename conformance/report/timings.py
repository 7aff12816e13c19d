"""Times: benchmarks.jsonl, one a line, and the table kernel x point for the terminal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.report.lines import append
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

    def write(self, timing: Timing) -> None:
        """One line."""
        append(self._path, json.dumps(timing.row() | {"subject": self._subject}, allow_nan=False))


def render(rows: Iterable[Mapping[str, Any]], width: int, color: bool) -> str:
    """The table of rows of benchmarks.jsonl, and its legend, as text."""
    rows = list(rows)
    table = Table(title="Time", title_justify="left", header_style="bold")
    for name in ("case", "kernel", "point"):
        table.add_column(name, no_wrap=True)
    for name in ("device ms", "spread", "of peak", "of roofline", "XLA ms", "XLA / kernel"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("target ms", justify="right", no_wrap=True)
    table.add_column("standing", no_wrap=True)
    table.add_column("label", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row["case"]):
            table.add_section()
        table.add_row("" if previous == row["case"] else row["case"], *_cells(row))
        previous = row["case"]
    console = Console(width=width, force_terminal=color, no_color=not color)
    with console.capture() as capture:
        console.print(table)
        for line in legend(rows):
            console.print(line, style="dim", highlight=False)
    return capture.get()


def _cells(row: Mapping[str, Any]) -> list[str | Text]:
    part = "" if row["part"] == FORWARD else f" {row['part']}"
    xla = row["xla_seconds"]
    standing = Standing(row["standing"])
    return [
        f"{row['kernel']}{part}",
        f"{row['point']}@{row['chip']}",
        _milliseconds(row["median_seconds"]),
        _percent(row["spread"]),
        _percent(row["of_peak"]),
        _percent(row["of_roofline"]),
        _milliseconds(statistics.median(xla) if xla else None),
        "-" if row["xla_ratio"] is None else f"{row['xla_ratio']:.2f}",
        _milliseconds(row["target_seconds"]),
        Text(standing, style=_STYLE[standing]),
        row["label"],
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def legend(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the columns and the standings in these rows mean, and what is wrong with times."""
    rows = list(rows)
    lines = [f"{s} = {MEANING[s]}" for s in Standing if any(r["standing"] == s for r in rows)]
    lines += [
        "device ms: median of the samples, without dispatch; spread: longest less shortest",
        "XLA: the case's own function compiled by XLA at default precision, in the same run",
    ]
    lines += [
        f"{r['case']}/{r['kernel']} {r['point']}@{r['chip']}: {what}"
        for r in rows
        for what in (*filter(None, (r["why"],)), *r["limits"])
    ]
    return lines
