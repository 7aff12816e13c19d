"""What the test file of a vendored folder runs: kernels of its repository, by the cases there.

Needs no option, plugin or conftest of pytest. The folder's `_suite.py` finds this module, in the
copy of the engine beside it or in the installed package.
"""

from __future__ import annotations

import atexit
import datetime
import os
import shlex
from dataclasses import replace
from pathlib import Path

from conformance.case import Kernel
from conformance.conclusion import Advice, Conclusion, conform
from conformance.examples import GENERATED
from conformance.expectations import Expectation, stale
from conformance.judge import Judge
from conformance.outcome import tell
from conformance.plan import Column, Options, Plan, PlanError, is_path, make_plan
from conformance.runner import Runner
from conformance.verdict import Verdict

# Names one example to judge, by the id that a failure prints.
REPLAY = "CONFORMANCE_REPLAY"

TIER = "ci"

# Options of the suite's own command line, and what stands for them in a test file.
_CONSTANTS = {
    "--subject": "SUBJECT",
    "--mode": "MODES",
    "--chip": "CHIPS",
    "--max-examples": "MAX_EXAMPLES",
    "--example-timeout": "TIMEOUT",
    "--expectations": "EXPECTATIONS",
    "--replay": REPLAY,
}


class VendoredError(ValueError):
    """Constants of the test file that cannot be used; the message names the one and its value."""


class Session:
    """The tests of one file.

    Attributes:
      pairs: (kernel, (mode, chip)), one for each test.
      ids: their names.
    """

    def __init__(self, plan: Plan, file: Path, timeout: float) -> None:
        self.pairs = [(k, c) for k in plan.kernels for c in plan.columns]
        self.ids = [_id(*pair) for pair in self.pairs]
        self._plan = plan
        self._file = file
        self._timeout = timeout
        self._judge: Judge | None = None

    def check(self, kernel: Kernel, column: Column) -> None:
        """Fails, skips, xfails or passes the running test for a kernel in a column."""
        verdicts: list[Verdict] = []
        advice = Advice(self._replay)
        found = conform(self._judging(), self._plan, kernel, column, verdicts.append, advice)
        tell(self._still_expected(found, kernel, column, verdicts))

    def _judging(self) -> Judge:
        """The judge. Its processes start with the first test, not when tests are collected."""
        if self._judge is None:
            runner = Runner(self._plan.subject.spec, self._plan.case_files, self._timeout, None)
            atexit.register(runner.close)
            self._judge = Judge(runner)
        return self._judge

    def _still_expected(
        self, found: Conclusion, kernel: Kernel, column: Column, verdicts: list[Verdict]
    ) -> Conclusion:
        """Fails for an entry that is about this test alone and no longer says what is so.

        Other entries can only be held against the verdicts of several tests, which may run in
        several processes.
        """
        if found.outcome == "failed" or not verdicts:
            return found
        entries = [e for e in self._plan.expectations if _about(e, kernel, column)]
        today = datetime.datetime.now(datetime.UTC).date()
        lines = stale(entries, [v.row() for v in verdicts], self._plan.complete, today)
        return Conclusion("failed", "\n".join(lines)) if lines else found

    def _replay(self, verdict: Verdict) -> str:
        name = _id_of(verdict.case, verdict.kernel, (verdict.mode, verdict.chip))
        test = shlex.quote(f"{self._file}::test_conforms[{name}]")
        return f"{REPLAY}={shlex.quote(verdict.example)} pytest {test}"


def _about(entry: Expectation, kernel: Kernel, column: Column) -> bool:
    mode, chip = column
    names = (entry.case, entry.kernel, entry.mode, entry.chip if chip else "")
    return names == (kernel.case, kernel.name, mode, chip or "")


def _id(kernel: Kernel, column: Column) -> str:
    return _id_of(kernel.case, kernel.name, column)


def _id_of(case: str, kernel: str, column: Column) -> str:
    mode, chip = column
    return f"{case}/{kernel}-{mode}" if chip is None else f"{case}/{kernel}-{mode}@{chip}"


def session(
    folder: Path,
    file: Path,
    *,
    subject: str,
    modes: tuple[str, ...] = (),
    chips: tuple[str, ...] = (),
    max_examples: int | None = None,
    expectations: str = "expectations.toml",
    timeout: float = 120.0,
) -> Session:
    """The tests of a file beside vendored cases.

    Args:
      folder: made by `conformance vendor`.
      file: the test file; paths in the other arguments are relative to its folder.
      subject: a file, package folder or module with kernels, `:ATTRIBUTE` if need be.
      modes, chips: empty means the suite's own choice, of which modes may be unavailable.
      max_examples: generated points of each case; None means the suite's own number.
      expectations: the file of known failures.
      timeout: seconds that an example may take.

    Raises:
      VendoredError: for the first that is wrong.
    """
    replayed = os.environ.get(REPLAY)
    options = Options(
        modes=tuple(modes),
        chips=tuple(chips),
        subject=str(file.parent / subject) if is_path(subject) else subject,
        cases=(str(folder),),
        kernels=(),
        max_examples=max_examples,
        tier=TIER,
        replay=(replayed,) if replayed else (),
        timeout=timeout,
        properties=("none",),
        expectations=str(file.parent / expectations),
    )
    try:
        plan = make_plan(options)
    except PlanError as e:
        raise VendoredError(_in_constants(str(e))) from e
    narrowed = replayed or (max_examples is not None and max_examples < GENERATED[TIER])
    return Session(replace(plan, complete=not narrowed), file, timeout)


def _in_constants(message: str) -> str:
    """What the command line says, in words of the test file."""
    option, space, rest = message.partition(" ")
    return f"{_CONSTANTS.get(option, option)}{space}{rest}"
