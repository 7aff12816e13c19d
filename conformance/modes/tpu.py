"""Mode `tpu`: the compiled kernel on the attached TPU. Values, and times.

Runs in the pytest process, the only one that may hold the device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from conformance import chips
from conformance.chips import Chip
from conformance.modes import Call, _staging, _timing
from conformance.modes._profiler import ProfilerClock
from conformance.numerics import COMPILED
from conformance.timing import CallFailed, Clock, Part, Sample
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

    def __init__(self, clock: Clock | None = None) -> None:
        """Args:
        clock: what times calls, if not the profiler.
        """
        self.clock: Clock = clock or ProfilerClock()
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

    def attached(self) -> Chip:
        """The chip of this machine; ValueError for one that the suite does not know."""
        device = jax.devices("tpu")[0]
        return chips.of_device(device.device_kind, getattr(device, "num_cores", 1))

    def samples(
        self, calls: Iterable[Call], part: Part, *, xla: bool = False
    ) -> Iterator[tuple[Sample, tuple[np.ndarray, ...]]]:
        """Times and values of a kernel's calls, or of XLA's own code; the first call warms up.

        Raises:
          CallFailed: it does not compile or run.
          ClockError: no device time can be told.
        """
        try:
            yield from _timing.samples(calls, part, self.clock, xla)
        except _staging.PhaseError as e:
            raise CallFailed(e.failure()) from e


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
