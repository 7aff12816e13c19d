"""Mode `emulate`: executes the IR that the compiler made for a chip. Compiler IR, not hardware.

What was COMPILED is thereby checked for values: JAX's lowering, index maps, prefetch, aliases, and
Mosaic's layout passes; everything between the kernel and the code generator.
"""

from __future__ import annotations

import functools

from conformance.modes import Call, _compiling, _emulation, _staging
from conformance.numerics import COMPILED
from conformance.verdict import Outcome


class Emulate(_compiling.Compiling):
    name = "emulate"
    arithmetic = COMPILED
    chips = ("v4", "v4-megacore", "v5e", "v5p", "v6e", "tpu7x")
    default_chips = ("v5e", "tpu7x")
    phases: frozenset[str] = frozenset()
    values = True
    xla = False

    def __init__(self) -> None:
        self._executor = _emulation.Executor()

    def run(self, call: Call, chip: str | None) -> Outcome:
        assert chip is not None
        try:
            args = _staging.prepared(call)
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        key = (call.key, tuple((a.shape, str(a.dtype)) for a in args))
        fn = functools.partial(call.kernel.fn, **call.options)
        return self._executor.outcome(key, fn, args, chip, call.kernel.finish)


MODE = Emulate()
