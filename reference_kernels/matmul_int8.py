"""int8 matrix multiplication, exact in int32: an exercise of the matmul guide.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html

    scratch_accumulator  the matmul unit's native int8 product, int32 accumulator in scratch
    peeled               the same without clearing the accumulator (`matmul.peeled`)

The products are at most 2**14, so sums are exact up to k = 131,071; beyond that int32 wraps.
Native from TPU v5e on; other chips refuse int8 operands.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .blocks import matmul_blocks, matmul_params
from .checks import check_matmul, fit_matmul_blocks, out_like
from .matmul import peeled_call, zero_tail


def int8_kernel(
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
        o_ref[...] = acc_ref[...]


def scratch_accumulator(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k) @ y (k, n), int8 to int32.

    Raises ValueError for a bad rank, dtype or block and for unequal inner dimensions.
    """
    m, k, n = check_matmul(x, y, dtypes=("int8",))
    bm, bk, bn = blocks = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return pl.pallas_call(
        functools.partial(int8_kernel, k=k),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), "int32"),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.int32)],
        compiler_params=matmul_params(blocks, 1, 4),
    )(x, y)


def peeled(
    x: jax.Array,
    y: jax.Array,
    *,
    bm: int | None = None,
    bk: int | None = None,
    bn: int | None = None,
) -> jax.Array:
    """As `scratch_accumulator`; blocks that are left out are those of `blocks.json`.

    Raises ValueError as `scratch_accumulator` does.
    """
    m, k, n = check_matmul(x, y, dtypes=("int8",))
    blocks = matmul_blocks("matmul_int8/peeled", m, k, n, x.dtype, bm=bm, bk=bk, bn=bn)
    return peeled_call(x, y, blocks, "int32")
