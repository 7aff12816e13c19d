"""The matrix kernel x mode@chip, for the terminal."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from conformance.report.table import add_by_case, as_text, titled
from conformance.verdict import BAD, MEANING, Status

_STYLE = {Status.PASS: "green", Status.COMPILED: "cyan"}
_BAD_STYLE = "bold red"
_OTHER_STYLE = "yellow"


class Matrix:
    """Counts verdict rows by kernel and mode@chip."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.cells: dict[tuple[str, str], dict[str, Counter[Status]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        self.refused: Counter[tuple[tuple[str, str], str]] = Counter()
        self.ratio: dict[tuple[str, str], float] = {}
        self.columns: list[str] = []
        self.executes: dict[str, str] = {}
        self.unknown: Counter[str] = Counter()
        for row in rows:
            self._add(row)

    def _add(self, row: Mapping[str, Any]) -> None:
        kernel = (row["case"], row["kernel"])
        column = row["mode"] if row["chip"] is None else f"{row['mode']}@{row['chip']}"
        if column not in self.columns:
            self.columns = sorted({*self.columns, column})
        if row["expected"]:
            self.refused[kernel, column] += 1
            self.cells[kernel][column] += Counter()
            return
        self.cells[kernel][column][Status(row["status"])] += 1
        if row["status"] == Status.UNSUPPORTED and row["phase"] == "run":
            self.unknown[row["code"]] += 1
        if "executes" in row["numbers"]:
            self.executes[row["mode"]] = row["numbers"]["executes"]
        ratio = row["numbers"].get("error_ratio")
        if ratio is None and row["status"] == Status.WRONG and row["phase"] == "run":
            ratio = math.inf  # NaN, wrong bits, a wrong shape: no bound is wide enough
        if ratio is not None:
            self.ratio[kernel] = max(self.ratio.get(kernel, 0.0), ratio)

    def counts(self) -> Counter[Status]:
        """Verdicts by status over the whole matrix, expected refusals left out."""
        total: Counter[Status] = Counter()
        for row in self.cells.values():
            for cell in row.values():
                total.update(cell)
        return total


def _cell(counts: Counter[Status], refused: int) -> Text:
    """`PASS 24`, or the failures first: `WRONG 2 PASS 22`; `+3 refused` counts negatives."""
    text = Text()
    order = sorted(counts, key=lambda s: (s not in BAD, list(Status).index(s)))
    for status in order:
        style = _BAD_STYLE if status in BAD else _STYLE.get(status, _OTHER_STYLE)
        text.append(f"{status} {counts[status]} ", style=style)
    if refused:
        text.append(f"+{refused} refused", style="dim")
    return text or Text("-", style="dim")


def render(matrix: Matrix, width: int, color: bool, title: str = "Kernel x mode") -> str:
    """The table and its legend as text."""
    table = titled(title)
    table.add_column("case", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for column in matrix.columns:
        table.add_column(column)
    table.add_column("worst error / allowed", justify="right")
    add_by_case(table, (_line(matrix, kernel) for kernel in matrix.cells))
    return as_text(table, legend(matrix), width, color)


def _line(matrix: Matrix, kernel: tuple[str, str]) -> list[str | Text]:
    row = matrix.cells[kernel]
    cells = [_cell(row[c], matrix.refused[kernel, c]) for c in matrix.columns]
    ratio = f"{matrix.ratio[kernel]:.3f}" if kernel in matrix.ratio else "-"
    return [*kernel, *cells, ratio]


def legend(matrix: Matrix) -> list[str]:
    """What the statuses in this matrix mean, one line each."""
    lines = [f"{s} = {MEANING[s]}" for s in Status if matrix.counts()[s]]
    lines += [f"{mode} executes {what}" for mode, what in sorted(matrix.executes.items())]
    if matrix.unknown:
        counts = ", ".join(f"{name} ({n})" for name, n in sorted(matrix.unknown.items()))
        lines.append(f"examples UNSUPPORTED because the executor does not know: {counts}")
    if matrix.refused:
        lines.append("refused = bad input, refused with the error that the contract asks for")
    lines.append(
        "numbers count judged examples; 0.000 = exact, 1.000 = as wrong as a right kernel may be"
    )
    return lines
