"""Property `export`: exported with `jax.export`, serialised and read back, it still compiles.

What is kept between is StableHLO with Mosaic's module inside: no callback, no device and no
Python object of this process may be in it.
"""

from __future__ import annotations

import importlib.util

from jax import export

from conformance import compiler
from conformance.chips import get
from conformance.compiler.process import abstract_mesh
from conformance.modes import Call, _staging
from conformance.properties._compiled import CHIP, Compiled, compiled, shapes
from conformance.properties._interpreted import device_stage
from conformance.verdict import Outcome

_PART = "exported and read back"


class Export(Compiled):
    name = "export"

    def unavailable(self, chip: str | None) -> str | None:
        if importlib.util.find_spec("flatbuffers") is None:
            return "flatbuffers is not installed; jax.export serialises with it"
        return compiler.availability()

    def run(self, call: Call) -> Outcome:
        try:
            args = _staging.prepared(call)
            with _staging.part("exported"):
                stored = exported(call)
            with _staging.part(_PART):
                read = _staging.in_phase("lower", export.deserialize, stored)
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        return compiled(_PART, read.call, args)


def exported(call: Call) -> bytearray:
    """The kernel's device stage for the shapes of an example, exported for TPUs; PhaseError."""
    import jax

    with abstract_mesh(get(CHIP)):
        make = export.export(jax.jit(device_stage(call)), platforms=("tpu",))
        made = _staging.in_phase("lower", make, *shapes(_staging.prepared(call)))
    return _staging.in_phase("lower", made.serialize)


PROPERTY = Export()
