"""What properties that are compiled share: the process of mode `aot`, and one chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from conformance import compiler
from conformance.case import Case, Example, Kernel
from conformance.chips import DEFAULT
from conformance.modes import _compiling
from conformance.properties import References
from conformance.verdict import Outcome, Use

CHIP = DEFAULT[0]


class Compiled(_compiling.Compiling):
    """A property of which the compiler speaks: no values."""

    chip = CHIP
    data = False

    def lacks(self, case: Case, kernel: Kernel) -> str | None:
        return None

    def references(self, case: Case, example: Example) -> References:
        return {}

    def baseline(self, case: Case, example: Example) -> tuple[Use, ...]:
        return ()


def shapes(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments as shapes."""
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args)


def compiled(part: str, fn: Callable[..., Any], args: Sequence[Any]) -> Outcome:
    """What the compiler says of one use of the kernel."""
    result, known = _compiling.compiled(fn, shapes(args), CHIP)
    if isinstance(result, compiler.Refused):
        failure = replace(_compiling.refusal(result), part=part)
        return Outcome(failure=failure, evidence={"cached": known})
    return Outcome(compiled=True, evidence={"cached": known})
