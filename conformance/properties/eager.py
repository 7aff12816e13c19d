"""Property `eager`: called without `jax.jit`, the kernel gives what the contract asks, too."""

from __future__ import annotations

from typing import Any

from conformance.case import Case, Example
from conformance.modes import Call, _staging
from conformance.properties import References
from conformance.properties._interpreted import Interpreted, called, device_stage, expected
from conformance.verdict import Use

_PART = "called without jit"


class Eager(Interpreted):
    name = "eager"

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        result = called(call, _PART, device_stage(call), *args)
        return (Use(name=_PART, values=_staging.finished(call, result)),)

    def references(self, case: Case, example: Example) -> References:
        return {_PART: expected(case, example)}


PROPERTY = Eager()
