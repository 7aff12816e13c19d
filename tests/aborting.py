"""Kernels that end the compiling process, beside one that does not.

A subject of its own: `pytest --subject tests/aborting.py --mode aot --chip tpu7x`. libtpu answers
each of these with SIGABRT instead of an error; an interpreter runs some of them happily.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel


def add_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def copy_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def rows(*arrays: jax.Array, bm: int, body: Any, last: Any = None, **params: Any) -> jax.Array:
    """`body` by blocks of rows; `last` is the index of every output block, if given."""
    (m, n), dtype = arrays[0].shape, arrays[0].dtype
    spec = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, bm),),
        in_specs=[spec] * len(arrays),
        out_specs=spec if last is None else pl.BlockSpec((bm, n), lambda i: (last, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        compiler_params=pltpu.CompilerParams(**params),
    )(*arrays)


def mask_across_lanes(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y where a flat mask of booleans, folded into rows, says so: that is everywhere."""

    def body(x_ref: Any, y_ref: Any, mask_ref: Any, o_ref: Any) -> None:
        mask = (mask_ref[...] > 0).reshape(o_ref.shape)
        o_ref[...] = jnp.where(mask, x_ref[...] + y_ref[...], 0)

    mask = jnp.ones(x.size, jnp.float32)
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y, mask)


def block_out_of_range(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """Writes block 99 of an output that has fewer; the index is a constant."""
    return rows(x, y, bm=bm, body=add_kernel, last=99)


def negative_vmem_limit(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """A limit that tpu7x, of all chips, does not survive."""
    return rows(x, bm=bm, body=copy_kernel, vmem_limit_bytes=-1)


def good(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """Compiles for every dtype of the case, which the sum as it stands would not."""
    return rows(x, bm=bm, body=copy_kernel)


ABORTING = (mask_across_lanes, block_out_of_range, negative_vmem_limit)
KERNELS = tuple(Kernel(case="add", name=fn.__name__, fn=fn) for fn in (*ABORTING, good))
