"""Which mode condemns which mutant: the tables of docs/kills.md and docs/kills-by-case.md.

Each mutant of tests/mutants.py is judged in every mode that needs no TPU, on the examples of a
plain run that can show its defect, until one fails; a mode that fails none of the first points
misses it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from conformance.examples import for_case
from conformance.judge import Judge
from conformance.loading import load_cases
from conformance.modes import MODES as KNOWN
from conformance.runner import Runner
from conformance.verdict import Verdict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

CHIP = "v5e"
MODES = ("interpret", "tpu-interpret", "aot", "emulate")
SECONDS = 20.0  # some mutants hang in the simulator
MOST = 24  # examples of a mutant that no example condemns
WORKERS = 2

# kernel -> mode -> the status that condemned it, or None
Tally = Mapping[str, Mapping[str, str | None]]


def tally() -> Tally:
    """Judges all mutants, in processes: each needs its own place for the compiler's dumps."""
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(_share, range(WORKERS)))
    return {name: cells for part in parts for name, cells in part.items()}


def _share(number: int) -> dict[str, dict[str, str | None]]:
    from mutant_table import MUTANTS

    mutants, cases = MUTANTS[number::WORKERS], load_cases()
    runner = Runner(str(ROOT / "tests" / "mutants.py"), (), SECONDS, None)
    try:
        judge = Judge(runner)
        return {m.name: {mode: _status(judge, cases, m, mode) for mode in MODES} for m in mutants}
    finally:
        runner.close()


def _status(judge: Judge, cases: Any, mutant: Any, mode: str) -> str | None:
    """The status of the first verdict that fails."""
    verdicts = _verdicts(judge, cases[mutant.kernel.case], mutant, mode)
    return next((str(v.status) for v in verdicts if v.failed), None)


def _verdicts(judge: Judge, case: Any, mutant: Any, mode: str) -> Iterator[Verdict]:
    chip = CHIP if KNOWN[mode].chips else None
    if "negative" in mutant.by and KNOWN[mode].values:
        for negative in case.negatives:
            if negative.phase in KNOWN[mode].phases:
                yield judge.judge_negative(case, mutant.kernel, mode, negative, chip)
    found = [e for e in for_case(case, "ci", None) if not e.modes or mode in e.modes]
    found = [e for e in found if mutant.shows(e.params)]
    if not KNOWN[mode].values:
        found = list({repr(e.params): e for e in found}.values())
    else:
        found.sort(key=lambda e: e.inputs not in mutant.by)
    for example in found[:MOST]:
        yield judge.judge(case, mutant.kernel, mode, example, chip)


def every_mutant(found: Tally) -> str:
    """docs/kills.md: a row a mutant."""
    from mutant_table import MUTANTS

    lines = [_HEADER, f"| mutant | what is wrong with it | {' | '.join(_columns())} |"]
    lines.append("|---|---|" + "---|" * len(MODES))
    for mutant in MUTANTS:
        cells = " | ".join(found[mutant.name][mode] or "-" for mode in MODES)
        lines.append(f"| {mutant.name} | {mutant.defect} | {cells} |")
    return "\n".join(lines) + "\n"


_HEADER = f"""# Which mode kills which mutant

Made by `python tools/docs.py kills`. Mutants are the reference patterns, wrong in one known way
(`tests/mutants.py`). A cell has the status that condemned the mutant, `-` where the mode does not
see it: judged on up to {MOST} examples of a plain run that can show the defect. `aot` and
`emulate` are for {CHIP}; `aot` judges no values, and `emulate` executes compiler IR, not hardware.
"""


def _columns() -> list[str]:
    return [f"{mode}@{CHIP}" if KNOWN[mode].chips else mode for mode in MODES]


def by_case(found: Tally) -> str:
    """docs/kills-by-case.md: mutants condemned, a row a case."""
    from mutant_table import MUTANTS

    total: dict[str, list[int]] = defaultdict(lambda: [0] * len(MODES))
    count: dict[str, int] = defaultdict(int)
    for mutant in MUTANTS:
        for case in (mutant.kernel.case, "**all**"):
            count[case] += 1
            for n, mode in enumerate(MODES):
                total[case][n] += found[mutant.name][mode] is not None
    lines = [f"| case | mutants | {' | '.join(_columns())} |", "|---|---|" + "---|" * len(MODES)]
    for case in sorted(count, key=lambda c: (c.startswith("*"), c)):
        cells = " | ".join(str(n) for n in total[case])
        lines.append(f"| {case} | {count[case]} | {cells} |")
    return "\n".join(lines) + "\n"
