"""results.jsonl: one verdict a line, appended whole, so that no worker's death loses one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.verdict import Verdict


class Lines:
    """Appends verdicts to a file that several processes share."""

    def __init__(self, path: Path, subject: str, worker: str) -> None:
        self._path = path
        self._subject = subject
        self._worker = worker

    def write(self, verdict: Verdict) -> None:
        """One `write` to a file opened for appending: lines of several workers do not mix."""
        row = verdict.row() | {"subject": self._subject, "worker": self._worker}
        append(self._path, json.dumps(row, default=_plain, allow_nan=False))


def append(path: Path, line: str) -> None:
    """Appends a line with one `write`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    """NumPy scalars and mappings as JSON."""
    return value.item() if hasattr(value, "item") else dict(value)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a results file, in the order they were written."""
    if path.exists():
        with path.open() as lines:
            yield from map(json.loads, lines)
