"""Property `determinism`: the same inputs give the same bits, and the same program.

The kernel is traced, lowered for a TPU and run twice, with nothing kept between: a number drawn
or counted on the way, while tracing or while running, shows. The text of the program decides
whether a compilation cache finds it again.
"""

from __future__ import annotations

from typing import Any

import jax

from conformance.case import Case, Example
from conformance.chips import DEFAULT, get
from conformance.compiler.dialect import canonical
from conformance.compiler.process import abstract_mesh
from conformance.modes import Call, _staging
from conformance.properties import References
from conformance.properties._interpreted import (
    Broken,
    Interpreted,
    called,
    device_stage,
    expected,
    jit,
)
from conformance.verdict import Outcome, Use

_CHIP = DEFAULT[0]
_RUNS = ("first run", "second run", "run of a second trace")
_LOWERED = f"lowered for {_CHIP}"


class Determinism(Interpreted):
    name = "determinism"
    data = False

    def run(self, call: Call) -> Outcome:
        try:
            _require_same_text(call, _staging.prepared(call))
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        except Broken as e:
            return _staging.failed(e.failure)
        return super().run(call)

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        first, second = _fresh(call), _fresh(call)
        found: list[Use] = []
        for name, fn in zip(_RUNS, (first, first, second), strict=True):
            values = _staging.finished(call, called(call, name, fn, *args))
            found.append(Use(name=name, values=values))
        for other in found[1:]:
            _require_same_bits(found[0], other)
        return tuple(found)

    def references(self, case: Case, example: Example) -> References:
        return dict.fromkeys(_RUNS, expected(case, example))


def _fresh(call: Call) -> Any:
    jax.clear_caches()
    return jit(device_stage(call))


def _require_same_bits(first: Use, other: Use) -> None:
    for number, (a, b) in enumerate(zip(first.values, other.values, strict=True)):
        if a.tobytes() != b.tobytes():
            raise Broken(f"result {number} has other bits than in the first run", other.name)


def _require_same_text(call: Call, args: tuple[Any, ...]) -> None:
    first, second = _text(call, args), _text(call, args)
    for a, b in zip(first.splitlines(), second.splitlines(), strict=False):
        if a != b:
            raise Broken(
                f"lowered twice, the program differs: {a.strip()} != {b.strip()}", _LOWERED
            )
    if first != second:
        raise Broken("lowered twice, one program is longer than the other", _LOWERED)


def _text(call: Call, args: tuple[Any, ...]) -> str:
    """The program for a TPU, kernels readable."""
    with abstract_mesh(get(_CHIP)), _staging.part(_LOWERED):
        traced = _staging.in_phase("trace", _fresh(call).trace, *args)
        lowered = _staging.in_phase("lower", lambda: traced.lower(lowering_platforms=("tpu",)))
    return canonical(lowered.as_text())


PROPERTY = Determinism()
