"""libtpu's own estimate of the cycles of each operation: a second opinion.

Its static profile walks the grid of a kernel, and also covers XLA's operations. It must not be
asked where scalar prefetch steers control flow (wrong without a word, or the process ends), nor
for v2 to v4 (the process ends); it knows nothing of how HBM bandwidth is shared. Runs in a child
started with `environment`: the flag changes nothing else, but an older libtpu ends on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance.chips import Chip
from conformance.compiler import process
from conformance.compiler.engine import lower_for
from conformance.compiler.refusal import Refused

_FLAGS = "LIBTPU_INIT_ARGS"
_FOLDER = "profile"
OLDEST_GENERATION = 5


def environment(dump_dir: str | Path) -> dict[str, str | None]:
    """As `process.environment`, with the profile switched on."""
    base = process.environment(dump_dir)
    flag = f"--xla_jf_dump_static_llo_profile_to={dump_dir}/{_FOLDER}"
    return base | {_FLAGS: f"{base[_FLAGS]} {flag}"}


_ESTIMATE = re.compile(r"%(?P<hlo>\S+) = [^\n]*\"estimated_cycles\":\s*\"?(?P<cycles>\d+)\"?")


def estimated_cycles(
    fn: Callable[..., Any], avals: Sequence[Any], chip: Chip
) -> dict[str, int] | Refused:
    """Cycles by operation of the entry computation; empty where there is no estimate.

    Raises:
      ValueError: a chip for which the profile ends the process.
    """
    if chip.info.generation < OLDEST_GENERATION:
        raise ValueError(f"the static profile ends the process on {chip.name}")
    lowered = lower_for(fn, avals, chip)
    if isinstance(lowered, Refused):
        return lowered
    text = lowered._stage.compile().as_text()
    return {found["hlo"]: int(found["cycles"]) for found in _ESTIMATE.finditer(text)}
