"""x @ y.T without a transposed copy of y: the matmul guide's fused right-hand transpose.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html

    dot_general  y is passed as it is stored, (n, k), and contracted along its last axis
    swapaxes     y is passed with the logical shape (k, n); the swap inside cancels the caller's

Under `jax.jit` the order of dimensions is logical, so two swaps cost nothing: XLA only sees that
y is wanted in the layout it already has. A kernel's operands, however, have exactly the layout of
their shape, so it is the wrapper that must ask for (n, k).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import FLOATS, check_matmul, check_rank, fit_matmul_blocks, out_like
from .matmul import zero_tail

# Contract the last axis of both operands; there are no batch axes.
TRANSPOSE_Y = (((1,), (1,)), ((), ()))


def dot_transposed(x: jax.Array, y: jax.Array) -> jax.Array:
    """x (bm, bk) @ y (bn, bk).T in float32.

    With a single row of y, JAX lowers the product to a multiplication and a sum, and for narrow
    types to one that is ill-typed: such operands are widened first, which loses nothing.
    """
    if y.shape[0] == 1:
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return lax.dot_general(x, y, TRANSPOSE_Y, preferred_element_type=jnp.float32)


def transpose_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref, *, k: int
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x = zero_tail(x_ref[...], 1, step, k)
    y = zero_tail(y_ref[...], 1, step, k)
    acc_ref[...] += dot_transposed(x, y)  # (bm, bk) @ (bn, bk).T

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def dot_general(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k) @ y (n, k).T of one dtype out of `FLOATS`, which is also the result's.

    Raises ValueError for a bad rank, dtype or block and for unequal dtypes or inner dimensions.
    """
    m, k, n = check_matmul(x, y, dtypes=FLOATS, transpose_y=True)
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return pl.pallas_call(
        functools.partial(transpose_kernel, k=k),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bn, bk), lambda i, j, step: (j, step)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def matmul_logical(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k) @ y (k, n), for a y whose memory holds (n, k): call it under `jax.jit`.

    Raises ValueError as `dot_general` does.
    """
    check_rank("y", y, 2)
    return dot_general(x, y.swapaxes(0, 1), bm=bm, bk=bk, bn=bn)


def swapaxes(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k) @ y (n, k).T, handing `matmul_logical` the transposed view of y.

    Raises ValueError as `dot_general` does.
    """
    check_rank("y", y, 2)
    return matmul_logical(x, y.swapaxes(0, 1), bm=bm, bk=bk, bn=bn)
