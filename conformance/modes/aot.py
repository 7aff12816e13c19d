"""Mode `aot`: Mosaic and libtpu compile the kernel for a chip that is not here.

It answers whether a kernel is accepted and what it needs, and no question about values: its
good status is COMPILED, never PASS.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance import compiler
from conformance.chips import DEFAULT, NAMES
from conformance.chips import get as chip_called
from conformance.compiler.dialect import KERNEL_TARGET
from conformance.compiler.store import Store
from conformance.modes import Call, _staging
from conformance.numerics import COMPILED
from conformance.verdict import Failure, Outcome, Status


class Aot:
    name = "aot"
    arithmetic = COMPILED
    chips = NAMES
    default_chips = DEFAULT
    default = True
    phases = frozenset({"lower", "compile"})
    in_process = False
    values = False

    def __init__(self) -> None:
        self._arguments: dict[Any, tuple[Any, ...]] = {}

    def environment(self) -> Mapping[str, str | None]:
        return compiler.environment(_dump_dir())

    def unavailable(self, chip: str | None) -> str | None:
        return compiler.availability()

    def probe(self) -> str | None:
        return compiler.availability(load=True)

    def run(self, call: Call, chip: str | None) -> Outcome:
        assert chip is not None
        try:
            arguments = self._shapes(call)
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        fn = functools.partial(call.kernel.fn, **call.options)
        lowered = compiler.lower_for(fn, arguments, chip_called(chip))
        if isinstance(lowered, compiler.Refused):
            return _outcome(lowered)
        store = _store()
        result = store.get(lowered.key)
        known = result is not None
        if result is None:
            result = compiler.compile_lowered(lowered, compiler.dump_dir())
            store.put(lowered.key, result)
        return _outcome(result, cached=known)

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


@functools.cache
def _dump_dir() -> str:
    """Where this worker's compiling child dumps; removed at exit."""
    directory = tempfile.mkdtemp(prefix="conformance-dumps-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@functools.cache
def _store() -> Store:
    directory = os.environ.get("CONFORMANCE_CACHE_DIR")
    return Store(Path(directory) / "aot" if directory else None)


def _outcome(result: compiler.Compiled | compiler.Refused, cached: bool = False) -> Outcome:
    if isinstance(result, compiler.Refused):
        failure = Failure(
            status=Status(result.kind),
            phase=result.phase,
            error=result.error,
            message=result.message,
            code=result.code,
            clause=result.clause,
        )
        return Outcome(failure=failure, evidence={"cached": cached})
    evidence = {
        "cached": cached,
        "pallas_calls": result.module.count(KERNEL_TARGET),
        "vmem_bytes": result.vmem_bytes,
        "vmem_capacity_bytes": result.vmem_capacity,
        "spilled_bytes": result.spilled_bytes,
        "code_bytes": result.code_bytes,
        "bundles": sum(kernel.count for kernel in result.kernels),
    }
    return Outcome(compiled=True, evidence=evidence)


MODE = Aot()
