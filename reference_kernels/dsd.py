"""Sparse @ dense: the sparse guide's block-COO kernel ("dsd": dense = sparse @ dense).

Guide: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html

    static_blocks   the number of stored blocks is part of a shape
    dynamic_blocks  it is a run-time scalar: one compiled kernel, a grid whose size is data

The left operand, (m, k), is stored as `blocks` (nnz, bm, bk) and their indices `indices_i` and
`indices_k`, int32[nnz], in blocks. The grid walks the columns of the result and, inside, the
stored blocks. Blocks of a row are adjacent (`indices_i` is sorted), so that their products meet
in one accumulator; it is cleared where the row changes and written where the row is about to.

A row without blocks is never visited. Its zeros are there beforehand: the result aliases an
operand of zeros, which stays in HBM. So the result is 0 where nothing is stored whatever y holds.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .blocks import vmem_limit
from .checks import LANES, SUBLANES, check_block, check_dtype, check_equal, check_rank, out_like

DTYPES = ("float32", "bfloat16")


def static_kernel(
    i_ref: jax.Ref,
    k_ref: jax.Ref,
    x_ref: jax.Ref,
    y_ref: jax.Ref,
    zeros_ref: jax.Ref,
    o_ref: jax.Ref,
    acc_ref: jax.Ref,
) -> None:
    del k_ref, zeros_ref  # for the index map of y; for its memory
    step = pl.program_id(1)
    last = pl.num_programs(1) - 1
    row = i_ref[step]

    @pl.when((step == 0) | (row != i_ref[jnp.maximum(step - 1, 0)]))
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # (bm, bk) @ (bk, bn)
    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=acc_ref.dtype)

    @pl.when((step == last) | (row != i_ref[jnp.minimum(step + 1, last)]))
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def static_blocks(
    indices_i: jax.Array, indices_k: jax.Array, blocks: jax.Array, y: jax.Array, *, m: int, bn: int
) -> jax.Array:
    """The sparse matrix (m, k) @ y (k, n), in the dtype of y, for arguments from `prepare`.

    `blocks` (nnz, bm, bk) is float32 or bfloat16, the indices int32[nnz].

    Raises ValueError for what `prepare` can find in shapes and dtypes.
    """
    check_shapes(indices_i, indices_k, blocks, y, m=m, bn=bn)
    nnz, bm, bk = blocks.shape
    n, zeros = y.shape[1], zeros_like_result(y, m, bn)
    if nnz == 0:
        return zeros[:, :n]
    result = pl.pallas_call(
        static_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(n, bn), nnz),
            in_specs=[
                pl.BlockSpec((None, bm, bk), lambda j, step, rows, cols: (step, 0, 0)),
                pl.BlockSpec((bk, bn), lambda j, step, rows, cols: (cols[step], j)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, step, rows, cols: (rows[step], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=out_like(zeros.shape, y.dtype),
        # Operands count the prefetched ones: 4 is `zeros`.
        input_output_aliases={4: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit((bm, bk, bn), y.dtype.itemsize, y.dtype.itemsize),
        ),
    )(indices_i, indices_k, blocks, y, zeros)
    return result[:, :n]


def zeros_like_result(y: jax.Array, m: int, bn: int) -> jax.Array:
    """The result before any block is stored, its columns padded to whole blocks.

    Operand and result may alias only if they look alike, and the HLO interpreter pads results.
    """
    return jnp.zeros((m, pl.cdiv(y.shape[1], bn) * bn), y.dtype)


def dynamic_kernel(
    nnz_ref: jax.Ref,
    i_ref: jax.Ref,
    k_ref: jax.Ref,
    x_ref: jax.Ref,
    y_ref: jax.Ref,
    zeros_ref: jax.Ref,
    o_ref: jax.Ref,
    acc_ref: jax.Ref,
) -> None:
    del k_ref, zeros_ref  # for the index map of y; for its memory
    step = pl.program_id(1)
    last = pl.num_programs(1) - 1
    row = i_ref[step]

    @pl.when((step == 0) | (row != i_ref[jnp.maximum(step - 1, 0)]))
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(step < nnz_ref[0])  # false in the one step of an empty matrix
    def accumulate() -> None:
        # (bm, bk) @ (bk, bn)
        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=acc_ref.dtype)

    @pl.when((step == last) | (row != i_ref[jnp.minimum(step + 1, last)]))
    def store() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def dynamic_blocks(
    nnz: jax.Array,
    indices_i: jax.Array,
    indices_k: jax.Array,
    blocks: jax.Array,
    y: jax.Array,
    *,
    m: int,
    bn: int,
) -> jax.Array:
    """`static_blocks` for the first nnz, int32[1], of the blocks, from `prepare_dynamic`.

    The indices, int32[capacity], and `blocks` (capacity, bm, bk) are padded, with indices of 0.
    The grid has at least one step, because a pipeline without any is not worth relying on: that
    step computes nothing and stores zeros to the block row 0.

    Raises ValueError for what `prepare_dynamic` can find in shapes and dtypes.
    """
    check_shapes(indices_i, indices_k, blocks, y, m=m, bn=bn)
    if tuple(nnz.shape) != (1,):
        raise ValueError(f"nnz must have shape (1,), got {tuple(nnz.shape)}")
    check_dtype("nnz", nnz, ("int32",))
    _, bm, bk = blocks.shape
    n, zeros = y.shape[1], zeros_like_result(y, m, bn)
    result = pl.pallas_call(
        dynamic_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(n, bn), jnp.maximum(nnz[0], 1)),
            in_specs=[
                pl.BlockSpec((None, bm, bk), lambda j, step, nnz, rows, cols: (step, 0, 0)),
                pl.BlockSpec((bk, bn), lambda j, step, nnz, rows, cols: (cols[step], j)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, step, nnz, rows, cols: (rows[step], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=out_like(zeros.shape, y.dtype),
        # Operands count the prefetched ones: 5 is `zeros`.
        input_output_aliases={5: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit((bm, bk, bn), y.dtype.itemsize, y.dtype.itemsize),
        ),
    )(nnz, indices_i, indices_k, blocks, y, zeros)
    return result[:, :n]


def prepare(
    indices_i: Any, indices_k: Any, blocks: Any, y: Any, *, m: int, bn: int
) -> tuple[Any, ...]:
    """The arguments of `static_blocks`: concrete arrays, checked on the host.

    Raises ValueError for a bad rank, dtype or block, shapes that do not fit each other, indices
    out of range and block rows that are not in order.
    """
    check_shapes(indices_i, indices_k, blocks, y, m=m, bn=bn)
    _, bm, bk = blocks.shape
    check_indices("indices_i", np.asarray(indices_i), m // bm)
    check_indices("indices_k", np.asarray(indices_k), y.shape[0] // bk)
    check_sorted("indices_i", np.asarray(indices_i))
    return indices_i, indices_k, blocks, y


def prepare_dynamic(
    indices_i: Any, indices_k: Any, blocks: Any, y: Any, *, m: int, bn: int
) -> tuple[Any, ...]:
    """The arguments of `dynamic_blocks`: as `prepare`, padded to a power of two of blocks.

    Raises ValueError as `prepare` does.
    """
    prepare(indices_i, indices_k, blocks, y, m=m, bn=bn)
    nnz = len(indices_i)
    padding = (1 << max(nnz - 1, 0).bit_length()) - nnz
    return (
        np.array([nnz], np.int32),
        np.pad(np.asarray(indices_i), (0, padding)),
        np.pad(np.asarray(indices_k), (0, padding)),
        np.pad(np.asarray(blocks), ((0, padding), (0, 0), (0, 0))),
        y,
    )


def check_shapes(indices_i: Any, indices_k: Any, blocks: Any, y: Any, *, m: int, bn: int) -> None:
    if len(blocks.shape) != 3:
        raise ValueError(f"blocks must have rank 3, got shape {tuple(blocks.shape)}")
    check_rank("y", y, 2)
    check_dtype("blocks", blocks, DTYPES)
    check_equal("y.dtype", y.dtype.name, "blocks.dtype", blocks.dtype.name)
    nnz, bm, bk = blocks.shape
    for name, indices in (("indices_i", indices_i), ("indices_k", indices_k)):
        check_dtype(name, indices, ("int32",))
        check_equal(f"{name}.shape", tuple(indices.shape), "blocks.shape[:1]", (nnz,))
    check_divides("blocks.shape[1]", bm, "m", m)
    check_divides("blocks.shape[2]", bk, "y.shape[0]", y.shape[0])
    check_block("blocks.shape[1]", bm, m, SUBLANES)
    check_block("blocks.shape[2]", bk, y.shape[0], SUBLANES)
    check_block("bn", bn, y.shape[1], LANES)


def check_divides(name: str, block: int, other: str, size: int) -> None:
    if size <= 0:
        raise ValueError(f"{other} must be positive, got {size}")
    if block <= 0 or size % block:
        raise ValueError(f"{name} must divide {other} = {size}, got {block}")


def check_indices(name: str, indices: np.ndarray, count: int) -> None:
    bad = np.flatnonzero((indices < 0) | (indices >= count))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] must be at least 0 and less than {count}, got {indices[bad[0]]}"
        )


def check_sorted(name: str, indices: np.ndarray) -> None:
    bad = np.flatnonzero(indices[1:] < indices[:-1])
    if bad.size:
        at = bad[0] + 1
        raise ValueError(
            f"{name} must be sorted, got {name}[{at}] = {indices[at]} after {indices[at - 1]}"
        )
