"""The checks every wrapper makes before it builds a kernel.

Each raises `ValueError` with one message that names the argument and its value. They look at
shapes, dtypes and Python numbers only, so a wrapper can be traced from `jax.ShapeDtypeStruct`s.
The block rule is that of https://docs.jax.dev/en/latest/pallas/tpu/details.html: the last two
sizes of a block are multiples of 8 and 128, or the whole dimension.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

SUBLANES = 8
LANES = 128

FLOATS = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class ArrayLike(Protocol):
    """What a check reads of an array: a jax, NumPy or abstract one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> jnp.dtype: ...


def check_rank(name: str, x: ArrayLike, rank: int) -> None:
    """`x` has `rank` dimensions, none of them empty."""
    if len(x.shape) != rank:
        raise ValueError(f"{name} must have rank {rank}, got shape {tuple(x.shape)}")
    if 0 in x.shape:
        raise ValueError(f"{name} must not be empty, got shape {tuple(x.shape)}")


def check_dtype(name: str, x: ArrayLike, allowed: Sequence[str]) -> None:
    """`x.dtype` is one of the dtype names `allowed`."""
    if x.dtype.name not in allowed:
        raise ValueError(f"{name}.dtype must be one of {', '.join(allowed)}, got {x.dtype.name}")


def check_equal(name: str, value: object, other: str, expected: object) -> None:
    """`value`, called `name`, equals `expected`, called `other`."""
    if value != expected:
        raise ValueError(f"{name} must equal {other} = {expected}, got {value}")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """`value` is one of the names `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_block(name: str, block: int, size: int, multiple: int) -> None:
    """`block` may tile a dimension of `size` elements: the whole of it or a legal multiple."""
    # A bool is an int to Python, and True would pass for the whole of one element.
    number = isinstance(block, int) and not isinstance(block, bool)
    if number and block == size:
        return
    if not number or block <= 0 or block % multiple:
        raise ValueError(
            f"{name} must be a positive multiple of {multiple} or the whole dimension {size}, "
            f"got {block!r}"
        )
    if block >= size + multiple:
        raise ValueError(
            f"{name} must not exceed the dimension {size} rounded up to a multiple of {multiple}, "
            f"got {block}"
        )


def check_matmul(
    x: ArrayLike,
    y: ArrayLike,
    *,
    dtypes: Sequence[str],
    transpose_y: bool = False,
    right: str = "y",
) -> tuple[int, int, int]:
    """`x` (m, k) and `y` (k, n), or (n, k) if `transpose_y`, can be multiplied; gives m, k, n.

    `right` is what messages call `y`.
    """
    check_rank("x", x, 2)
    check_rank(right, y, 2)
    check_dtype("x", x, dtypes)
    check_equal(f"{right}.dtype", y.dtype.name, "x.dtype", x.dtype.name)
    axis = 1 if transpose_y else 0
    check_equal(f"{right}.shape[{axis}]", y.shape[axis], "x.shape[1]", x.shape[1])
    return x.shape[0], x.shape[1], y.shape[1 - axis]


def fit_matmul_blocks(m: int, k: int, n: int, *, bm: int, bk: int, bn: int) -> tuple[int, int, int]:
    """Blocks (bm, bk) of x, (bk, bn) or (bn, bk) of y and (bm, bn) of the product, if legal.

    A block that reaches past the array becomes the whole dimension: the same work, and the
    compiler knows what to do with the rows of an array that has fewer than a tile.
    """
    check_block("bm", bm, m, SUBLANES)
    check_block("bk", bk, k, LANES)
    check_block("bn", bn, n, LANES)
    return min(bm, m), min(bk, k), min(bn, n)


def out_like(shape: tuple[int, ...], dtype: jnp.dtype | str) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a kernel's result."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
