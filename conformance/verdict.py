"""What a run says: the closed set of statuses, a mode's Outcome and the judge's Verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np


class Status(StrEnum):
    """Everything a kernel can be told. Only PASS and COMPILED count as a pass."""

    PASS = "PASS"
    COMPILED = "COMPILED"
    WRONG = "WRONG"
    REJECTED = "REJECTED"
    RESOURCE = "RESOURCE"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    UNSUPPORTED = "UNSUPPORTED"
    UNAVAILABLE = "UNAVAILABLE"
    WAIVED = "WAIVED"


MEANING: Mapping[Status, str] = {
    Status.PASS: "values judged and right",
    Status.COMPILED: "accepted by the compiler; no value judged",
    Status.WRONG: "wrong values, a race, out of bounds, garbage read, or a broken promise",
    Status.REJECTED: "refused while tracing, lowering, compiling or running",
    Status.RESOURCE: "VMEM, SMEM or HBM exceeded",
    Status.CRASH: "the process that ran it died",
    Status.TIMEOUT: "no answer in time",
    Status.UNSUPPORTED: "declared so by the kernel, and checked; or unknown to the executor of IR",
    Status.UNAVAILABLE: "mode or chip not on this machine",
    Status.WAIVED: "known failure, recorded with its reason",
}

GOOD = frozenset({Status.PASS, Status.COMPILED})
BAD = frozenset({Status.WRONG, Status.REJECTED, Status.RESOURCE, Status.CRASH, Status.TIMEOUT})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a mode has no values.

    Attributes:
      status: WRONG, REJECTED, RESOURCE, CRASH, TIMEOUT, UNSUPPORTED or UNAVAILABLE.
      phase: "prepare", "trace", "lower", "compile", "run" or "finish".
      error: name of the exception type, "" when there was none.
      message: the whole text.
      code: the compiler's stable code (E2001...), if any.
      clause: the first clause of the message, the same across shapes and versions; the
        signature of a refusal that has no code.
      part: which of several uses of the kernel it was, where a property tries several.
    """

    status: Status
    phase: str
    error: str
    message: str
    code: str | None = None
    clause: str = ""
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What one of several uses of a kernel gave, where a property tries several.

    Attributes:
      name: of the use; the property's references have the same names.
      values: its results.
    """

    name: str
    values: tuple[np.ndarray, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A form of a kernel on its way through a compiler.

    Attributes:
      name: of the form.
      values: its results.
      blame: what is at fault when this is the first form that is wrong.
    """

    name: str
    values: tuple[np.ndarray, ...]
    blame: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a mode saw; the judge makes a verdict of it.

    Attributes:
      values: the results as NumPy arrays; None when there are none.
      failure: why there are none.
      stages: the forms of the kernel on its way through a compiler, first to last, where a mode
        executes them; `values` are those of the last one.
      parts: the results of several uses of the kernel (properties).
      compiled: accepted by the compiler (modes that judge no values).
      evidence: numbers and texts worth keeping beside the verdict.
    """

    values: tuple[np.ndarray, ...] | None = None
    failure: Failure | None = None
    stages: tuple[Stage, ...] = ()
    parts: tuple[Use, ...] = ()
    compiled: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one kernel did on one example in one mode (on one chip), or about one property.

    Attributes:
      mode: the mode, or the property.
      code: the compiler's stable code, else the first clause of its message.
      expected: a negative example that was refused as its contract asks.
      why: one paragraph that is enough to understand and reproduce a failure.
      numbers: `error_ratio` (achieved/allowed, worst element), `xla_ratio` (the same for XLA)
        and whatever the mode adds.
    """

    case: str
    kernel: str
    mode: str
    chip: str | None
    example: str
    params: Mapping[str, Any]
    inputs: str
    seed: int
    status: Status
    why: str = ""
    phase: str | None = None
    code: str | None = None
    error: str | None = None
    expected: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the run must fail for it."""
        return self.status in BAD and not self.expected

    @property
    def passed(self) -> bool:
        """PASS or COMPILED; nothing else counts."""
        return self.status in GOOD

    def row(self) -> dict[str, Any]:
        """The verdict as one JSON object of results.jsonl."""
        return asdict(self) | {"params": dict(self.params), "numbers": dict(self.numbers)}
