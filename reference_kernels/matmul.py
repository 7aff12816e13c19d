"""Matrix multiplication x @ y: the matmul guide's first two kernels, and a faster one.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html

    output_accumulator   float32 only: partial products are added up in the output block itself
    scratch_accumulator  any float: a float32 accumulator in scratch, rounded and written out once
    peeled               the accumulator is never cleared, nor read back to be written out

x is (m, k), y (k, n), the result (m, n). The grid is (m, n, k) in blocks; the contraction is its
last axis, so that all steps of one output block are consecutive.

Blocks need not divide the arrays. What an edge block holds outside its array is unspecified, and
may be NaN. Rows past m and columns past n never reach an element that is kept, but the tail of k
does: `scratch_accumulator` replaces it by zeros, in both operands, since 0 * NaN is NaN.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .blocks import Blocks, matmul_blocks, matmul_params
from .checks import FLOATS, SUBLANES, check_matmul, fit_matmul_blocks, out_like


def output_accumulator_kernel(x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref) -> None:
    @pl.when(pl.program_id(2) == 0)
    def clear() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += jnp.dot(x_ref[...], y_ref[...])  # (bm, bk) @ (bk, bn)


def output_accumulator(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k) @ y (k, n), float32, by blocks (bm, bk) and (bk, bn), where bk divides k.

    Raises ValueError for a bad rank, dtype or block, unequal dtypes or inner dimensions, and a
    `bk` that does not divide k.
    """
    m, k, n = check_matmul(x, y, dtypes=("float32",))
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    if k % bk:
        raise ValueError(f"bk must divide x.shape[1] = {k}, got {bk}")
    return pl.pallas_call(
        output_accumulator_kernel,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def zero_tail(block: jax.Array, axis: int, step: jax.Array, size: int) -> jax.Array:
    """`block`, the `step`th along `axis` of an array, with zeros beyond that array's `size`.

    Costs nothing where blocks divide the array: the test is made while tracing. Few rows of a
    narrow type are selected from in 32 bits, since compilers for v5e and later refuse up to four
    ("Sublane broadcast"); both casts are exact.
    """
    width = block.shape[axis]
    if size % width == 0:
        return block
    index = step * width + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    if block.shape[0] >= SUBLANES:
        return jnp.where(index < size, block, jnp.zeros_like(block))
    wide = jnp.float32 if jnp.issubdtype(block.dtype, jnp.floating) else jnp.int32
    return jnp.where(index < size, block.astype(wide), 0).astype(block.dtype)


def scratch_accumulator_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref, *, k: int
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x = zero_tail(x_ref[...], 1, step, k)
    y = zero_tail(y_ref[...], 0, step, k)
    acc_ref[...] += jnp.dot(x, y, preferred_element_type=acc_ref.dtype)  # (bm, bk) @ (bk, bn)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def scratch_accumulator(
    x: jax.Array,
    y: jax.Array,
    *,
    bm: int | None = None,
    bk: int | None = None,
    bn: int | None = None,
) -> jax.Array:
    """x (m, k) @ y (k, n) of one dtype out of `FLOATS`, which is also the result's.

    Blocks that are left out are those of `blocks.json`; what VMEM they need is asked for.

    Raises ValueError for a bad rank, dtype or block and for unequal dtypes or inner dimensions.
    """
    m, k, n = check_matmul(x, y, dtypes=FLOATS)
    blocks = matmul_blocks("matmul/scratch_accumulator", m, k, n, x.dtype, bm=bm, bk=bk, bn=bn)
    bm, bk, bn = blocks
    return pl.pallas_call(
        functools.partial(scratch_accumulator_kernel, k=k),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=matmul_params(blocks, x.dtype.itemsize, x.dtype.itemsize),
    )(x, y)


def peeled_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref, *scratch: jax.Ref, k: int, steps: int
) -> None:
    """The first and the last step of a block's product are code of their own.

    Clearing the accumulator and reading it back to round it are passes over it that no product
    hides. A single step needs no accumulator, so there is no scratch.
    """
    step = pl.program_id(2)
    acc_dtype = jnp.int32 if x_ref.dtype == jnp.int8 else jnp.float32

    def product() -> jax.Array:
        x = zero_tail(x_ref[...], 1, step, k)
        y = zero_tail(y_ref[...], 0, step, k)
        return jnp.dot(x, y, preferred_element_type=acc_dtype)  # (bm, bk) @ (bk, bn)

    if steps == 1:
        o_ref[...] = product().astype(o_ref.dtype)
        return
    (acc_ref,) = scratch

    @pl.when(step == 0)
    def first() -> None:
        acc_ref[...] = product()

    if steps > 2:

        @pl.when((step > 0) & (step < steps - 1))
        def middle() -> None:
            acc_ref[...] += product()

    @pl.when(step == steps - 1)
    def last() -> None:
        o_ref[...] = (acc_ref[...] + product()).astype(o_ref.dtype)


def peeled_call(x: jax.Array, y: jax.Array, blocks: Blocks, out_dtype: str) -> jax.Array:
    """x @ y by legal blocks, accumulated in int32 for int8, else in float32."""
    (m, k), n = x.shape, y.shape[1]
    bm, bk, bn = blocks
    steps = pl.cdiv(k, bk)
    acc_dtype = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
    return pl.pallas_call(
        functools.partial(peeled_kernel, k=k, steps=steps),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), out_dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), acc_dtype)] if steps > 1 else [],
        compiler_params=matmul_params(blocks, x.dtype.itemsize, jnp.dtype(out_dtype).itemsize),
    )(x, y)


def peeled(
    x: jax.Array,
    y: jax.Array,
    *,
    bm: int | None = None,
    bk: int | None = None,
    bn: int | None = None,
) -> jax.Array:
    """x (m, k) @ y (k, n) of one dtype out of `FLOATS`, which is also the result's.

    Fastest where bk is all of k. Blocks that are left out are those of `blocks.json`.

    Raises ValueError as `scratch_accumulator` does.
    """
    m, k, n = check_matmul(x, y, dtypes=FLOATS)
    blocks = matmul_blocks("matmul/peeled", m, k, n, x.dtype, bm=bm, bk=bk, bn=bn)
    return peeled_call(x, y, blocks, x.dtype.name)
