"""Add two matrices: the pipelining guide's first kernel, and what the pipeline adds to it.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/pipelining.html
(first steps: https://docs.jax.dev/en/latest/pallas/quickstart.html)

    whole           both arrays in VMEM at once; no grid, no overlap of copy and compute
    rows            a grid over blocks of rows: the next block is copied while this one is added
    tiles           a grid over both axes: the blocks stay small however long the rows are
    megacore_rows   `rows`, with its axis declared parallel so that two cores can share it
    megacore_tiles  `tiles`, with both axes declared parallel

Every rung adds `x` and `y` (m, n) of one dtype out of `DTYPES` and returns that dtype. Integers
wrap. Blocks need not divide the array: what lies outside is padding when read and dropped when
written.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import (
    FLOATS,
    LANES,
    SUBLANES,
    check_block,
    check_dtype,
    check_equal,
    check_rank,
    out_like,
)

Semantics = Literal["parallel", "arbitrary"]

DTYPES = (*FLOATS, "int32", "int16", "int8", "uint32", "uint16", "uint8")


def widen(x: jax.Array) -> jax.Array:
    """`x` in the 32-bit type of its kind: the vector unit has no 8-bit arithmetic."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jnp.float32)
    # An unsigned sum has the bits of the signed one, and int32 casts exist on every chip.
    return x.astype(jnp.int32)


def add_kernel(x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] = (widen(x_ref[...]) + widen(y_ref[...])).astype(o_ref.dtype)


def whole(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y with both operands and the result, (m, n) each, in VMEM.

    Raises ValueError for a bad rank, a bad dtype or operands that differ.
    """
    check_operands(x, y)
    return pl.pallas_call(add_kernel, out_shape=out_like(x.shape, x.dtype))(x, y)


def rows(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """x + y by blocks of (bm, n).

    Raises ValueError as `whole` does and for a `bm` that cannot tile m.
    """
    return add_rows(x, y, bm=bm, semantics="arbitrary")


def tiles(x: jax.Array, y: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """x + y by blocks of (bm, bn).

    Raises ValueError as `whole` does and for `bm` or `bn` that cannot tile (m, n).
    """
    return add_tiles(x, y, bm=bm, bn=bn, semantics="arbitrary")


def megacore_rows(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """`rows` whose steps may run on either core of a megacore chip."""
    return add_rows(x, y, bm=bm, semantics="parallel")


def megacore_tiles(x: jax.Array, y: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """`tiles` whose steps may run on either core of a megacore chip."""
    return add_tiles(x, y, bm=bm, bn=bn, semantics="parallel")


def add_rows(x: jax.Array, y: jax.Array, *, bm: int, semantics: Semantics) -> jax.Array:
    check_operands(x, y)
    m, n = x.shape
    check_block("bm", bm, m, SUBLANES)
    spec = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        add_kernel,
        grid=(pl.cdiv(m, bm),),
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
    )(x, y)


def add_tiles(x: jax.Array, y: jax.Array, *, bm: int, bn: int, semantics: Semantics) -> jax.Array:
    check_operands(x, y)
    m, n = x.shape
    check_block("bm", bm, m, SUBLANES)
    check_block("bn", bn, n, LANES)
    spec = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    return pl.pallas_call(
        add_kernel,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics, semantics)),
    )(x, y)


def check_operands(x: jax.Array, y: jax.Array) -> None:
    check_rank("x", x, 2)
    check_rank("y", y, 2)
    check_dtype("x", x, DTYPES)
    check_equal("y.dtype", y.dtype.name, "x.dtype", x.dtype.name)
    check_equal("y.shape", tuple(y.shape), "x.shape", tuple(x.shape))
