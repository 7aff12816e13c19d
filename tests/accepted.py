"""Wrong kernels that the compiler accepts without a word: COMPILED is no judgement of values.

A subject of its own (`pytest --subject tests/accepted.py`): in mode aot all of it passes, and
`KILLED_BY` says which mode condemns each kernel. Most are mutants of `mutants.py`; added here is
what is no defect of a pattern, but of addresses alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax.experimental import pallas as pl

from conformance import Kernel
from conformance.loading import load_cases, load_subject

MUTANTS = load_subject(str(Path(__file__).with_name("mutants.py")), tuple(load_cases()))


def add_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def map_divides_by_zero(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """x + y by blocks of rows; which rows of y is (i + 1) / 0."""
    spec = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        add_kernel,
        grid=(pl.cdiv(x.shape[0], bm),),
        in_specs=[spec, pl.BlockSpec(spec.block_shape, lambda i: (jax.lax.div(i + 1, i - i), 0))],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


def rows_past_the_end(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """x + y where y, whole in VMEM, is read one block further than x."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        start = pl.multiple_of((pl.program_id(0) + 1) * bm, bm)
        o_ref[...] = x_ref[...] + y_ref[pl.ds(start, bm), :]

    spec = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], bm),),
        in_specs=[spec, pl.BlockSpec(y.shape, lambda i: (0, 0))],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


# What is outside is read as NaN, or named by the simulator.
OUTSIDE = "[Oo]ut.of.bounds"
# case/kernel -> the mode that kills it, and what its verdict says
KILLED_BY = {
    "add/writes_every_other_block": ("interpret", "got nan"),
    "add/map_divides_by_zero": ("tpu-interpret", OUTSIDE),
    "add/rows_past_the_end": ("tpu-interpret", OUTSIDE),
    "add/dma_wait_missing": ("tpu-interpret", "got nan"),
    "add/shared_output": ("tpu-interpret", "^race"),
    "sum/parallel_reduction": ("tpu-interpret", "^race"),
    "sum/reduction_axis_first": ("tpu-interpret", "Revisited block"),
    "dsd/reads_past_the_indices": ("tpu-interpret", OUTSIDE),
}
OWN = {
    f"add/{fn.__name__}": Kernel(case="add", name=fn.__name__, fn=fn)
    for fn in (map_divides_by_zero, rows_past_the_end)
}
KERNELS = tuple(OWN[name] if name in OWN else MUTANTS.find(*name.split("/")) for name in KILLED_BY)
