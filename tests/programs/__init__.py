"""Small Pallas TPU programs, by topic, that test whoever executes them.

Each module holds tables; each row becomes a `Program`: a function, inputs made from a seed, and
how its results are judged. `PROGRAMS` has all of them.
"""

from __future__ import annotations

from . import (
    bitcasts,
    blocks,
    broadcasts,
    casts,
    chains,
    concatenates,
    control_flow,
    dma,
    elementwise,
    gathers,
    grids,
    iota,
    loads_stores,
    matmul,
    pipelines,
    prefetch,
    reductions,
    reshapes,
    rolls,
    select_compare,
    transposes,
)
from ._record import Program
from ._refusals import LEFT_OUT

__all__ = ["PROGRAMS", "Program"]

_MODULES = (
    elementwise,
    casts,
    bitcasts,
    iota,
    loads_stores,
    broadcasts,
    reshapes,
    transposes,
    concatenates,
    rolls,
    gathers,
    select_compare,
    reductions,
    matmul,
    control_flow,
    grids,
    prefetch,
    blocks,
    dma,
    pipelines,
    chains,
)

PROGRAMS: tuple[Program, ...] = tuple(
    p for module in _MODULES for p in module.PROGRAMS if p.name not in LEFT_OUT
)
