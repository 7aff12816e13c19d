"""Mode `tpu`: the compiled kernel on the attached TPU. Values.

Runs in the pytest process, the only one that may hold the device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax

from conformance.modes import Call, _staging
from conformance.numerics import COMPILED
from conformance.verdict import Outcome


class Tpu:
    name = "tpu"
    arithmetic = COMPILED
    chips: tuple[str, ...] = ()
    default_chips: tuple[str, ...] = ()
    default = False
    phases = frozenset({"prepare", "trace", "finish"})
    in_process = True
    values = True
    xla = True

    def __init__(self) -> None:
        self._programs = _staging.Programs()

    def environment(self) -> Mapping[str, str | None]:
        return {}

    def unavailable(self, chip: str | None) -> str | None:
        return no_tpu()

    def probe(self) -> str | None:
        return None

    def run(self, call: Call, chip: str | None) -> Outcome:
        try:
            args = _staging.prepared(call)
            key = (call.key, tuple((a.shape, str(a.dtype)) for a in args))
            program = self._programs.get(
                key, lambda: _staging.compile_traced(_staging.trace(call, args))
            )
            return Outcome(values=_staging.execute(call, program, args))
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())


@functools.cache
def no_tpu() -> str | None:
    """Why there is no TPU to run on. Looks at the PCI bus first: asking libtpu on a machine
    without a TPU can take minutes."""
    from jax._src import hardware_utils

    if hardware_utils.num_available_tpu_chips_and_device_id()[0] == 0:
        return "no TPU is attached to this machine"
    try:
        jax.devices("tpu")
    except RuntimeError as e:
        return f"jax cannot use the TPU of this machine: {e}"
    return None


MODE = Tpu()
