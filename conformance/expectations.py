"""Recorded, explained departures: read, matched, and found stale when they no longer hold.

A file of `[[expectation]]` tables, kept by whoever owns the kernels. A verdict that an entry
foresaw becomes WAIVED. An entry that matches nothing, whose kernel now passes, whose signature
differs or that has expired fails the run: known failures must stay known.
"""

from __future__ import annotations

import datetime
import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance import condition
from conformance.verdict import BAD, GOOD, Status, Verdict


class ExpectationError(ValueError):
    """An expectation file that cannot be used; the message names the entry and the key."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One known failure.

    Attributes:
      case, kernel, mode, chip: shell-style patterns; chip "" stands for modes without chips.
      params: parameters that the example must have.
      where: a condition on the parameters, such as "m % bm or k > 128"; empty means always.
      jax: the versions of jax that it is known for, as a version specifier.
      status, signature: what the verdict must say; the signature is the compiler's code, or
        else the first clause of its message, or the exception's name; for WRONG, or a verdict
        that has none of them (no answer), a part of its `why`.
      reason: why, in one sentence.
      link: where it is explained or reported.
      expires: the day from which on it must be looked at again.
    """

    case: str
    status: Status
    signature: str
    reason: str
    link: str
    kernel: str = "*"
    mode: str = "*"
    chip: str = "*"
    params: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    jax: str = ""
    expires: datetime.date | None = None

    def speaks_of(self, mode: str, chip: str | None) -> bool:
        """Whether a column of the run is one that the entry is about."""
        return fnmatch.fnmatchcase(mode, self.mode) and fnmatch.fnmatchcase(chip or "", self.chip)

    def covers(self, row: Mapping[str, Any]) -> bool:
        """Whether a verdict (as a row of results.jsonl) is one that the entry speaks of."""
        return (
            self.speaks_of(row["mode"], row["chip"])
            and fnmatch.fnmatchcase(row["case"], self.case)
            and fnmatch.fnmatchcase(row["kernel"], self.kernel)
            and all(row["params"].get(key) == value for key, value in self.params.items())
            and (not self.where or condition.holds(self.where, row["params"]))
        )

    def foresees(self, verdict: Verdict) -> bool:
        """Whether the verdict is the known failure itself."""
        said = tuple(filter(None, (verdict.code, verdict.error)))
        anywhere = not said or verdict.status is Status.WRONG
        return (
            self.covers(verdict.row())
            and verdict.status is self.status
            and (self.signature in said or (anywhere and self.signature in verdict.why))
        )

    def __str__(self) -> str:
        chip = f"@{self.chip}" if self.chip != "*" else ""
        return f"{self.case}/{self.kernel} in {self.mode}{chip} {self.status} {self.signature!r}"


def load(path: Path, jax_version: str) -> tuple[Expectation, ...]:
    """The entries of a file that speak of the installed jax.

    Raises:
      ExpectationError: not TOML, a missing, unknown or ill-typed key.
    """
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ExpectationError(f"{path}: {e}") from e
    unknown = set(document) - {"expectation"}
    if unknown:
        raise ExpectationError(f"{path}: unknown table {unknown.pop()!r}, expected [[expectation]]")
    tables = document.get("expectation", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ExpectationError(f"{path}: expectation must be an array of tables, [[expectation]]")
    entries = [_entry(path, n, table) for n, table in enumerate(tables)]
    return tuple(e for e in entries if SpecifierSet(e.jax).contains(jax_version, prereleases=True))


def _entry(path: Path, number: int, table: Mapping[str, Any]) -> Expectation:
    where = f"{path}: expectation {number + 1}"
    known = {f.name for f in fields(Expectation)}
    for key in table:
        if key not in known:
            names = ", ".join(sorted(known))
            raise ExpectationError(f"{where}: unknown key {key!r}; known: {names}")
    for key in ("case", "status", "signature", "reason", "link"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise ExpectationError(f"{where}: {key!r} must be a non-empty string")
    for key in ("kernel", "mode", "chip", "where", "jax"):
        if not isinstance(table.get(key, ""), str):
            raise ExpectationError(f"{where}: {key!r} must be a string")
    if not isinstance(table.get("params", {}), dict):
        raise ExpectationError(f"{where}: params must be a table, got {table['params']!r}")
    if table["status"] not in BAD:
        legal = ", ".join(sorted(BAD))
        raise ExpectationError(f"{where}: status {table['status']!r} is not one of {legal}")
    # A datetime is a date to Python, but not to be compared with one.
    if type(table.get("expires", datetime.date.max)) is not datetime.date:
        raise ExpectationError(f"{where}: expires must be a date, got {table['expires']!r}")
    try:
        condition.check(table.get("where") or "0")
    except ValueError as e:
        raise ExpectationError(f"{where}: where: {e}") from e
    try:
        SpecifierSet(table.get("jax", ""))
    except InvalidSpecifier as e:
        raise ExpectationError(f"{where}: jax: {e}") from e
    return Expectation(**{**table, "status": Status(table["status"])})


def waive(verdict: Verdict, entries: Iterable[Expectation]) -> Verdict:
    """The verdict, WAIVED when an entry foresaw it."""
    if not verdict.failed:
        return verdict
    for entry in entries:
        if entry.foresees(verdict):
            why = f"{entry.reason} ({entry.link}); {verdict.status}: {verdict.why}"
            return replace(verdict, status=Status.WAIVED, why=why)
    return verdict


def stale(
    entries: Sequence[Expectation],
    rows: Sequence[Mapping[str, Any]],
    complete: bool,
    today: datetime.date,
) -> list[str]:
    """One line for each entry that no longer says what is so.

    Args:
      rows: the verdicts of the run, as in results.jsonl.
      complete: nothing narrowed the examples, so that an entry which covers nothing, or only
        what passes, is wrong. Entries for modes and chips that the run left out are not.
    """
    return [line for e in entries if (line := _stale(e, rows, complete, today)) is not None]


def _stale(
    entry: Expectation, rows: Sequence[Mapping[str, Any]], complete: bool, today: datetime.date
) -> str | None:
    if entry.expires is not None and today >= entry.expires:
        return f"expectation expired on {entry.expires}: {entry}"
    covered = [r for r in rows if not r["expected"] and entry.covers(r)]
    if not covered:
        looked_at = any(entry.speaks_of(r["mode"], r["chip"]) for r in rows)
        return f"expectation matches nothing: {entry}" if complete and looked_at else None
    if any(r["status"] == Status.WAIVED for r in covered):
        return None
    if complete and all(r["status"] in GOOD for r in covered):
        return f"expectation is out of date, its kernel passes: {entry}"
    if any(r["status"] in BAD for r in covered):
        return f"expectation has another signature now: {entry}"
    return None
