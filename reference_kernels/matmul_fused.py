"""Operations fused into a matmul: the matmul guide's templates, and its input-fusion exercise.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html

    epilogue            act(x @ y): the activation is applied to the finished accumulator
    transpose_epilogue  act(x @ y.T): the guide's last template, y stored as (n, k)
    input_fusion        f(x) @ g(y): the operands pass through a function on their way to the dot

An activation is not linear: applied to partial sums, once a step, it gives another result. It is
computed in float32, before the accumulator is rounded to the result's dtype.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import check_choice, check_matmul, fit_matmul_blocks, out_like
from .matmul import zero_tail
from .matmul_transpose import dot_transposed

Function = Callable[[jax.Array], jax.Array]

DTYPES = ("float32", "bfloat16")


def identity(x: jax.Array) -> jax.Array:
    return x


# gelu is jax.nn's default, the tanh approximation.
ACTIVATIONS: dict[str, Function] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}
TEMPLATE_ACTIVATIONS: dict[str, Function] = {"identity": identity, **ACTIVATIONS}
INPUT_FUNCTIONS: dict[str, Function] = {
    "identity": identity,
    "relu": jax.nn.relu,
    "square": jnp.square,
    "tanh": jnp.tanh,
}


def epilogue_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref, *, k: int, act: Function
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
        o_ref[...] = act(acc_ref[...]).astype(o_ref.dtype)


def epilogue(
    x: jax.Array, y: jax.Array, *, activation: str, bm: int, bk: int, bn: int
) -> jax.Array:
    """activation(x (m, k) @ y (k, n)), float32 or bfloat16, activation a key of `ACTIVATIONS`.

    Raises ValueError for a bad rank, dtype, block or activation and for operands that differ in
    dtype or inner dimension.
    """
    m, k, n = check_matmul(x, y, dtypes=DTYPES)
    check_choice("activation", activation, tuple(ACTIVATIONS))
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return pl.pallas_call(
        functools.partial(epilogue_kernel, k=k, act=ACTIVATIONS[activation]),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def transpose_epilogue_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref, acc_ref: jax.Ref, *, k: int, act: Function
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
        o_ref[...] = act(acc_ref[...]).astype(o_ref.dtype)


def transpose_epilogue(
    x: jax.Array, y: jax.Array, *, activation: str, bm: int, bk: int, bn: int
) -> jax.Array:
    """activation(x (m, k) @ y (n, k).T), activation a key of `TEMPLATE_ACTIVATIONS`.

    Raises ValueError as `epilogue` does.
    """
    m, k, n = check_matmul(x, y, dtypes=DTYPES, transpose_y=True)
    check_choice("activation", activation, tuple(TEMPLATE_ACTIVATIONS))
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return pl.pallas_call(
        functools.partial(transpose_epilogue_kernel, k=k, act=TEMPLATE_ACTIVATIONS[activation]),
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


def apply(function: Function, block: jax.Array) -> jax.Array:
    """`function` of `block` in float32, rounded to the dtype in which it is multiplied."""
    return function(block.astype(jnp.float32)).astype(block.dtype)


def input_fusion_kernel(
    x_ref: jax.Ref,
    y_ref: jax.Ref,
    o_ref: jax.Ref,
    acc_ref: jax.Ref,
    *,
    k: int,
    f: Function,
    g: Function,
) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # The tail is cleared last: a function of zero need not be zero.
    x = zero_tail(apply(f, x_ref[...]), 1, step, k)
    y = zero_tail(apply(g, y_ref[...]), 0, step, k)
    acc_ref[...] += jnp.dot(x, y, preferred_element_type=acc_ref.dtype)  # (bm, bk) @ (bk, bn)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def input_fusion(
    x: jax.Array, y: jax.Array, *, f: str, g: str, bm: int, bk: int, bn: int
) -> jax.Array:
    """f(x (m, k)) @ g(y (k, n)), float32 or bfloat16, f and g keys of `INPUT_FUNCTIONS`.

    Raises ValueError for a bad rank, dtype, block or function and for operands that differ in
    dtype or inner dimension.
    """
    m, k, n = check_matmul(x, y, dtypes=DTYPES)
    check_choice("f", f, tuple(INPUT_FUNCTIONS))
    check_choice("g", g, tuple(INPUT_FUNCTIONS))
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return pl.pallas_call(
        functools.partial(input_fusion_kernel, k=k, f=INPUT_FUNCTIONS[f], g=INPUT_FUNCTIONS[g]),
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=out_like((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)
