"""Gated linear unit: two matmuls that share an operand, and a product of their results.

Contract: https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/gated_linear_unit/api.py

    two_accumulators  activation(x @ gate) * (x @ up), one pass over x

x is (m, k), weights (k, 2, n): weights[:, 0] is the gate, weights[:, 1] is called up. Every block
of x is read once for both products, which have an accumulator each; only the last step of k turns
them into a result, since neither the activation nor the product of two sums may be applied to
partial sums. The weights are cut apart before the kernel: in a block (bk, 2, bn) the two matrices
would lie in alternating sublanes.

It has a gradient, whose matmuls are left to XLA.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import check_choice, check_dtype, check_equal, check_rank, fit_matmul_blocks, out_like
from .matmul import zero_tail

Blocks = tuple[int, int, int]

DTYPES = ("float32", "bfloat16")

# gelu is jax.nn's default, the tanh approximation.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}


def two_accumulators_kernel(
    x_ref: jax.Ref,
    gate_ref: jax.Ref,
    up_ref: jax.Ref,
    o_ref: jax.Ref,
    gate_acc: jax.Ref,
    up_acc: jax.Ref,
    *,
    k: int,
    activation: str,
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        gate_acc[...] = jnp.zeros_like(gate_acc)
        up_acc[...] = jnp.zeros_like(up_acc)

    x = zero_tail(x_ref[...], 1, step, k)
    for w_ref, acc_ref in ((gate_ref, gate_acc), (up_ref, up_acc)):
        w = zero_tail(w_ref[...], 0, step, k)
        acc_ref[...] += jnp.dot(x, w, preferred_element_type=acc_ref.dtype)  # (bm, bk) @ (bk, bn)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = (ACTIVATIONS[activation](gate_acc[...]) * up_acc[...]).astype(o_ref.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def gated(x: jax.Array, weights: jax.Array, activation: str, blocks: Blocks) -> jax.Array:
    """The kernel, with a gradient; `blocks` is (bm, bk, bn)."""
    (m, k), n, (bm, bk, bn) = x.shape, weights.shape[2], blocks
    w_spec = pl.BlockSpec((bk, bn), lambda i, j, step: (step, j))
    return pl.pallas_call(
        functools.partial(two_accumulators_kernel, k=k, activation=activation),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)), w_spec, w_spec],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32), pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, weights[:, 0], weights[:, 1])


def gated_fwd(
    x: jax.Array, weights: jax.Array, activation: str, blocks: Blocks
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return gated(x, weights, activation, blocks), (x, weights)


def gated_bwd(
    activation: str, blocks: Blocks, operands: tuple[jax.Array, jax.Array], dz: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weights = operands
    wide = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    gate, up = (wide("mk,kn->mn", x, weights[:, i]) for i in (0, 1))
    _, vjp = jax.vjp(lambda gate, up: ACTIVATIONS[activation](gate) * up, gate, up)
    # In the operands' dtype, as the matrix unit takes them.
    d_both = jnp.stack(vjp(dz.astype(jnp.float32)), axis=1).astype(x.dtype)  # (m, 2, n)
    d_x = wide("mgn,kgn->mk", d_both, weights)
    d_weights = wide("mk,mgn->kgn", x, d_both)
    return d_x.astype(x.dtype), d_weights.astype(weights.dtype)


gated.defvjp(gated_fwd, gated_bwd)


def two_accumulators(
    x: jax.Array, weights: jax.Array, *, activation: str, bm: int, bk: int, bn: int
) -> jax.Array:
    """activation(x (m, k) @ weights[:, 0]) * (x @ weights[:, 1]) for weights (k, 2, n).

    float32 or bfloat16, activation a key of `ACTIVATIONS`.

    Raises ValueError for a bad rank, dtype, shape, block or activation and for unequal dtypes.
    """
    check_rank("x", x, 2)
    check_dtype("x", x, DTYPES)
    check_rank("weights", weights, 3)
    check_equal("weights.dtype", weights.dtype.name, "x.dtype", x.dtype.name)
    check_equal("weights.shape[0]", weights.shape[0], "x.shape[1]", x.shape[1])
    check_equal("weights.shape[1]", weights.shape[1], "gate and up", 2)
    check_choice("activation", activation, tuple(ACTIVATIONS))
    blocks = fit_matmul_blocks(*x.shape, weights.shape[2], bm=bm, bk=bk, bn=bn)
    return gated(x, weights, activation, blocks)
