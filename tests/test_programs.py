"""The executor of compiler IR agrees with the interpreters on a corpus of small programs.

By default on every fifth program for one chip; with `--run-slow` on all of them for four chips.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import jax
import pytest
from ir_mutants import in_compiling_process
from programs import PROGRAMS, Program
from programs.departures import DEPARTURES, Departure

from conformance import compiler

EXECUTE = Path(__file__).resolve().parent / "programs" / "execute.py"
CHIPS = ("v5e", "v4", "v6e", "tpu7x")
EVERY = 5
NEWEST = jax.__version_info__ >= (0, 11)
FOLDERS = sorted({p.name.partition("/")[0] for p in PROGRAMS})
# Of programs that compile; the executor may know fewer operations than that many programs need.
MOST_UNSUPPORTED = 0.02

pytestmark = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)


def chosen(folder: str, slow: bool) -> list[Program]:
    """The programs of a folder that this run executes; those with a departure always."""
    own = [p for p in PROGRAMS if p.name.startswith(f"{folder}/") and (NEWEST or not p.newest)]
    return [p for n, p in enumerate(own) if slow or n % EVERY == 0 or departure(p.name, "v5e")]


def departure(name: str, chip: str) -> Departure | None:
    """The known disagreement of a program on a chip, if any."""
    found = (d for d in DEPARTURES if fnmatchcase(name, d.programs) and chip in d.chips)
    return next((d for d in found if NEWEST or not d.newest), None)


def executed(
    programs: list[Program], chips: tuple[str, ...]
) -> dict[tuple[str, str], dict[str, str]]:
    """(program, chip) -> what came out. What ends its process is a CRASH, and the rest go on."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    todo = [p.name for p in programs]
    while todo:
        run = in_compiling_process(str(EXECUTE), ",".join(chips), *todo, timeout=1200)
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        begun = [line["begins"] for line in lines if "begins" in line]
        rows |= {(line["name"], line["chip"]): line for line in lines if "status" in line}
        assert begun, run.stderr[-2000:]
        crash = {"status": "CRASH", "why": run.stderr[-500:]}
        for name in begun:
            failed = rows.pop((name, ""), crash)
            for chip in chips:
                rows.setdefault((name, chip), failed)
        todo = [name for name in todo if name not in begun]
    return rows


def wrong(program: Program, chip: str, row: dict[str, str]) -> str | None:
    """What is unexpected about an outcome."""
    status, why = row["status"], row["why"]
    if chip in program.refused:
        return None if status in ("REJECTED", "RESOURCE") else f"{status}, but declared refused"
    known = departure(program.name, chip)
    if known is not None:
        if status == "DIFFERS" and known.blame in why:
            return None
        return f"{status} {why}; but it is a known departure: {known.why}"
    return None if status in ("AGREES", "UNSUPPORTED") else f"{status}: {why}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_programs_agree(folder: str, request: pytest.FixtureRequest) -> None:
    slow = request.config.getoption("--run-slow")
    programs, chips = chosen(folder, slow), CHIPS if slow else CHIPS[:1]
    rows = executed(programs, chips)
    found = [(p, chip, wrong(p, chip, rows[p.name, chip])) for p in programs for chip in chips]
    faults = [f"{p.name}@{chip}: {fault}" for p, chip, fault in found if fault is not None]
    assert not faults, "\n".join(faults)
    unknown = sorted({name for (name, _), row in rows.items() if row["status"] == "UNSUPPORTED"})
    print(f"{folder}: {len(programs)} programs, {len(unknown)} UNSUPPORTED {unknown}")
    assert len(unknown) <= max(1, MOST_UNSUPPORTED * len(programs)), unknown


def test_the_corpus_is_large() -> None:
    assert len(PROGRAMS) >= 300
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS)


def test_departures_are_explained_and_met() -> None:
    for known in DEPARTURES:
        assert known.why
        assert any(fnmatchcase(p.name, known.programs) for p in PROGRAMS), known.programs
