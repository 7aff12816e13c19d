"""Mode `aot`: Mosaic and libtpu compile the kernel for a chip that is not here.

It answers whether a kernel is accepted and what it needs, and no question about values: its
good status is COMPILED, never PASS.
"""

from __future__ import annotations

import functools
from typing import Any

from conformance import compiler
from conformance.chips import DEFAULT, NAMES
from conformance.compiler.dialect import KERNEL_TARGET
from conformance.modes import Call, _compiling, _staging
from conformance.numerics import COMPILED
from conformance.verdict import Outcome


class Aot(_compiling.Compiling):
    name = "aot"
    arithmetic = COMPILED
    chips = NAMES
    default_chips = DEFAULT
    phases = frozenset({"lower", "compile"})
    values = False
    xla = True

    def __init__(self) -> None:
        self._arguments: dict[Any, tuple[Any, ...]] = {}

    def run(self, call: Call, chip: str | None) -> Outcome:
        assert chip is not None
        try:
            arguments = self._shapes(call)
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        fn = functools.partial(call.kernel.fn, **call.options)
        result, known = _compiling.compiled(fn, arguments, chip)
        if isinstance(result, compiler.Refused):
            return Outcome(failure=_compiling.refusal(result), evidence={"cached": known})
        return Outcome(compiled=True, evidence=_evidence(result, known))

    def _shapes(self, call: Call) -> tuple[Any, ...]:
        """`fn`'s arguments; the same for every chip and distribution of a point."""
        if call.key not in self._arguments:
            import jax

            if len(self._arguments) >= 64:
                self._arguments.clear()
            self._arguments[call.key] = tuple(
                jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _staging.prepared(call)
            )
        return self._arguments[call.key]


def _evidence(result: compiler.Compiled, cached: bool) -> dict[str, Any]:
    return {
        "cached": cached,
        "pallas_calls": result.module.count(KERNEL_TARGET),
        "vmem_bytes": result.vmem_bytes,
        "vmem_capacity_bytes": result.vmem_capacity,
        "spilled_bytes": result.spilled_bytes,
        "code_bytes": result.code_bytes,
        "bundles": sum(kernel.count for kernel in result.kernels),
    }


MODE = Aot()
