"""A masked dense @ dense product: the sparse guide's kernel for sparse access to dense data.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html

    prefetch_maps  blocks whose mask is false everywhere are not computed, nor fetched for

The result is where(mask, x @ y, 0), a select: where the mask is false it is 0 even if x or y
holds an infinity or a NaN.

The grid is dense, (m, n, k) in blocks. While it passes over a block that is not computed, the
index maps name the next one that is, so that its operands are fetched in the meantime and no
others; after the last one they go on naming what was fetched last, down to its k.

Block fetches on one core, for C > 0 computed blocks, in row-major order, and K steps along k:

    x     C * K if K > 1, else the number of runs of equal i among the computed blocks
    y     C * K if K > 1, else the number of runs of equal j among them
    mask  the number of runs of equal mask blocks among them

For C = 0 it is one fetch each, of the first block.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .blocks import matmul_params
from .checks import (
    check_dtype,
    check_equal,
    check_matmul,
    check_rank,
    fit_matmul_blocks,
    out_like,
)
from .matmul import zero_tail

DTYPES = ("float32", "bfloat16")
MASK_DTYPES = ("int32", "bool", "float32")


class SparseMask(NamedTuple):
    """A mask in blocks. The first four are int32 (m blocks, n blocks), one entry an output block.

    block_mask     1 where the block has a true element and is computed, else 0
    prefetch_mask  index into mask_data of the mask block to hold
    prefetch_i     row of the block to hold: the next computed one, or else the last one
    prefetch_j     its column
    mask_data      int32 (number of different blocks, bm, bn), at least one
    """

    block_mask: np.ndarray
    prefetch_mask: np.ndarray
    prefetch_i: np.ndarray
    prefetch_j: np.ndarray
    mask_data: np.ndarray


def sparsify_mask(mask: Any, bm: int, bn: int) -> SparseMask:
    """The blocks (bm, bn) of mask (m, n), true where it is not 0; concrete, on the host.

    A ragged edge is padded with false. Equal blocks are stored once, compared by their bytes.
    """
    blocks = split_blocks(np.asarray(mask) != 0, bm, bn)
    rows, cols = blocks.shape[:2]
    block_mask = blocks.any(axis=(2, 3)).astype(np.int32)
    maps = np.zeros((3, rows, cols), np.int32)  # prefetch_mask, prefetch_i, prefetch_j
    index: dict[bytes, int] = {}
    data: list[np.ndarray] = []
    # What is held after the last computed block is that block, whose mask is the first one met
    # on the way back from the end. Without any, it is the first block.
    last = np.argwhere(block_mask)[-1:].ravel().tolist() or [0, 0]
    held = (0, *last)
    for i in reversed(range(rows)):
        for j in reversed(range(cols)):
            if block_mask[i, j]:
                key = blocks[i, j].tobytes()
                if key not in index:
                    index[key] = len(data)
                    data.append(blocks[i, j])
                held = (index[key], i, j)
            maps[:, i, j] = held
    mask_data = np.stack(data or [np.zeros((bm, bn), bool)]).astype(np.int32)
    return SparseMask(block_mask, maps[0], maps[1], maps[2], mask_data)


def split_blocks(mask: np.ndarray, bm: int, bn: int) -> np.ndarray:
    """mask (m, n), padded with false, as (m blocks, n blocks, bm, bn)."""
    m, n = mask.shape
    padded = np.pad(mask, ((0, -m % bm), (0, -n % bn)))
    rows, cols = padded.shape[0] // bm, padded.shape[1] // bn
    return padded.reshape(rows, bm, cols, bn).swapaxes(1, 2)


def masked_matmul_kernel(
    block_mask_ref: jax.Ref,
    prefetch_mask_ref: jax.Ref,
    prefetch_i_ref: jax.Ref,
    prefetch_j_ref: jax.Ref,
    x_ref: jax.Ref,
    y_ref: jax.Ref,
    mask_ref: jax.Ref,
    o_ref: jax.Ref,
    acc_ref: jax.Ref,
    *,
    k: int,
) -> None:
    del prefetch_mask_ref, prefetch_i_ref, prefetch_j_ref  # for the index maps
    i, j, step = pl.program_id(0), pl.program_id(1), pl.program_id(2)

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(block_mask_ref[i, j] != 0)
    def accumulate() -> None:
        x = zero_tail(x_ref[...], 1, step, k)
        y = zero_tail(y_ref[...], 0, step, k)
        acc_ref[...] += jnp.dot(x, y, preferred_element_type=acc_ref.dtype)  # (bm, bk) @ (bk, bn)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        # A block that was passed over sees another block's mask, and an accumulator of zeros.
        kept = jnp.where(mask_ref[...] != 0, acc_ref[...], 0.0)
        o_ref[...] = kept.astype(o_ref.dtype)


def prefetch_maps(
    x: jax.Array,
    y: jax.Array,
    block_mask: jax.Array,
    prefetch_mask: jax.Array,
    prefetch_i: jax.Array,
    prefetch_j: jax.Array,
    mask_data: jax.Array,
    *,
    bm: int,
    bk: int,
    bn: int,
) -> jax.Array:
    """where(mask, x (m, k) @ y (k, n), 0) in the dtype of x, for arguments from `prepare`.

    x and y are float32 or bfloat16; the rest is a `SparseMask`.

    Raises ValueError for what `prepare` can find in the shapes and dtypes of x and y.
    """
    m, k, n = check_matmul(x, y, dtypes=DTYPES)
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    grid = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))
    check_equal("block_mask.shape", tuple(block_mask.shape), "the grid", grid[:2])
    held_k = functools.partial(fetched_k, last=grid[2] - 1)
    return pl.pallas_call(
        functools.partial(masked_matmul_kernel, k=k),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=grid,
            in_specs=[
                pl.BlockSpec(
                    (bm, bk), lambda i, j, step, *maps: (maps[2][i, j], held_k(i, j, step, *maps))
                ),
                pl.BlockSpec(
                    (bk, bn), lambda i, j, step, *maps: (held_k(i, j, step, *maps), maps[3][i, j])
                ),
                pl.BlockSpec((None, bm, bn), lambda i, j, step, *maps: (maps[1][i, j], 0, 0)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, step, *maps: (i, j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=out_like((m, n), x.dtype),
        # A block of the mask, int32, beside one of the result.
        compiler_params=matmul_params((bm, bk, bn), x.dtype.itemsize, x.dtype.itemsize + 4),
    )(block_mask, prefetch_mask, prefetch_i, prefetch_j, x, y, mask_data)


def fetched_k(
    i: jax.Array,
    j: jax.Array,
    step: jax.Array,
    block_mask: jax.Ref,
    prefetch_mask: jax.Ref,
    prefetch_i: jax.Ref,
    prefetch_j: jax.Ref,
    *,
    last: int,
) -> jax.Array:
    """The block of k to hold: this step's, or 0 ahead of a computed block, or `last` behind it."""
    del prefetch_mask
    held_i, held_j = prefetch_i[i, j], prefetch_j[i, j]
    passed = (held_i < i) | ((held_i == i) & (held_j < j))
    behind = passed & (block_mask[held_i, held_j] != 0)
    return jnp.where(block_mask[i, j] != 0, step, jnp.where(behind, last, 0))


def prepare(x: Any, y: Any, mask: Any, *, bm: int, bk: int, bn: int) -> tuple[Any, ...]:
    """The arguments of `prefetch_maps`: x, y and the fields of a `SparseMask`.

    mask (m, n) is concrete, int32, bool or float32, and true where it is not 0.

    Raises ValueError for a bad rank, dtype or block, operands that differ in dtype or inner
    dimension, and a mask whose shape is not the product's.
    """
    m, k, n = check_matmul(x, y, dtypes=DTYPES)
    check_rank("mask", mask, 2)
    check_dtype("mask", mask, MASK_DTYPES)
    check_equal("mask.shape", tuple(mask.shape), "(x.shape[0], y.shape[1])", (m, n))
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    return x, y, *sparsify_mask(mask, bm, bn)
