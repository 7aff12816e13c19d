"""Softmax over the last axis of a matrix.

Contract: https://docs.jax.dev/en/latest/_autosummary/jax.nn.softmax.html

    rows  exp(x - max) / sum(exp(x - max)), whole rows of x in VMEM

x is (m, n). exp overflows in float32 beyond 88, so the maximum of a row is subtracted before: the
largest exponential is then 1 and the sum at least 1. Masks are -inf, whose exponential is 0.
float32 whatever the dtype of x. Rows past m are computed and dropped. The gradient needs the
result only, and is left to XLA.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import SUBLANES, check_block, check_dtype, check_rank, out_like

DTYPES = ("float32", "bfloat16")


def rows_kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    x = x_ref[...].astype(jnp.float32)
    e = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))  # (bm, n), at most 1
    o_ref[...] = (e / jnp.sum(e, axis=1, keepdims=True)).astype(o_ref.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(x: jax.Array, bm: int) -> jax.Array:
    """The kernel by blocks of `bm` rows, with a gradient."""
    m, n = x.shape
    block = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        rows_kernel,
        grid=(pl.cdiv(m, bm),),
        in_specs=[block],
        out_specs=block,
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def softmax_fwd(x: jax.Array, bm: int) -> tuple[jax.Array, jax.Array]:
    y = softmax(x, bm)
    return y, y


def softmax_bwd(bm: int, y: jax.Array, dz: jax.Array) -> tuple[jax.Array]:
    wide, g = y.astype(jnp.float32), dz.astype(jnp.float32)
    common = jnp.sum(wide * g, axis=1, keepdims=True)
    return ((wide * (g - common)).astype(y.dtype),)


softmax.defvjp(softmax_fwd, softmax_bwd)


def rows(x: jax.Array, *, bm: int) -> jax.Array:
    """The softmax of each row of x (m, n), float32 or bfloat16, `bm` rows a step.

    Raises ValueError for a bad rank, dtype or block.
    """
    check_rank("x", x, 2)
    check_dtype("x", x, DTYPES)
    check_block("bm", bm, x.shape[0], SUBLANES)
    return softmax(x, min(bm, x.shape[0]))
