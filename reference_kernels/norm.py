"""Normalisation of the rows of a matrix: layer norm and RMS norm.

Contract: https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/normalization/api.py

    layer_norm  (x - mean) / sqrt(var + epsilon) * scale + offset, two passes over a block in VMEM
    rms_norm    x / sqrt(mean(x^2) + epsilon) * scale

x is (m, n), scale and offset (n,). A block is bm whole rows, so that its statistics need no
second visit; scale and offset stay in VMEM. Statistics are float32 whatever the dtype of x. The
variance is the mean of squared deviations: mean(x^2) - mean^2 would save a pass over data that is
in VMEM anyway and lose all its digits where the mean is large. Lanes past n are never in a
block, whose rows are whole: the compiler masks them; rows past m are computed and dropped.

Both have a gradient, which recomputes the statistics in plain jax.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import SUBLANES, check_block, check_dtype, check_equal, check_rank, out_like

DTYPES = ("float32", "bfloat16")
EPSILON = 1e-6


def mean(x: jax.Array) -> jax.Array:
    """Of each row, (m, 1)."""
    return jnp.sum(x, axis=1, keepdims=True) / x.shape[1]


def standardized(d: jax.Array) -> jax.Array:
    """Each row over the root of its mean square."""
    return d * jax.lax.rsqrt(mean(d * d) + EPSILON)


def layer_norm_of(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    """x (rows, n) float32, scale and offset (1, n) float32: in a kernel and for the gradient."""
    return standardized(x - mean(x)) * scale + offset


def rms_norm_of(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x (rows, n) float32, scale (1, n) float32: in a kernel and for the gradient."""
    return standardized(x) * scale


def layer_norm_kernel(
    x_ref: jax.Ref, scale_ref: jax.Ref, offset_ref: jax.Ref, o_ref: jax.Ref
) -> None:
    x, scale, offset = (r[...].astype(jnp.float32) for r in (x_ref, scale_ref, offset_ref))
    o_ref[...] = layer_norm_of(x, scale, offset).astype(o_ref.dtype)


def rms_norm_kernel(x_ref: jax.Ref, scale_ref: jax.Ref, o_ref: jax.Ref) -> None:
    x, scale = (r[...].astype(jnp.float32) for r in (x_ref, scale_ref))
    o_ref[...] = rms_norm_of(x, scale).astype(o_ref.dtype)


def by_rows(kernel: Callable[..., None], x: jax.Array, *vectors: jax.Array, bm: int) -> jax.Array:
    """`kernel` over blocks of `bm` rows of x; each of `vectors` (n,) arrives whole, as (1, n)."""
    m, n = x.shape
    rows = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, bm),),
        in_specs=[rows, *(pl.BlockSpec((1, n), lambda i: (0, 0)) for _ in vectors)],
        out_specs=rows,
        out_shape=out_like((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, *(v.reshape(1, n) for v in vectors))


def gradients(
    function: Callable[..., jax.Array], arrays: tuple[jax.Array, ...], dz: jax.Array
) -> tuple[jax.Array, ...]:
    """The gradient of a row function in float32, each rounded once to its array's dtype."""
    x, *vectors = (a.astype(jnp.float32) for a in arrays)
    _, vjp = jax.vjp(lambda x, *v: function(x, *(a[None, :] for a in v)), x, *vectors)
    found = vjp(dz.astype(jnp.float32))
    return tuple(g.astype(a.dtype) for g, a in zip(found, arrays, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm_rows(x: jax.Array, scale: jax.Array, offset: jax.Array, bm: int) -> jax.Array:
    return by_rows(layer_norm_kernel, x, scale, offset, bm=bm)


layer_norm_rows.defvjp(
    lambda x, scale, offset, bm: (layer_norm_rows(x, scale, offset, bm), (x, scale, offset)),
    lambda bm, arrays, dz: gradients(layer_norm_of, arrays, dz),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm_rows(x: jax.Array, scale: jax.Array, bm: int) -> jax.Array:
    return by_rows(rms_norm_kernel, x, scale, bm=bm)


rms_norm_rows.defvjp(
    lambda x, scale, bm: (rms_norm_rows(x, scale, bm), (x, scale)),
    lambda bm, arrays, dz: gradients(rms_norm_of, arrays, dz),
)


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array, *, bm: int) -> jax.Array:
    """The rows of x (m, n) normalised, times scale (n,) plus offset (n,), by `bm` rows a step.

    Raises ValueError for a bad rank, dtype, length or block and for unequal dtypes.
    """
    check_rows(x, bm, scale=scale, offset=offset)
    return layer_norm_rows(x, scale, offset, min(bm, x.shape[0]))


def rms_norm(x: jax.Array, scale: jax.Array, *, bm: int) -> jax.Array:
    """The rows of x (m, n) over the root of their mean square, times scale (n,).

    Raises ValueError for a bad rank, dtype, length or block and for unequal dtypes.
    """
    check_rows(x, bm, scale=scale)
    return rms_norm_rows(x, scale, min(bm, x.shape[0]))


def check_rows(x: jax.Array, bm: int, **vectors: Any) -> None:
    """`x` can be cut into blocks of `bm` rows, and each of `vectors` fits a row."""
    check_rank("x", x, 2)
    check_dtype("x", x, DTYPES)
    for name, vector in vectors.items():
        check_rank(name, vector, 1)
        check_equal(f"{name}.dtype", vector.dtype.name, "x.dtype", x.dtype.name)
        check_equal(f"{name}.shape", tuple(vector.shape), "(x.shape[1],)", (x.shape[1],))
    check_block("bm", bm, x.shape[0], SUBLANES)
