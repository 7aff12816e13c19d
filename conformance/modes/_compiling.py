"""What the modes that compile for a chip share: the child's environment, and the store."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import compiler
from conformance.chips import get as chip_called
from conformance.compiler.store import Store
from conformance.verdict import Failure, Status


class Compiling:
    """What modes that compile for absent chips have in common: one child process serves all."""

    in_process = False
    default = True

    def environment(self) -> Mapping[str, str | None]:
        return compiler.environment(_dump_dir())

    def unavailable(self, chip: str | None) -> str | None:
        return compiler.availability()

    def probe(self) -> str | None:
        return compiler.availability(load=True)


def compiled(
    fn: Callable[..., Any], arguments: Sequence[Any], chip: str
) -> tuple[compiler.Compiled | compiler.Refused, bool]:
    """Compiles a function for a chip, or finds what the compiler said of the same module before.

    Args:
      arguments: what has `shape` and `dtype`.

    Returns:
      The compiler's answer, and whether it was known.
    """
    lowered = compiler.lower_for(fn, arguments, chip_called(chip))
    if isinstance(lowered, compiler.Refused):
        return lowered, False
    store = _store()
    known: compiler.Compiled | compiler.Refused | None = store.get(lowered.key)
    if known is not None:
        return known, True
    result = compiler.compile_lowered(lowered, compiler.dump_dir())
    store.put(lowered.key, result)
    return result, False


def refusal(refused: compiler.Refused) -> Failure:
    """A refusal as the judge sees it."""
    return Failure(
        status=Status(refused.kind),
        phase=refused.phase,
        error=refused.error,
        message=refused.message,
        code=refused.code,
        clause=refused.clause,
    )


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
