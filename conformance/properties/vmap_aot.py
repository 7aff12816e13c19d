"""Property `vmap-aot`: the mapped kernel is accepted by the compiler.

Separate from `vmap`, since the interpreter maps kernels that do not lower for a TPU.
"""

from __future__ import annotations

import jax

from conformance.modes import Call, _staging
from conformance.properties._batches import batched, mappings
from conformance.properties._compiled import Compiled, compiled
from conformance.properties._interpreted import device_stage
from conformance.verdict import Outcome


class VmapAot(Compiled):
    name = "vmap-aot"

    def run(self, call: Call) -> Outcome:
        outcome = Outcome(compiled=True)
        for what, mapped in mappings(call.arrays).items():
            try:
                batch = batched(call, mapped)
            except _staging.PhaseError as e:
                return _staging.failed(e.failure())
            if batch is None:
                continue
            args, axes = batch
            outcome = compiled(what, jax.vmap(device_stage(call), in_axes=axes), args)
            if outcome.failure is not None:
                break
        return outcome


PROPERTY = VmapAot()
