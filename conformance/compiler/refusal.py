"""A refusal by JAX or the compiler, reduced to what stays the same across shapes and versions."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Literal

Phase = Literal["trace", "lower", "compile"]
Kind = Literal["REJECTED", "RESOURCE"]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Why a kernel has no code.

    Attributes:
      phase: which step raised.
      kind: RESOURCE when a memory was exhausted, REJECTED otherwise.
      code: the compiler's stable code (E1000...E2003); most refusals have none.
      clause: first clause of the message without numbers, shapes, locations and paths.
      message: the whole text, with the notes JAX attached.
      error: name of the exception type. A refusal by Mosaic arrives as MosaicError or as
        JaxRuntimeError depending on the version of JAX and the text: MosaicError here.
      memory: "vmem", "smem" or "hbm" for RESOURCE.
    """

    phase: Phase
    kind: Kind
    code: str | None
    clause: str
    message: str
    error: str
    memory: str | None = None


class CompilerUnusable(RuntimeError):
    """The compiler failed for a reason that is not the kernel's; never a verdict."""


_MOSAIC = re.compile(
    r"Mosaic failed to compile TPU kernel"
    r"(?: with MLIR module name `[^`]*`)?(?: HLO name `[^`]*`)?: "
)
_CODE = re.compile(r"\bE(?P<number>[0-9]{4}): (?P<name>\w+):\s*")
_STATUS = re.compile(r"(?P<status>[A-Z_]{3,}): ")
_PREAMBLES = (
    _STATUS,
    _MOSAIC,
    re.compile(r"Pallas encountered an internal verification error\..*?Error details: ", re.S),
    re.compile(r"XLA:TPU compile permanent error\. "),
    _CODE,
)

# RESOURCE_EXHAUSTED texts. VMEM has three: the limit of one kernel (E1001), the sum of all
# allocations, one allocation alone; the last is shared with SMEM.
_EXHAUSTED = (
    re.compile(r"Ran out of memory in memory space (?P<memory>\w+)"),
    re.compile(r"Allocation \(size=\d+\) would exceed memory.*?space=(?P<memory>\w+)", re.S),
    re.compile(r"Ran out of memory on (?P<memory>\w+)"),
)

# Statuses that say something about the machine, not about the program.
_MACHINE = frozenset({"UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED"})

# Where the first clause ends: the operation is printed, details follow, the sentence ends.
_END = re.compile(
    r"(?: for)?:? %[\w.#]+ = | see current operation| :: |\n|(?<=[\w)\]'`\"])\.(?=\s|$)"
)
_NOISE = (
    (re.compile(r"loc\(.*?\)+"), "loc"),
    (re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>"), "<object>"),
    (re.compile(r"(?<![\w.])/[\w./+-]+(?::\d+)*"), "<path>"),
    (re.compile(r"[\w.+-]+(?:/[\w.+-]+)+\.(?:cc|h|cpp|py)(?::\d+)*"), "<path>"),
    (re.compile(r"%[\w.#]+"), "%"),
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"(?<![\w#])-?\d[\d.]*(?:x\d+)*"), "#"),
    (re.compile(r"\(#(?:, ?#)*,?\)|#(?:, ?#)+"), "#"),
)


def refused(phase: Phase, error: Exception) -> Refused:
    """What an exception raised in `phase` says.

    Raises:
      CompilerUnusable: it says something about the machine instead.
    """
    text = str(error)
    status = _STATUS.match(text)
    if isinstance(error, MemoryError) or (status and status["status"] in _MACHINE):
        raise CompilerUnusable(f"in phase {phase!r}: {text}") from error
    code = _CODE.search(text)
    memory = _memory(text) if phase == "compile" else None
    why = clause(text) or f"no message, raised in {_raised_in(error)}"
    if memory and memory not in why.lower():
        why = f"{memory}: {why}"
    return Refused(
        phase=phase,
        kind="REJECTED" if memory is None else "RESOURCE",
        code=f"E{code['number']}" if code else None,
        clause=why,
        message="\n".join([text, *getattr(error, "__notes__", ())]),
        error="MosaicError" if _MOSAIC.search(text) else type(error).__name__,
        memory=memory,
    )


def clause(text: str) -> str:
    """The first clause of a message; equal for equal reasons. "" when there is none."""
    text = text.strip()
    for preamble in _PREAMBLES:
        if found := preamble.match(text):
            text = text[found.end() :].lstrip()
    end = _END.search(text)
    text = text[: end.start()] if end else text
    for noise, replacement in _NOISE:
        text = noise.sub(replacement, text)
    return " ".join(text.split())


def _memory(text: str) -> str | None:
    """The memory that a RESOURCE_EXHAUSTED text names."""
    if not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    found = next(filter(None, (pattern.search(text) for pattern in _EXHAUSTED)), None)
    return found["memory"].lower() if found else "unknown"


def _raised_in(error: Exception) -> str:
    """The innermost function, all there is to know of an assertion without a text."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].name if frames else "unknown"
