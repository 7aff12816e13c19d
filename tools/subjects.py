"""Runs a shipped subject and makes its summary in docs/subjects.md.

python tools/subjects.py jax_ops        a few minutes
python tools/subjects.py tokamax_ops    where Tokamax is installed
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.report.lines import read

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "subjects.md"
# So that a run takes less than ten minutes on two cores.
EXAMPLES = "2"


def run(subject: str) -> list[dict[str, Any]]:
    """The verdicts of a run in all default modes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        command += [f"--subject=subjects/{subject}.py", "--max-examples", EXAMPLES]
        done = subprocess.run([*command, f"--report={folder}"], cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit(f"{subject}: the run failed; nothing is written")
        return list(read(Path(folder) / "results.jsonl"))


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Markdown: kernel by mode, every status with the number of examples that have it."""
    cells: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for row in rows:
        column = row["mode"] if row["chip"] is None else f"{row['mode']}@{row['chip']}"
        kernel = cells.setdefault((row["case"], row["kernel"]), {})
        kernel.setdefault(column, Counter())[row["status"]] += 1
    columns = sorted({column for found in cells.values() for column in found})
    lines = [
        "| " + " | ".join(["case", "kernel", *columns]) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for (case, kernel), found in sorted(cells.items()):
        texts = [
            ", ".join(f"{status} {count}" for status, count in sorted(found[c].items()))
            if c in found
            else ""
            for c in columns
        ]
        lines.append(f"| {case} | {kernel} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    subject = sys.argv[1] if len(sys.argv) > 1 else ""
    begin, end = f"<!-- summary: {subject} -->\n", "<!-- end -->"
    text = DOCUMENT.read_text()
    if begin not in text:
        known = ", ".join(re.findall(r"<!-- summary: (\w+) -->", text))
        raise SystemExit(f"subject {subject!r}: expected one of {known}")
    made = f"jax {version('jax')}, `--max-examples {EXAMPLES}`.\n\n{table(run(subject))}\n"
    before, _, rest = text.partition(begin)
    DOCUMENT.write_text(f"{before}{begin}{made}{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
