"""Grouped matmul: the rows of lhs lie in consecutive groups, each with a right-hand matrix.

Contract: https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot.html

    masked_store  a block of rows is visited once for each group that has rows in it

Groups begin and end anywhere, so that a block of rows may hold several. The second axis of the
grid walks visits, pairs (block of rows, group), in the order of the rows. A visit multiplies the
whole block by its group's matrix and stores the rows that are the group's; the others keep what
earlier visits stored, or wait for later ones. Visits of one block are consecutive, which keeps
its output in VMEM meanwhile.

Sizes are data, but the grid is not. Each group adds at most one visit to those that the blocks
need by themselves, so there is room for `blocks + groups`. What is left over repeats the last
block and group, fetches nothing, and stores nothing.

Rows behind the last group are treated as one more group, whose product is 0.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import check_dtype, check_equal, check_rank, fit_matmul_blocks, out_like
from .matmul import zero_tail

DTYPES = ("float32", "bfloat16", "int8")


def plan_visits(
    sizes: jax.Array, m: int, bm: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Which block of rows each visit is of, whose rows it stores and whose matrix it fetches.

    Args:
      sizes: rows of each group, int32 (groups,).
      m, bm: rows in all and rows of a block.

    Returns:
      blocks, int32 (visits,): the block of rows.
      owners, int32 (visits,): the group; `groups` stands for the rows behind the last group, and
        `groups + 1` for a visit that is left over.
      matrices, int32 (visits,): the group whose matrix to hold.
      bounds, int32 (groups + 3,): owner e stores the rows from bounds[e] up to bounds[e + 1].
    """
    groups = sizes.shape[0]
    owned = jnp.append(sizes, m - jnp.sum(sizes))
    ends = jnp.cumsum(owned)
    starts = ends - owned
    first = starts // bm
    visits = jnp.where(owned > 0, (ends - 1) // bm - first + 1, 0)
    after = jnp.cumsum(visits)  # the visits of owner e are the numbers below after[e]
    number = jnp.arange(pl.cdiv(m, bm) + groups, dtype=jnp.int32)
    owners = jnp.sum(number[:, None] >= after[None, :], axis=1)  # as many as are done before
    # A visit that is left over stays at the last block.
    held = jnp.minimum(owners, groups)
    block = first[held] + number - (after - visits)[held]
    blocks = jnp.minimum(block, pl.cdiv(m, bm) - 1)
    # Owners without a matrix hold that of the last group with rows: it is there already.
    last = jnp.max(jnp.where(sizes > 0, jnp.arange(groups), 0))
    bounds = jnp.concatenate([starts, jnp.array([m, m])])
    as_int32 = (a.astype(jnp.int32) for a in (blocks, owners, jnp.minimum(owners, last), bounds))
    return tuple(as_int32)


def masked_store_kernel(
    blocks_ref: jax.Ref,
    owners_ref: jax.Ref,
    matrices_ref: jax.Ref,
    bounds_ref: jax.Ref,
    lhs_ref: jax.Ref,
    rhs_ref: jax.Ref,
    o_ref: jax.Ref,
    acc_ref: jax.Ref,
    *,
    k: int,
    groups: int,
) -> None:
    del matrices_ref  # for the index map of rhs
    visit, step = pl.program_id(1), pl.program_id(2)
    owner = owners_ref[visit]

    @pl.when(step == 0)
    def clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(owner < groups)
    def accumulate() -> None:
        lhs = zero_tail(lhs_ref[...], 1, step, k)
        rhs = zero_tail(rhs_ref[...], 0, step, k)
        # (bm, bk) @ (bk, bn)
        acc_ref[...] += jnp.dot(lhs, rhs, preferred_element_type=acc_ref.dtype)

    @pl.when(step == pl.num_programs(2) - 1)
    def store() -> None:
        bm = o_ref.shape[0]
        row = blocks_ref[visit] * bm + lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (row >= bounds_ref[owner]) & (row < bounds_ref[owner + 1])
        # Selected in 32 bits, where mask and values have the same layout.
        kept = o_ref[...].astype(acc_ref.dtype)
        o_ref[...] = jnp.where(mine, acc_ref[...], kept).astype(o_ref.dtype)


def masked_store(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, *, bm: int, bk: int, bn: int
) -> jax.Array:
    """Rows of group g in lhs (m, k) @ rhs[g], rhs (groups, k, n); 0 behind the last group.

    lhs and rhs are float32, bfloat16 or int8. The result, (m, n), has their dtype, or int32 for
    int8. `group_sizes` is int32 (groups,), and its sum at most m: see `prepare`.

    Raises ValueError for a bad rank, dtype or block and for shapes or dtypes that do not fit.
    """
    m, k, n = check_operands(lhs, rhs, group_sizes)
    bm, bk, bn = fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    groups, integer = rhs.shape[0], lhs.dtype == jnp.int8
    accumulator = jnp.int32 if integer else jnp.float32
    visits = plan_visits(group_sizes, m, bm)
    last = pl.cdiv(k, bk) - 1

    def held_k(owner: jax.Array, step: jax.Array) -> jax.Array:
        """The block of k to hold; without a group it is the one that is there already."""
        return jnp.where(owner < groups, step, last)

    return pl.pallas_call(
        functools.partial(masked_store_kernel, k=k, groups=groups),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(pl.cdiv(n, bn), visits[0].shape[0], pl.cdiv(k, bk)),
            in_specs=[
                pl.BlockSpec(
                    (bm, bk),
                    lambda j, visit, step, blocks, owners, *_: (
                        blocks[visit],
                        held_k(owners[visit], step),
                    ),
                ),
                pl.BlockSpec(
                    (None, bk, bn),
                    lambda j, visit, step, blocks, owners, matrices, _: (
                        matrices[visit],
                        held_k(owners[visit], step),
                        j,
                    ),
                ),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, visit, step, blocks, *_: (blocks[visit], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), accumulator)],
        ),
        out_shape=out_like((m, n), jnp.int32 if integer else lhs.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
    )(*visits, lhs, rhs)


def prepare(
    lhs: Any, rhs: Any, group_sizes: Any, *, bm: int, bk: int, bn: int
) -> tuple[Any, Any, Any]:
    """The arguments of `masked_store`: concrete arrays, checked on the host.

    Raises ValueError as `masked_store` does, and for a negative size or sizes that add up to more
    rows than lhs has.
    """
    m, k, n = check_operands(lhs, rhs, group_sizes)
    fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)
    sizes = np.asarray(group_sizes)
    for group in np.flatnonzero(sizes < 0):
        raise ValueError(f"group_sizes[{group}] must not be negative, got {sizes[group]}")
    if sizes.sum() > m:
        raise ValueError(
            f"group_sizes must add up to at most lhs.shape[0] = {m}, got {sizes.sum()}"
        )
    return lhs, rhs, group_sizes


def check_operands(lhs: Any, rhs: Any, group_sizes: Any) -> tuple[int, int, int]:
    """Ranks, dtypes and shapes fit each other; gives m, k, n."""
    check_rank("lhs", lhs, 2)
    check_rank("rhs", rhs, 3)
    check_rank("group_sizes", group_sizes, 1)
    check_dtype("lhs", lhs, DTYPES)
    check_dtype("group_sizes", group_sizes, ("int32",))
    check_equal("rhs.dtype", rhs.dtype.name, "lhs.dtype", lhs.dtype.name)
    check_equal("rhs.shape[1]", rhs.shape[1], "lhs.shape[1]", lhs.shape[1])
    shape = tuple(group_sizes.shape)
    check_equal("group_sizes.shape", shape, "rhs.shape[:1]", tuple(rhs.shape[:1]))
    return lhs.shape[0], lhs.shape[1], rhs.shape[2]
