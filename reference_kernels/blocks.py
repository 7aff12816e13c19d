"""Blocks that nobody chose: the best of a sweep for this chip and shape, and the VMEM they need.

`blocks.json` holds what `python tools/tune.py` found, by predicted time: nothing in it was
measured. Shapes that are not in it take the blocks of the nearest that is, cut until they fit.
"""

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from .checks import LANES, fit_matmul_blocks

MIB = 2**20
# VMEM that a kernel may use without asking: the least of any chip, and all that the first had.
UNASKED = 16 * MIB
# Whose blocks a chip without a row of its own takes, and code that runs on none.
USUAL = "v5e"
# Multiplications of a step.
MOST_WORK = 2**32

Blocks = tuple[int, int, int]


@functools.cache
def table() -> tuple[dict[str, Any], ...]:
    """Sweeps, reduced to their best results."""
    return tuple(json.loads(Path(__file__).with_name("blocks.json").read_text())["sweeps"])


def target() -> tuple[str, int]:
    """The chip that JAX traces for and the bytes of its VMEM; an interpreter has no chip."""
    try:
        info = pltpu.get_tpu_info()
    except ValueError:
        return USUAL, UNASKED
    version = info.chip_version.value
    return version if version.startswith("v") else f"tpu{version}", info.vmem_capacity_bytes


def vmem_bytes(blocks: Blocks, itemsize: int, out_itemsize: int) -> int:
    """Bytes that a matmul by blocks (bm, bk, bn) may need: an estimate from above.

    Two windows for each operand and for the result, a 32-bit accumulator, and the copies of the
    operands that the compiler makes on their way to the matrix unit.
    """
    bm, bk, bn = blocks
    return 3 * (bm * bk + bk * bn) * itemsize + bm * bn * (2 * out_itemsize + 4)


def vmem_limit(blocks: Blocks, itemsize: int, out_itemsize: int) -> int | None:
    """What to ask the compiler for; None where nothing needs to be asked for."""
    needed, capacity = vmem_bytes(blocks, itemsize, out_itemsize), target()[1]
    needed += needed // 8  # for what a kernel does on top of a plain product
    limit = min(needed, capacity)
    return limit if limit > UNASKED else None


def matmul_params(blocks: Blocks, itemsize: int, out_itemsize: int) -> pltpu.CompilerParams:
    """For a grid (m, n, k) in blocks (bm, bk, bn)."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "parallel", "arbitrary"),
        vmem_limit_bytes=vmem_limit(blocks, itemsize, out_itemsize),
    )


def matmul_blocks(
    kernel: str,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    *,
    bm: int | None,
    bk: int | None,
    bn: int | None,
) -> Blocks:
    """The blocks that were given, checked and cut to the arrays, or the best that are known.

    Args:
      kernel: "case/name", as in the table.

    Raises ValueError for an illegal block, and when some are given and others not.
    """
    given = (bm, bk, bn)
    if given == (None, None, None):
        return best_blocks(kernel, m, k, n, dtype)
    if None in given:
        raise ValueError(f"bm, bk and bn must be given together or left out, got {given}")
    return fit_matmul_blocks(m, k, n, bm=bm, bk=bk, bn=bn)


def best_blocks(kernel: str, m: int, k: int, n: int, dtype: Any) -> Blocks:
    """Of the table's nearest shape, cut to the arrays and until they fit into VMEM."""
    chip, capacity = target()
    row = nearest(kernel, chip, m * k * n)
    options, params = row["results"][0]["options"], row["params"]
    bk = k if options["bk"] == params["k"] else min(options["bk"], k)
    blocks = [min(options["bm"], m), bk, min(options["bn"], n)]
    itemsize = jnp.dtype(dtype).itemsize
    while vmem_bytes((blocks[0], blocks[1], blocks[2]), itemsize, 4) > capacity:
        longest = max(range(3), key=lambda axis: blocks[axis])
        blocks[longest] = half(blocks[longest])
    return blocks[0], blocks[1], blocks[2]


def half(block: int) -> int:
    """About half as long, and legal for every dimension."""
    return max(LANES, block // 2 // LANES * LANES)


def nearest(kernel: str, chip: str, volume: int) -> dict[str, Any]:
    """The row of the shape whose m k n is nearest, on the chip or else on the usual one."""
    rows = [r for r in table() if f"{r['case']}/{r['kernel']}" == kernel]
    rows = [r for r in rows if r["chip"] == chip] or [r for r in rows if r["chip"] == USUAL]

    def distance(row: dict[str, Any]) -> float:
        p = row["params"]
        return abs(math.log2(volume / (p["m"] * p["k"] * p["n"])))

    return min(rows, key=distance)


def few_steps(example: Any, chip: Any) -> Iterator[dict[str, int]]:
    """The search space of `peeled`: all of k at once, in two steps, or in long ones."""
    k = example.params["k"]
    return candidates(example, chip, sorted({k, *fitting((k // 2, 2048), k)}))


def long_steps(example: Any, chip: Any) -> Iterator[dict[str, int]]:
    """The search space of `scratch_accumulator`: several long blocks of k."""
    return candidates(example, chip, fitting((1024, 2048), example.params["k"]))


def candidates(example: Any, chip: Any, contracted: Sequence[int]) -> Iterator[dict[str, int]]:
    """Blocks for a large matmul that fit into the chip's VMEM and are worth a compile.

    Shorter ones move too much. A step of more than `MOST_WORK` multiplications takes the compiler
    minutes and gains little.
    """
    p = example.params
    itemsize = jnp.dtype(p["dtype"]).itemsize
    rows, columns = fitting((512, 1024, 2048), p["m"]), fitting((512, 1024, 2048), p["n"])
    for blocks in itertools.product(rows, contracted, columns):
        fits = vmem_bytes(blocks, itemsize, 4) <= chip.info.vmem_capacity_bytes
        long = max(blocks[0], blocks[2]) >= min(1024, p["m"], p["n"])
        if fits and long and math.prod(blocks) <= MOST_WORK:
            yield dict(zip(("bm", "bk", "bn"), blocks, strict=True))


def fitting(lengths: Sequence[int], size: int) -> list[int]:
    """Lengths that divide a dimension, or all of it."""
    return [n for n in lengths if size % n == 0] or [size]
