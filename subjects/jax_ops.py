"""The Pallas TPU kernels that ship with JAX, `jax.experimental.pallas.ops.tpu`.

    pytest -n auto --subject=subjects/jax_ops.py

Each adapter takes a case's arrays, brings them into the library's layout and calls it. What a
kernel refuses by a documented limit is declared (`refuses`), what it gets wrong is recorded in
jax_ops.expectations.toml; docs/subjects.md explains both.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul as jax_matmul
from jax.experimental.pallas.ops.tpu import megablox, splash_attention
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

from conformance import Kernel


def divisor(block, size):
    """A block that divides, as callers have to choose it: the one given or all of it."""
    return block if size % block == 0 else size


# ------------------------------------------------------------------ matmul


def matmul(x, y, *, bm, bk, bn):
    """x (m, k) @ y (k, n) in the blocks given, where they divide; else in whole dimensions."""
    bm, bk, bn = divisor(bm, x.shape[0]), divisor(bk, x.shape[1]), divisor(bn, y.shape[1])
    return jax_matmul.matmul(x, y, block_shape=(bm, bn), block_k=bk)


def matmul_any_block(x, y, *, bm, bk, bn):
    """x (m, k) @ y (k, n) in the blocks given."""
    return jax_matmul.matmul(x, y, block_shape=(bm, bn), block_k=bk)


# ------------------------------------------------------------------ grouped_matmul


def gmm(lhs, rhs, group_sizes, *, bm, bk, bn):
    """lhs (m, k), rhs (groups, k, n), group_sizes (groups,); the tile of rows must divide m."""
    tiling = (divisor(bm, lhs.shape[0]), bk, bn)
    return megablox.gmm(lhs, rhs, group_sizes, lhs.dtype, tiling)


def gmm_refuses(example):
    """What `gmm` raises for."""
    wide = example.params["dtype"] in ("float32", "bfloat16")
    return None if wide else "float32 and bfloat16 only"


# ------------------------------------------------------------------ attention

LANES = 128
PAGE = 16
MOST_QUERIES = 16


def flash_attention(q, k, v, *, bq, bk, mask, scale, window):
    """q (b, h, t, d), k and v (b, hkv, s, d); keys and values are repeated, one for each query."""
    if mask == "local":
        raise NotImplementedError("flash_attention has no local mask")
    group, (t, s) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = (jnp.repeat(x, group, axis=1) for x in (k, v))
    bk = divisor(bk, s)
    blocks = flash.BlockSizes(block_q=min(bq, t), block_k_major=bk, block_k=bk, block_b=1)
    return flash.flash_attention(
        q, k, v, causal=mask == "causal", sm_scale=scale, block_sizes=blocks
    )


def flash_attention_refuses(example):
    """The adapter has nothing to call for a local mask."""
    return "no local mask" if example.params["mask"] == "local" else None


def splash_mask(mask, shape, window):
    """The mask of one head as splash_attention describes it: by a rule, not element by element."""
    if mask == "causal":
        return splash_attention.CausalMask(shape)
    if mask == "local":
        return splash_attention.LocalMask(shape, (window, 0), offset=0)
    return splash_attention.FullMask(shape)


def splash(mask, q, k, v, *, bq, bk):
    """q (h, t, d), k and v (hkv, s, d) of one batch; mask (h, t, s). q is scaled already."""
    blocks = splash_attention.BlockSizes(
        block_q=divisor(bq, q.shape[1]), block_kv=divisor(bk, k.shape[1])
    )
    kernel = splash_attention.make_splash_mha(
        mask, block_sizes=blocks, head_shards=1, q_seq_shards=1
    )
    return kernel(q, k, v)


def each(function, *arrays):
    """`function` of every batch; not by jax.vmap, which the simulator refuses (finding 20)."""
    return jnp.stack([function(*batch) for batch in zip(*arrays, strict=True)])


def splash_by_rule(q, k, v, *, bq, bk, mask, scale, window):
    """q (b, h, t, d), k and v (b, hkv, s, d); a mask that is known when the kernel is made."""
    heads = [splash_mask(mask, (q.shape[2], k.shape[2]), window)] * q.shape[1]
    one = functools.partial(splash, splash_attention.MultiHeadMask(heads), bq=bq, bk=bk)
    return each(one, q * jnp.asarray(scale, q.dtype), k, v)


def splash_by_array(q, k, v, mask, *, bq, bk, scale):
    """q (b, h, t, d), k and v (b, hkv, s, d), mask (b, t, s): an array like any other."""
    masks = jnp.broadcast_to(mask[:, None], (*q.shape[:3], k.shape[2]))
    one = functools.partial(splash, bq=bq, bk=bk)
    return each(one, masks, q * jnp.asarray(scale, q.dtype), k, v)


def splash_refuses(example):
    """splash_attention wants key blocks of whole lanes."""
    p = example.params
    block = divisor(p["bk"], p["s"])
    return f"a key block of {block} is no multiple of 128" if block % LANES else None


def paged(q, k, v, lengths, *, scale, inline):
    """Decoding: each of the queries q (b, h, t, d) is a sequence with lengths (b, t) of its own.

    The keys and values of a batch lie in consecutive pages, filled up with zeros.
    """
    b, h, t, d = q.shape
    pages = -(-k.shape[2] // PAGE)
    k, v = (
        jnp.pad(x, ((0, 0), (0, 0), (0, pages * PAGE - x.shape[2]), (0, 0)))
        .swapaxes(0, 1)
        .reshape(x.shape[1], b * pages, PAGE, d)
        for x in (k, v)
    )
    table = jnp.arange(b * pages, dtype=jnp.int32).reshape(b, pages)
    rows = paged_attention(
        q.swapaxes(1, 2).reshape(b * t, h, d) * jnp.asarray(scale, q.dtype),
        k,
        v,
        lengths.reshape(-1).astype(jnp.int32),
        jnp.repeat(table, t, axis=0),
        pages_per_compute_block=max(n for n in (8, 4, 2, 1) if pages % n == 0),
        inline_seq_dim=inline,
    )
    return rows.reshape(b, t, h, d).swapaxes(1, 2)


def paged_by_rule(q, k, v, *, mask, scale, window, inline):
    """As `paged`: a causal query sees as many keys as stand before it."""
    (b, _, t, _), s = q.shape, k.shape[2]
    if mask == "local" or t > MOST_QUERIES:
        raise NotImplementedError("no local mask, and one sequence for each of a few queries")
    lengths = jnp.minimum(jnp.arange(t) + 1, s) if mask == "causal" else jnp.full(t, s)
    return paged(q, k, v, jnp.broadcast_to(lengths, (b, t)), scale=scale, inline=inline)


def paged_by_array(q, k, v, lengths, *, scale, inline):
    """As `paged`, with the lengths that `paged_lengths` found."""
    return paged(q, k, v, lengths, scale=scale, inline=inline)


def paged_lengths(q, k, v, mask, **options):
    """Masks that leave out the last keys, as lengths (b, t)."""
    lengths = mask.sum(axis=2)
    prefix = np.arange(k.shape[2]) < lengths[..., None]
    if q.shape[2] > MOST_QUERIES or not np.array_equal(prefix, mask):
        raise NotImplementedError("paged_attention masks the end of a sequence, of a few queries")
    return q, k, v, lengths


def paged_refuses(example):
    """It decodes: the adapter makes a sequence of each query, which is for few of them."""
    p = example.params
    if p["t"] > MOST_QUERIES:
        return f"more than {MOST_QUERIES} queries"
    first_document = p["mask"] == "documents" and p["t"] <= p["s"] // 3 + 1
    if p["mask"] in ("causal", "none", "padding") or first_document:
        return None
    return "masks the end of a sequence only"


def paged_unsupported(example, chip):
    """The block of q is also that of two results whose last dimension is 1."""
    d = example.params["d"]
    return f"a head of {d}, no multiple of 128" if d % LANES else None


KERNELS = (
    Kernel(case="matmul", name="matmul", fn=matmul),
    Kernel(case="matmul", name="matmul_any_block", fn=matmul_any_block),
    Kernel(case="grouped_matmul", name="megablox_gmm", fn=gmm, refuses=gmm_refuses),
    Kernel(
        case="attention",
        name="flash_attention",
        fn=flash_attention,
        refuses=flash_attention_refuses,
    ),
    Kernel(
        case="attention",
        name="splash_attention",
        fn=splash_by_rule,
        refuses=splash_refuses,
    ),
    Kernel(
        case="attention_masked",
        name="splash_attention",
        fn=splash_by_array,
        refuses=splash_refuses,
    ),
    *(
        kernel
        for name, inline in (("paged_attention", True), ("paged_attention_grid", False))
        for kernel in (
            Kernel(
                case="attention",
                name=name,
                fn=functools.partial(paged_by_rule, inline=inline),
                refuses=paged_refuses,
                unsupported=paged_unsupported,
            ),
            Kernel(
                case="attention_masked",
                name=name,
                prepare=paged_lengths,
                fn=functools.partial(paged_by_array, inline=inline),
                refuses=paged_refuses,
                unsupported=paged_unsupported,
            ),
        )
    ),
)
