"""What the kernels of this folder do not claim to support, and why: functions for the row table.

Each takes (example, chip) and returns a reason or None. They look at `chip.info`, JAX's
`TpuInfo`, and at `example.params`; a limit that the compiler does not confirm is an error, and so
is a refusal that no limit declares.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Limit = Callable[[Any, Any], str | None]

SUBLANES = 8
WORD = 4  # bytes; a tile of narrower elements has more rows
FIRST_WITH_PACKED_TILES = 4  # generation; before, HBM tiles have 8 rows whatever the dtype
# From libtpu 0.0.50 on, which belongs to jax 0.12, tiles may be cut; before, that is error E2002.
CUTS_PACKED_TILES = jax.__version_info__ >= (0, 12)
FIRST_WITH_8_BIT_DOTS = (
    5  # generation; where the matrix unit lacks a type, the compiler converts it
)


def first_of(*limits: Limit) -> Limit:
    """The first reason that any of the limits gives."""

    def limit(example: Any, chip: Any) -> str | None:
        return next(filter(None, (one(example, chip) for one in limits)), None)

    return limit


def operand_type(example: Any, chip: Any) -> str | None:
    """A matmul of a type that the chip neither has natively nor converts to one that it has."""
    dtype = example.params["dtype"]
    native = chip.info.is_matmul_supported(dtype, dtype)
    converted = jnp.dtype(dtype).itemsize == 1 and chip.info.generation >= FIRST_WITH_8_BIT_DOTS
    return None if native or converted else f"{chip.name} has no {dtype} matmul"


def transposed_type(example: Any, chip: Any) -> str | None:
    """As `operand_type`; a product with one row of y is computed without the matrix unit."""
    return None if example.params["n"] == 1 else operand_type(example, chip)


def stored_type(example: Any, chip: Any) -> str | None:
    """As `operand_type`, where a matrix without any stored block needs no matmul."""
    return None if example.params["pattern"] == "none" else operand_type(example, chip)


def packed_rows(rows: str, block: str) -> Limit:
    """8-bit arrays of whole (32, 128) tiles cannot be cut between the rows of a tile (E2002).

    Later compilers can.

    Args:
      rows, block: names of the parameters that hold the length and the block.
    """

    def limit(example: Any, chip: Any) -> str | None:
        size, cut = example.params[rows], example.params[block]
        itemsize = jnp.dtype(example.params["dtype"]).itemsize
        tile = SUBLANES * WORD // itemsize
        tiled = itemsize == 1 and size % tile == 0
        if CUTS_PACKED_TILES or not tiled or chip.info.generation < FIRST_WITH_PACKED_TILES:
            return None
        if cut >= size or cut % tile == 0:
            return None
        return f"{block} = {cut} cuts the {tile}-row tiles of 8-bit arrays"

    return limit
