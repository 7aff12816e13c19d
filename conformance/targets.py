"""Published times that a kernel is compared with, and how it stands against them.

They are data beside the cases (`cases/targets.json`): the time, its unit, the chip, what was
measured, and where it is published. A wall time includes dispatch; a device time does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from conformance import chips
from conformance.case import Case, Params
from conformance.loading import LoadError, bundled, check_params, data_rows
from conformance.roofline import Roofline, utilization

# Stands for XLA's own code where a kernel's name is expected.
XLA = "xla"


class Standing(StrEnum):
    """How a time stands; separate from whether the values are right."""

    ON_TARGET = "ON_TARGET"
    BELOW_TARGET = "BELOW_TARGET"
    NO_TARGET = "NO_TARGET"
    INVALID = "INVALID"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One published time.

    Attributes:
      id: stable, never reused.
      case: whose contract it is for.
      kernel: name of a reference kernel that is built alike, or "xla".
      params: shapes, dtypes and blocks.
      chip: as in `--chip`.
      value: the time, in `unit`.
      measured: what was timed.
      source: URL.
      note: what else must be known to compare with it.
    """

    id: str
    case: str
    kernel: str
    params: Params
    chip: str
    value: float
    unit: str
    measured: str
    source: str
    note: str = ""


def load_targets(cases: Mapping[str, Case], file: Path | None = None) -> tuple[Target, ...]:
    """The targets of a file; those of the suite when None.

    Raises:
      LoadError: not JSON, not of the schema, or names what is not there.
    """
    file = file or bundled("cases") / "targets.json"
    found = tuple(Target(**row) for row in data_rows(file, "target"))
    seen: set[str] = set()
    for target in found:
        if target.id in seen:
            raise LoadError(f"{file}: target {target.id!r} is there twice")
        seen.add(target.id)
        _check(target, cases, file)
    return found


def _check(target: Target, cases: Mapping[str, Case], file: Path) -> None:
    try:
        chips.get(target.chip)
        if target.case not in cases:
            raise ValueError(f"no case {target.case!r}")
        check_params(cases[target.case], target.params)
    except ValueError as e:
        raise LoadError(f"{file}: target {target.id!r}: {e}") from e


def standing(seconds: float, limits: Roofline, target: float | None) -> Standing:
    """How a time stands against a target, both of the same kind, in seconds.

    A time above the roofline is no time at all, whatever the target.
    """
    if not utilization(limits, seconds).valid:
        return Standing.INVALID
    if target is None:
        return Standing.NO_TARGET
    return Standing.ON_TARGET if seconds <= target else Standing.BELOW_TARGET
