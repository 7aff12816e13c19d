"""Sum over the leading axis: reductions, and the exercises at the end of the pipelining guide.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/pipelining.html

    accumulate           the whole (m, n) result stays in VMEM while x[0], x[1], ... are added to it
    tiled                (m, n) is tiled as well; the reduction is the last grid axis
    megacore             `tiled` with the axes of the tiles declared parallel
    scratch_accumulator  narrow x: a 32-bit accumulator in scratch, written out once

x is (b, m, n), the result (m, n). Output blocks arrive uninitialised, so the first step of a
reduction clears them, and a block must be revisited in consecutive steps only, since it is never
read back from HBM: hence the reduction axis is the last one.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import LANES, SUBLANES, ArrayLike, check_block, check_dtype, check_rank, out_like

Semantics = Literal["parallel", "arbitrary"]

WIDE = ("float32", "int32", "uint32")
NARROW = ("bfloat16", "int8", "int16")


def accumulate_kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    @pl.when(pl.program_id(0) == 0)
    def clear() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def accumulate(x: jax.Array) -> jax.Array:
    """The sum of x (b, m, n), float32, int32 or uint32, one x[i] a step.

    Raises ValueError for a bad rank or dtype.
    """
    check_rank("x", x, 3)
    check_dtype("x", x, WIDE)
    b, m, n = x.shape
    return pl.pallas_call(
        accumulate_kernel,
        grid=(b,),
        # None is a block of one whose axis the kernel does not see.
        in_specs=[pl.BlockSpec((None, m, n), lambda i: (i, 0, 0))],
        out_specs=pl.BlockSpec((m, n), lambda i: (0, 0)),
        out_shape=out_like((m, n), x.dtype),
    )(x)


def tiled_kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    @pl.when(pl.program_id(2) == 0)
    def clear() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def sum_tiles(x: jax.Array, *, bm: int, bn: int, semantics: Semantics) -> jax.Array:
    check_tiles(x, WIDE, bm=bm, bn=bn)
    b, m, n = x.shape
    return pl.pallas_call(
        tiled_kernel,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), b),
        in_specs=[pl.BlockSpec((None, bm, bn), lambda i, j, step: (step, i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(semantics, semantics, "arbitrary")
        ),
    )(x)


def tiled(x: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """The sum of x (b, m, n), float32, int32 or uint32, by tiles of (bm, bn).

    Raises ValueError for a bad rank or dtype and for `bm` or `bn` that cannot tile (m, n).
    """
    return sum_tiles(x, bm=bm, bn=bn, semantics="arbitrary")


def megacore(x: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """`tiled` whose tiles may run on either core; the reduction of a tile stays on one core."""
    return sum_tiles(x, bm=bm, bn=bn, semantics="parallel")


def scratch_kernel(x_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref) -> None:
    @pl.when(pl.program_id(2) == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...].astype(acc_ref.dtype)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def scratch_accumulator(x: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """The sum of x (b, m, n): bfloat16 to bfloat16, rounded once; int8 or int16 to int32.

    Raises ValueError for a bad rank or dtype and for `bm` or `bn` that cannot tile (m, n).
    """
    check_tiles(x, NARROW, bm=bm, bn=bn)
    b, m, n = x.shape
    floating = x.dtype == jnp.bfloat16
    return pl.pallas_call(
        scratch_kernel,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), b),
        in_specs=[pl.BlockSpec((None, bm, bn), lambda i, j, step: (step, i, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype if floating else "int32"),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32 if floating else jnp.int32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x)


def check_tiles(x: ArrayLike, dtypes: tuple[str, ...], *, bm: int, bn: int) -> None:
    check_rank("x", x, 3)
    check_dtype("x", x, dtypes)
    check_block("bm", bm, x.shape[1], SUBLANES)
    check_block("bn", bn, x.shape[2], LANES)
