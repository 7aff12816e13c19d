"""Slices whose start is known at run time only: the sparse guide's introduction to prefetch.

Guide: https://docs.jax.dev/en/latest/pallas/tpu/sparse.html

    block_aligned  the slice is one block, at a start that is a multiple of it
    blocked        the slice is many blocks; its start is a multiple of the block, not of the slice
    unaligned      any start: every block is put together from the four that it overlaps

Scalar prefetch hands block indices to the index maps, so that data decides what is fetched:
nothing is read but the slice. An index map counts in blocks, which is why alignment matters.

`fn` returns (err, slice): the device cannot raise, so `jax.experimental.checkify` carries the
verdict on `starts` out and `finish` throws it. The kernel itself gets starts moved into range,
since a transfer out of bounds would stop the chip before anybody looked at the verdict.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .checks import LANES, SUBLANES, check_block, check_dtype, check_rank, out_like

DTYPES = ("float32", "bfloat16", "int32")

Pair = tuple[int, int]
Checked = tuple[checkify.Error, jax.Array]


def copy_kernel(first_ref: jax.Ref, x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    del first_ref  # for the index map
    o_ref[...] = x_ref[...]


def copy_blocks(x: jax.Array, first: jax.Array, sizes: Pair, blocks: Pair) -> jax.Array:
    """The slice of `sizes` whose first block is the block `first`, int32[2], of x."""
    return pl.pallas_call(
        copy_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(sizes[0] // blocks[0], sizes[1] // blocks[1]),
            in_specs=[pl.BlockSpec(blocks, lambda i, j, first: (first[0] + i, first[1] + j))],
            out_specs=pl.BlockSpec(blocks, lambda i, j, first: (i, j)),
        ),
        out_shape=out_like(sizes, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(first, x)


def block_aligned(x: jax.Array, starts: jax.Array, *, size_m: int, size_n: int) -> Checked:
    """The slice (size_m, size_n) of x (m, n) at starts, int32[2], multiples of the sizes.

    Returns (err, slice). Raises ValueError for a bad rank, dtype or size; `finish` raises it for
    a start that is misaligned or out of range.
    """
    sizes = (size_m, size_n)
    check_operands(x, starts, sizes)
    err = check_starts(starts, x.shape, sizes, {"size_m": size_m, "size_n": size_n})
    first = in_range(starts, x.shape, sizes) // jnp.array(sizes, jnp.int32)
    return err, copy_blocks(x, first, sizes, sizes)


def blocked(
    x: jax.Array, starts: jax.Array, *, size_m: int, size_n: int, bm: int, bn: int
) -> Checked:
    """The slice (size_m, size_n) of x (m, n) at starts, int32[2], by blocks of (bm, bn).

    The blocks divide the sizes and the starts. They need not divide (m, n): a slice in range does
    not reach a partial block.

    Returns (err, slice). Raises ValueError for a bad rank, dtype, size or block; `finish` raises
    it for a start that is misaligned or out of range.
    """
    sizes, blocks = (size_m, size_n), (bm, bn)
    check_operands(x, starts, sizes)
    check_blocks(x, sizes, blocks)
    err = check_starts(starts, x.shape, sizes, {"bm": bm, "bn": bn})
    first = in_range(starts, x.shape, sizes) // jnp.array(blocks, jnp.int32)
    return err, copy_blocks(x, first, sizes, blocks)


def unaligned_kernel(
    first_ref: jax.Ref,
    last_ref: jax.Ref,
    offset_ref: jax.Ref,
    top_left_ref: jax.Ref,
    top_right_ref: jax.Ref,
    bottom_left_ref: jax.Ref,
    bottom_right_ref: jax.Ref,
    o_ref: jax.Ref,
    *,
    moves: tuple[bool, bool],
) -> None:
    del first_ref, last_ref  # for the index maps
    # Registers are rotated by 32-bit elements.
    wide = jnp.float32 if jnp.issubdtype(o_ref.dtype, jnp.floating) else jnp.int32
    left, right = top_left_ref[...].astype(wide), top_right_ref[...].astype(wide)
    if moves[0]:
        left = join(left, bottom_left_ref[...].astype(wide), offset_ref[0], 0)
        right = join(right, bottom_right_ref[...].astype(wide), offset_ref[0], 0)
    block = join(left, right, offset_ref[1], 1) if moves[1] else left
    o_ref[...] = block.astype(o_ref.dtype)


def join(first: jax.Array, last: jax.Array, offset: jax.Array, axis: int) -> jax.Array:
    """The block that begins `offset` elements into `first` and ends in its neighbour `last`."""
    width = first.shape[axis]
    amount = jnp.where(offset == 0, 0, width - offset)
    index = lax.broadcasted_iota(jnp.int32, first.shape, axis)
    return jnp.where(
        index < width - offset, pltpu.roll(first, amount, axis), pltpu.roll(last, amount, axis)
    )


def unaligned(
    x: jax.Array,
    starts: jax.Array,
    *,
    size_m: int,
    size_n: int,
    bm: int | None = None,
    bn: int | None = None,
) -> Checked:
    """The slice (size_m, size_n) of x (m, n) at any starts, int32[2], in range.

    By blocks of (bm, bn), which divide the sizes and default to them. Along an axis that is
    taken whole the start can only be 0, and nothing has to move.

    Returns (err, slice). Raises ValueError for a bad rank, dtype, size or block; `finish` raises
    it for a start that is out of range.
    """
    sizes = (size_m, size_n)
    blocks = (size_m if bm is None else bm, size_n if bn is None else bn)
    check_operands(x, starts, sizes)
    check_blocks(x, sizes, blocks)
    err = check_starts(starts, x.shape, sizes, {})
    return err, join_blocks(x, in_range(starts, x.shape, sizes), sizes, blocks)


def join_blocks(x: jax.Array, starts: jax.Array, sizes: Pair, blocks: Pair) -> jax.Array:
    """The slice of `sizes` at `starts`, int32[2], each block of it made from four of x.

    Where the start is aligned, the last neighbour is the block itself, so that no index leaves
    the array. Freedom of the start costs four times the traffic of `blocked`.
    """
    block = jnp.array(blocks, jnp.int32)
    first = starts // block
    last = (starts + block - 1) // block
    return pl.pallas_call(
        functools.partial(unaligned_kernel, moves=(sizes[0] != x.shape[0], sizes[1] != x.shape[1])),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(sizes[0] // blocks[0], sizes[1] // blocks[1]),
            in_specs=[
                pl.BlockSpec(blocks, lambda i, j, a, b, _: (a[0] + i, a[1] + j)),
                pl.BlockSpec(blocks, lambda i, j, a, b, _: (a[0] + i, b[1] + j)),
                pl.BlockSpec(blocks, lambda i, j, a, b, _: (b[0] + i, a[1] + j)),
                pl.BlockSpec(blocks, lambda i, j, a, b, _: (b[0] + i, b[1] + j)),
            ],
            out_specs=pl.BlockSpec(blocks, lambda i, j, *_: (i, j)),
        ),
        out_shape=out_like(sizes, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(first, last, starts - first * block, x, x, x, x)


def finish(checked: Checked) -> jax.Array:
    """The slice, once its starts are known to be good; raises ValueError if they are not."""
    err, value = checked
    err.throw()
    return value


def in_range(starts: jax.Array, shape: tuple[int, ...], sizes: Pair) -> jax.Array:
    """`starts` moved to the nearest place from which a slice of `sizes` fits into `shape`."""
    limits = jnp.array([shape[0] - sizes[0], shape[1] - sizes[1]], jnp.int32)
    return jnp.clip(starts, 0, limits)


def check_starts(
    starts: jax.Array, shape: tuple[int, ...], sizes: Pair, multiples: dict[str, int]
) -> checkify.Error:
    """The verdict on `starts`: in range, and multiples of `multiples`, one an axis, by name."""

    def check(starts: jax.Array) -> None:
        for axis, size_name in enumerate(("size_m", "size_n")):
            start, size, dim = starts[axis], sizes[axis], shape[axis]
            name = f"starts[{axis}]"
            checkify.check(start >= 0, name + " must be at least 0, got {start}", start=start)
            checkify.check(
                start <= dim - size,
                f"{name} + {size_name} must be at most x.shape[{axis}] = {dim}, got {{end}}",
                end=start + size,
            )
        for axis, (block_name, block) in enumerate(multiples.items()):
            checkify.check(
                starts[axis] % block == 0,
                f"starts[{axis}] must be a multiple of {block_name} = {block}, got {{start}}",
                start=starts[axis],
            )

    err, _ = checkify.checkify(check)(starts)
    return err


def check_operands(x: jax.Array, starts: jax.Array, sizes: Pair) -> None:
    check_rank("x", x, 2)
    check_dtype("x", x, DTYPES)
    if tuple(starts.shape) != (2,):
        raise ValueError(f"starts must have shape (2,), got {tuple(starts.shape)}")
    check_dtype("starts", starts, ("int32",))
    check_block("size_m", sizes[0], x.shape[0], SUBLANES)
    check_block("size_n", sizes[1], x.shape[1], LANES)
    for axis, name in enumerate(("size_m", "size_n")):
        if sizes[axis] > x.shape[axis]:
            raise ValueError(
                f"{name} must be at most x.shape[{axis}] = {x.shape[axis]}, got {sizes[axis]}"
            )


def check_blocks(x: jax.Array, sizes: Pair, blocks: Pair) -> None:
    for axis, (name, multiple) in enumerate((("bm", SUBLANES), ("bn", LANES))):
        check_block(name, blocks[axis], x.shape[axis], multiple)
        if sizes[axis] % blocks[axis]:
            size_name = ("size_m", "size_n")[axis]
            raise ValueError(f"{name} must divide {size_name} = {sizes[axis]}, got {blocks[axis]}")
