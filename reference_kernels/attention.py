"""Attention in one pass over the keys: softmax(scale * q @ k.T) @ v without storing the softmax.

Contract: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html
Online softmax: Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867; in blocks: Dao and
others 2022, https://arxiv.org/abs/2205.14135

    flash         a causal or local mask, from positions; blocks without an allowed key are skipped
    flash_masked  an arbitrary boolean mask, read block by block beside the keys

q is (b, h, t, d), k and v are (b, hkv, s, d). Query head i reads the keys and values of head
i // (h / hkv), which is an index map and costs nothing.

The grid is (b, h, queries, keys) in blocks. While the keys pass by, three arrays are kept for a
block of queries: the largest logit so far, `m`, the sum of exp(logit - m), and the sum of
exp(logit - m) * v. When `m` grows, both sums are rescaled by exp(old m - new m), once a block. The
quotient of the sums is the result.

A query without any allowed key has two empty sums, and the result 0.
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
    check_rank,
    out_like,
)
from .matmul import zero_tail
from .matmul_transpose import dot_transposed

DTYPES = ("float32", "bfloat16")
MASKS = ("none", "causal", "local")
# Stands for minus infinity: finite, so that the difference of two such logits is 0 and not NaN.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def clear(m_ref: jax.Ref, sum_ref: jax.Ref, acc_ref: jax.Ref) -> None:
    """Before the first block of keys."""
    m_ref[...] = jnp.full_like(m_ref, MASKED)
    sum_ref[...] = jnp.zeros_like(sum_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    allowed: jax.Array,
    scale: float,
    m_ref: jax.Ref,
    sum_ref: jax.Ref,
    acc_ref: jax.Ref,
) -> None:
    """Takes one block of keys into account.

    Args:
      q, k, v: (bq, d), (bk, d), (bk, d).
      allowed: bool (bq, bk).
      m_ref, sum_ref, acc_ref: float32 (bq, 1), (bq, 1), (bq, d).
    """
    logits = jnp.where(allowed, scale * dot_transposed(q, k), MASKED)  # (bq, d) @ (bk, d).T
    m = jnp.maximum(m_ref[...], jnp.max(logits, axis=1, keepdims=True))
    # Where nothing is allowed yet, m is MASKED too and the exponent 0.
    weights = jnp.where(allowed, jnp.exp(logits - m), 0.0)
    rescale = jnp.exp(m_ref[...] - m)
    sum_ref[...] = rescale * sum_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
    # (bq, bk) @ (bk, d); the matrix unit wants both operands in one dtype.
    product = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    acc_ref[...] = rescale * acc_ref[...] + product
    m_ref[...] = m


def store(o_ref: jax.Ref, sum_ref: jax.Ref, acc_ref: jax.Ref) -> None:
    """After the last block of keys."""
    total = sum_ref[...]
    o_ref[...] = (acc_ref[...] / jnp.where(total > 0, total, 1.0)).astype(o_ref.dtype)


def key_blocks(
    i: jax.Array, *, mask: str, window: int, bq: int, bk: int, s: int
) -> tuple[jax.Array | int, jax.Array | int]:
    """First and last block of keys in which the `i`th block of queries has an allowed one.

    Where it has none, beyond the last key, they need not be in order.
    """
    first, last = 0, pl.cdiv(s, bk) - 1
    if mask == "none":
        return first, last
    last = jnp.minimum(last, ((i + 1) * bq - 1) // bk)
    if mask == "local":
        first = jnp.maximum(first, i * bq - window) // bk
    return first, last


def flash_kernel(
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    o_ref: jax.Ref,
    m_ref: jax.Ref,
    sum_ref: jax.Ref,
    acc_ref: jax.Ref,
    *,
    scale: float,
    mask: str,
    window: int,
    s: int,
) -> None:
    i, j = pl.program_id(2), pl.program_id(3)
    bq, bk = q_ref.shape[0], k_ref.shape[0]
    first, last = key_blocks(i, mask=mask, window=window, bq=bq, bk=bk, s=s)

    @pl.when(j == 0)
    def start() -> None:
        clear(m_ref, sum_ref, acc_ref)

    @pl.when((first <= j) & (j <= last))
    def add() -> None:
        query = i * bq + lax.broadcasted_iota(jnp.int32, (bq, bk), 0)
        key = j * bk + lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
        allowed = key < s
        if mask != "none":
            allowed &= key <= query
        if mask == "local":
            allowed &= key >= query - window
        v = zero_tail(v_ref[...], 0, j, s)
        attend(q_ref[...], k_ref[...], v, allowed, scale, m_ref, sum_ref, acc_ref)

    @pl.when(j == pl.num_programs(3) - 1)
    def finish() -> None:
        store(o_ref, sum_ref, acc_ref)


def flash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: str,
    scale: float,
    window: int,
    bq: int,
    bk: int,
) -> jax.Array:
    """softmax(scale * q @ k.T) @ v, head by head, over the keys that the mask leaves.

    q is (b, h, t, d), k and v are (b, hkv, s, d), all float32 or bfloat16. mask is "none",
    "causal" (keys up to the query's position) or "local" (the last `window` + 1 of these).

    Raises ValueError for a bad rank, dtype, block, mask or window, for a number of heads that is
    no multiple of hkv, and for operands that do not fit each other.
    """
    h, heads, s = check_operands(q, k, v, bq=bq, bk=bk)
    check_choice("mask", mask, MASKS)
    if window < 0:
        raise ValueError(f"window must not be negative, got {window}")
    (b, _, t, d), bq, bk = q.shape, min(bq, q.shape[2]), min(bk, s)
    group, count = h // heads, pl.cdiv(s, bk)
    options = {"mask": mask, "window": window, "s": s}

    def held(i: jax.Array, j: jax.Array) -> jax.Array:
        """The block of keys to hold: skipped ones are not fetched."""
        first, last = key_blocks(i, bq=bq, bk=bk, **options)
        return jnp.minimum(jnp.clip(j, first, last), count - 1)

    keys = pl.BlockSpec(
        (None, None, bk, d), lambda n, head, i, j: (n, head // group, held(i, j), 0)
    )
    queries = pl.BlockSpec((None, None, bq, d), lambda n, head, i, j: (n, head, i, 0))
    return pl.pallas_call(
        functools.partial(flash_kernel, scale=scale, **options),
        grid=(b, h, pl.cdiv(t, bq), count),
        in_specs=[queries, keys, keys],
        out_specs=queries,
        out_shape=out_like(q.shape, q.dtype),
        scratch_shapes=scratch(bq, d),
        compiler_params=PARALLEL_QUERIES,
    )(q, k, v)


PARALLEL_QUERIES = pltpu.CompilerParams(
    dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
)


def scratch(bq: int, d: int) -> list[pl.MemoryRef]:
    """The largest logit, the sum of weights and the sum of weighted values of each query."""
    return [pltpu.VMEM((bq, width), jnp.float32) for width in (1, 1, d)]


def flash_masked_kernel(
    q_ref: jax.Ref,
    k_ref: jax.Ref,
    v_ref: jax.Ref,
    mask_ref: jax.Ref,
    o_ref: jax.Ref,
    m_ref: jax.Ref,
    sum_ref: jax.Ref,
    acc_ref: jax.Ref,
    *,
    scale: float,
    s: int,
) -> None:
    j, bk = pl.program_id(3), k_ref.shape[0]

    @pl.when(j == 0)
    def start() -> None:
        clear(m_ref, sum_ref, acc_ref)

    key = j * bk + lax.broadcasted_iota(jnp.int32, mask_ref.shape, 1)
    allowed = (mask_ref[...] != 0) & (key < s)
    v = zero_tail(v_ref[...], 0, j, s)
    attend(q_ref[...], k_ref[...], v, allowed, scale, m_ref, sum_ref, acc_ref)

    @pl.when(j == pl.num_programs(3) - 1)
    def finish() -> None:
        store(o_ref, sum_ref, acc_ref)


def flash_masked(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array,
    *,
    scale: float,
    bq: int,
    bk: int,
) -> jax.Array:
    """softmax(scale * q @ k.T) @ v, head by head, over the keys where the mask is true.

    q is (b, h, t, d), k and v are (b, hkv, s, d), all float32 or bfloat16; mask is bool (b, t, s).

    Raises ValueError for a bad rank, dtype or block, for a number of heads that is no multiple of
    hkv, and for operands that do not fit each other.
    """
    h, heads, s = check_operands(q, k, v, bq=bq, bk=bk)
    (b, _, t, d), bq, bk = q.shape, min(bq, q.shape[2]), min(bk, s)
    check_dtype("mask", mask, ("bool",))
    check_equal("mask.shape", tuple(mask.shape), "(q.shape[0], q.shape[2], k.shape[2])", (b, t, s))
    group = h // heads
    keys = pl.BlockSpec((None, None, bk, d), lambda n, head, i, j: (n, head // group, j, 0))
    queries = pl.BlockSpec((None, None, bq, d), lambda n, head, i, j: (n, head, i, 0))
    return pl.pallas_call(
        functools.partial(flash_masked_kernel, scale=scale, s=s),
        grid=(b, h, pl.cdiv(t, bq), pl.cdiv(s, bk)),
        in_specs=[
            queries,
            keys,
            keys,
            pl.BlockSpec((None, bq, bk), lambda n, head, i, j: (n, i, j)),
        ],
        out_specs=queries,
        out_shape=out_like(q.shape, q.dtype),
        scratch_shapes=scratch(bq, d),
        compiler_params=PARALLEL_QUERIES,
    )(q, k, v, mask.astype(jnp.int32))


def check_operands(
    q: jax.Array, k: jax.Array, v: jax.Array, *, bq: int, bk: int
) -> tuple[int, int, int]:
    """Ranks, dtypes, shapes and blocks fit each other; gives h, hkv and s."""
    for name, operand in (("q", q), ("k", k), ("v", v)):
        check_rank(name, operand, 4)
        check_dtype(name, operand, DTYPES)
        check_equal(f"{name}.dtype", operand.dtype.name, "q.dtype", q.dtype.name)
    for axis in (0, 3):
        check_equal(f"k.shape[{axis}]", k.shape[axis], f"q.shape[{axis}]", q.shape[axis])
    check_equal("v.shape", tuple(v.shape), "k.shape", tuple(k.shape))
    h, heads, s = q.shape[1], k.shape[1], k.shape[2]
    if h % heads:
        raise ValueError(f"k.shape[1] must divide q.shape[1] = {h}, got {heads}")
    check_block("bq", bq, q.shape[2], SUBLANES)
    check_block("bk", bk, s, LANES)
    return h, heads, s
