"""The loss of a linear layer followed by softmax and cross entropy, without storing the logits.

Contract: https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/
linear_softmax_cross_entropy_loss/api.py

    running_maximum  one pass over blocks of logits, each made by a loop over h and then forgotten

x is (b, h), labels (b,) int32, weights (h, v); v is a vocabulary, so that (b, v) logits are what
one would rather not write to HBM. A row's loss is log(sum(exp(z))) - z[label]. The sum is kept
relative to the largest logit so far (Milakov and Gimelshein 2018): where a block raises it, the
sum is scaled down by exp of the difference. The label's logit is picked out of the block that
holds it by comparing column numbers. Columns past v are -inf and add nothing.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import (
    LANES,
    SUBLANES,
    check_block,
    check_choice,
    check_dtype,
    check_equal,
    check_matmul,
    check_rank,
    out_like,
)
from .matmul import zero_tail

DTYPES = ("float32", "bfloat16")
REDUCTIONS = ("sum", "mean")


def running_maximum_kernel(
    x_ref: jax.Ref,
    labels_ref: jax.Ref,
    w_ref: jax.Ref,
    loss_ref: jax.Ref,
    z_acc: jax.Ref,
    max_ref: jax.Ref,
    sum_ref: jax.Ref,
    picked_ref: jax.Ref,
    *,
    h: int,
    v: int,
) -> None:
    block, step = pl.program_id(1), pl.program_id(2)
    last_step = step == pl.num_programs(2) - 1

    @pl.when((block == 0) & (step == 0))
    def start() -> None:
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        picked_ref[...] = jnp.zeros_like(picked_ref)

    @pl.when(step == 0)
    def clear() -> None:
        z_acc[...] = jnp.zeros_like(z_acc)

    x, w = zero_tail(x_ref[...], 1, step, h), zero_tail(w_ref[...], 0, step, h)
    z_acc[...] += jnp.dot(x, w, preferred_element_type=jnp.float32)  # (bb, bh) @ (bh, bv)

    @pl.when(last_step)
    def take_in() -> None:
        column = block * z_acc.shape[1] + lax.broadcasted_iota(jnp.int32, z_acc.shape, 1)
        z = jnp.where(column < v, z_acc[...], -jnp.inf)
        largest = jnp.maximum(max_ref[...], jnp.max(z, axis=1, keepdims=True))  # (bb, 1)
        added = jnp.sum(jnp.exp(z - largest), axis=1, keepdims=True)
        sum_ref[...] = sum_ref[...] * jnp.exp(max_ref[...] - largest) + added
        max_ref[...] = largest
        at_label = jnp.where(column == labels_ref[...], z, 0.0)
        picked_ref[...] += jnp.sum(at_label, axis=1, keepdims=True)

    @pl.when(last_step & (block == pl.num_programs(1) - 1))
    def store() -> None:
        loss_ref[...] = max_ref[...] + jnp.log(sum_ref[...]) - picked_ref[...]


def losses(
    x: jax.Array, labels: jax.Array, weights: jax.Array, *, bb: int, bh: int, bv: int
) -> jax.Array:
    """The loss of each row, (b, 1) float32."""
    (b, h), v = x.shape, weights.shape[1]
    row = pl.BlockSpec((bb, 1), lambda i, j, step: (i, 0))
    return pl.pallas_call(
        functools.partial(running_maximum_kernel, h=h, v=v),
        grid=(pl.cdiv(b, bb), pl.cdiv(v, bv), pl.cdiv(h, bh)),
        in_specs=[
            pl.BlockSpec((bb, bh), lambda i, j, step: (i, step)),
            row,
            pl.BlockSpec((bh, bv), lambda i, j, step: (step, j)),
        ],
        out_specs=row,
        out_shape=out_like((b, 1), "float32"),
        scratch_shapes=[
            pltpu.VMEM((bb, bv), jnp.float32),
            *(pltpu.VMEM((bb, 1), jnp.float32) for _ in range(3)),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
    )(x, labels.reshape(b, 1), weights)


def running_maximum(
    x: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    *,
    reduction: str,
    bb: int,
    bh: int,
    bv: int,
) -> jax.Array:
    """Sum or mean over the rows of x (b, h) of the cross entropy of softmax(x @ weights (h, v)).

    labels (b,) int32 must be columns; the result is a float32 number.

    Raises ValueError for a bad rank, dtype, shape, block or reduction and for unequal dtypes.
    """
    b, h, v = check_matmul(x, weights, dtypes=DTYPES, right="weights")
    check_rank("labels", labels, 1)
    check_dtype("labels", labels, ("int32",))
    check_equal("labels.shape", tuple(labels.shape), "(x.shape[0],)", (b,))
    check_choice("reduction", reduction, REDUCTIONS)
    check_block("bb", bb, b, SUBLANES)
    check_block("bh", bh, h, LANES)
    check_block("bv", bv, v, LANES)
    found = losses(x, labels, weights, bb=min(bb, b), bh=min(bh, h), bv=min(bv, v))
    return jnp.sum(found) / (b if reduction == "mean" else 1)
