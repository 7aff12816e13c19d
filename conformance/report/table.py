"""A table by case, and lines under it, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table


def titled(title: str) -> Table:
    """A table without columns yet."""
    return Table(title=title, title_justify="left", header_style="bold")


def add_by_case(table: Table, lines: Iterable[Sequence[RenderableType]]) -> None:
    """Adds lines whose first cell is their case, which is shown once, with a rule between cases."""
    previous = None
    for case, *cells in lines:
        if previous not in (None, case):
            table.add_section()
        table.add_row("" if previous == case else case, *cells)
        previous = case


def as_text(table: Table, legend: Iterable[str], width: int, color: bool) -> str:
    """The table and, dimmed, the lines of its legend."""
    console = Console(width=width, force_terminal=color, no_color=not color)
    with console.capture() as capture:
        console.print(table)
        for line in legend:
            console.print(line, style="dim", highlight=False)
    return capture.get()
