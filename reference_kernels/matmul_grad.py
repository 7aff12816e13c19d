"""A matmul that can be differentiated: the matmul guide's `jax.custom_vjp` exercise.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html

    custom_vjp  z = x @ y, and for its cotangent dz: dx = dz @ y.T and dy = x.T @ dz

JAX does not derive the gradient of a kernel; a custom rule supplies it. All three products are
kernels, and neither transpose is ever stored. Each contracts another dimension (k, n, m), so each
has a tail of its own to clear. The cotangents of each product are the other two products of what
it was given, so that rules of one line each make derivatives of any order.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import LANES, check_block, check_equal, check_matmul, out_like
from .matmul import scratch_accumulator, zero_tail
from .matmul_transpose import dot_general

Blocks = tuple[int, int, int]
Operands = tuple[jax.Array, jax.Array]

# Contract the first axis of both operands; there are no batch axes.
TRANSPOSE_X = (((0,), (0,)), ((), ()))


def transpose_x_kernel(
    x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref, *, m: int
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x = zero_tail(x_ref[...], 0, step, m)
    z = zero_tail(z_ref[...], 0, step, m)
    # (bm, bk).T @ (bm, bn)
    acc_ref[...] += lax.dot_general(x, z, TRANSPOSE_X, preferred_element_type=acc_ref.dtype)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def transpose_x(x: jax.Array, z: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """x (m, k).T @ z (m, n), of one dtype, which is also the result's."""
    (m, k), n = x.shape, z.shape[1]
    return pl.pallas_call(
        functools.partial(transpose_x_kernel, m=m),
        grid=(pl.cdiv(k, bk), pl.cdiv(n, bn), pl.cdiv(m, bm)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (step, i)),
            pl.BlockSpec((bm, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bk, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((k, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bk, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: jax.Array, y: jax.Array, blocks: Blocks) -> jax.Array:
    """x (m, k) @ y (k, n) by blocks (bm, bk, bn), with a gradient."""
    bm, bk, bn = blocks
    return scratch_accumulator(x, y, bm=bm, bk=bk, bn=bn)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul_y_transposed(z: jax.Array, y: jax.Array, blocks: Blocks) -> jax.Array:
    """z (m, n) @ y (k, n).T by the same blocks, with a gradient."""
    bm, bk, bn = blocks
    return dot_general(z, y, bm=bm, bk=bn, bn=bk)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul_x_transposed(x: jax.Array, z: jax.Array, blocks: Blocks) -> jax.Array:
    """x (m, k).T @ z (m, n) by the same blocks, with a gradient."""
    bm, bk, bn = blocks
    return transpose_x(x, z, bm=bm, bk=bk, bn=bn)


def matmul_bwd(blocks: Blocks, operands: Operands, dz: jax.Array) -> Operands:
    x, y = operands
    return matmul_y_transposed(dz, y, blocks), matmul_x_transposed(x, dz, blocks)


def matmul_y_transposed_bwd(blocks: Blocks, operands: Operands, dx: jax.Array) -> Operands:
    z, y = operands
    return matmul(dx, y, blocks), matmul_x_transposed(dx, z, blocks)


def matmul_x_transposed_bwd(blocks: Blocks, operands: Operands, dy: jax.Array) -> Operands:
    x, z = operands
    return matmul_y_transposed(z, dy, blocks), matmul(x, dy, blocks)


for product, backward in (
    (matmul, matmul_bwd),
    (matmul_y_transposed, matmul_y_transposed_bwd),
    (matmul_x_transposed, matmul_x_transposed_bwd),
):
    product.defvjp(lambda a, b, blocks, f=product: (f(a, b, blocks), (a, b)), backward)


def custom_vjp(
    x: jax.Array, y: jax.Array, dz: jax.Array, *, bm: int, bk: int, bn: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x @ y, dz @ y.T, x.T @ dz) for x (m, k), y (k, n), dz (m, n), float32 or bfloat16.

    bm, like bk and bn, is a multiple of 128 or the whole dimension.

    Raises ValueError for a bad rank, dtype or block, unequal dtypes or inner dimensions, and a
    `dz` that does not look like the product.
    """
    m, k, n = check_matmul(x, y, dtypes=("float32", "bfloat16"))
    check_equal("dz.dtype", dz.dtype.name, "x.dtype", x.dtype.name)
    check_equal("dz.shape", tuple(dz.shape), "(x.shape[0], y.shape[1])", (m, n))
    for name, block, size in (("bm", bm, m), ("bk", bk, k), ("bn", bn, n)):
        check_block(name, block, size, LANES)
    blocks = (min(bm, m), min(bk, k), min(bn, n))  # past the array means the whole of it
    z, vjp = jax.vjp(lambda x, y: matmul(x, y, blocks), x, y)
    dx, dy = vjp(dz)
    return z, dx, dy
