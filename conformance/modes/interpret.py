"""Mode `interpret`: Pallas' HLO interpreter. Values, on any CPU.

It clamps out-of-range block indices and knows nothing of cores, DMAs or uninitialised VMEM;
`tpu-interpret` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.experimental.pallas import tpu as pltpu

from conformance.modes import Call, _staging
from conformance.numerics import INTERPRETED
from conformance.verdict import Outcome

# One environment for both interpreters, so that they share a process and its caches.
ENVIRONMENT: Mapping[str, str | None] = {
    "JAX_PLATFORMS": "cpu",
    "OPENBLAS_NUM_THREADS": "1",
    # Else XLA leaves out roundings to narrow types between operations, which a TPU makes.
    "XLA_FLAGS": "--xla_allow_excess_precision=false",
    "JAX_ENABLE_X64": None,
}


class Interpret:
    name = "interpret"
    arithmetic = INTERPRETED
    chips: tuple[str, ...] = ()
    default_chips: tuple[str, ...] = ()
    default = True
    phases = frozenset({"prepare", "trace", "finish"})
    in_process = False
    values = True
    xla = True

    def __init__(self) -> None:
        self._programs = _staging.Programs()

    def environment(self) -> Mapping[str, str | None]:
        return ENVIRONMENT

    def unavailable(self, chip: str | None) -> str | None:
        return None

    def probe(self) -> str | None:
        return None

    def run(self, call: Call, chip: str | None) -> Outcome:
        try:
            args = _staging.prepared(call)
            with pltpu.force_tpu_interpret_mode(True):  # type: ignore[arg-type]
                shapes = tuple((a.shape, str(a.dtype)) for a in args)
                key = (call.key, shapes)
                program, pallas_calls = self._programs.get(key, lambda: _build(call, args))
                values = _staging.execute(call, program, args)
            return Outcome(values=values, evidence={"pallas_calls": pallas_calls})
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())


def _build(call: Call, args: tuple[Any, ...]) -> tuple[Any, int]:
    traced = _staging.trace(call, args)
    _staging.require_interpreted(traced)
    _staging.require_inputs_unwritten(traced)
    return _staging.compile_traced(traced), len(traced.pallas_calls)


MODE = Interpret()
