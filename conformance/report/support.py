"""The support matrix: kernel x dtype x chip, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from conformance.verdict import GOOD, Status

# The worst status of a cell is shown: one refused example is what an author must know.
_ORDER = (
    Status.CRASH,
    Status.TIMEOUT,
    Status.WRONG,
    Status.RESOURCE,
    Status.REJECTED,
    Status.WAIVED,
    Status.UNSUPPORTED,
    Status.UNAVAILABLE,
    Status.COMPILED,
    Status.PASS,
)
_LONGEST_CODE = 40

Key = tuple[str, str, str]
Cell = Mapping[str, Any]


class Support:
    """Verdicts of one mode with chips, by (case, kernel, dtype) and chip."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], mode: str, chips: Iterable[str]) -> None:
        """Args:
        rows: of results.jsonl; other modes and negative examples are left out.
        chips: the order of the columns.
        """
        found: dict[Key, dict[str, list[Mapping[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for row in rows:
            if row["mode"] == mode and not row["expected"]:
                key = (row["case"], row["kernel"], str(row["params"].get("dtype", "")))
                found[key][row["chip"]].append(row)
        seen = {chip for cells in found.values() for chip in cells}
        self.chips = [chip for chip in chips if chip in seen]
        self.rows = {key: dict(cells) for key, cells in found.items()}

    def cell(self, key: Key, chip: str) -> tuple[str, str, str]:
        """(status, code, share) of a cell: the worst status, its code, how many examples."""
        rows = self.rows[key].get(chip, [])
        if not rows:
            return "", "", ""
        worst = min((Status(r["status"]) for r in rows), key=_ORDER.index)
        same = [r for r in rows if r["status"] == worst]
        code = next((r["code"] for r in same if r["code"]), "") or ""
        share = "" if len(same) == len(rows) else f"{len(same)}/{len(rows)}"
        return worst, code, share

    def markdown(self) -> str:
        """A table; a cell is empty where nothing was judged."""
        header = ["case", "kernel", "dtype", *self.chips]
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for key in self.rows:
            cells = [_markdown(*self.cell(key, chip)) for chip in self.chips]
            lines.append("| " + " | ".join([*key, *cells]) + " |")
        return "\n".join(lines) + "\n"

    def by_kernel(self) -> str:
        """A shorter table: for each kernel and chip "all", or the dtypes that are not accepted."""
        dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for case, kernel, dtype in self.rows:
            dtypes[case, kernel].append(dtype)
        header = ["case", "kernel", "dtypes", *self.chips]
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for (case, kernel), names in dtypes.items():
            cells = [self._refused(case, kernel, names, chip) for chip in self.chips]
            lines.append("| " + " | ".join([case, kernel, str(len(names)), *cells]) + " |")
        return "\n".join(lines) + "\n"

    def _refused(self, case: str, kernel: str, dtypes: Iterable[str], chip: str) -> str:
        statuses = {d: self.cell((case, kernel, d), chip)[0] for d in dtypes}
        found = [d for d, status in statuses.items() if status not in ("", *GOOD)]
        if not any(statuses.values()):
            return ""
        return f"not {', '.join(sorted(found))}" if found else "all"

    def csv(self) -> str:
        """One line a cell: case, kernel, dtype, chip, status, code, share of the examples."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["case", "kernel", "dtype", "chip", "status", "code", "share"])
        for key in self.rows:
            for chip in self.chips:
                writer.writerow([*key, chip, *self.cell(key, chip)])
        return text.getvalue()


def _markdown(status: str, code: str, share: str) -> str:
    code = code if len(code) <= _LONGEST_CODE else code[: _LONGEST_CODE - 3] + "..."
    return " ".join(filter(None, (status, code.replace("|", "\\|"), share)))
