"""From hypothesis and seeds to examples: legal shapes and blocks, and the arrays of a seed.

Sizes and blocks come from short lists that hold every kind once (one element, less than a
tile, exactly a tile, one more, many blocks, not a multiple), because a new shape costs a
compile and a run can afford few of them. Distributions are chosen for what they reveal:

  exact     integers whose sums are exact in the accumulator: every order gives the same bits
  position  each element tells where it stands; wrong index maps and swapped axes show
  normal    full-mantissa normal numbers; early rounding shows
  cancel    sums whose terms cancel; lost low bits show
  wide      rows and columns of very different scale; a bound relative to the largest is blind
  special   NaN and infinities where the contract defines them
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from conformance.case import Arrays, Case, DomainError, Example, Negative, Params
from conformance.numerics import (
    dtype_of,
    is_float,
    largest,
    largest_exact_integer,
    probe_operand_limit,
)

SUBLANES = 8
LANES = 128


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def legal_block(block: int, dim: int, unit: int) -> bool:
    """Mosaic's block rule for one of the last two dimensions: whole, or a multiple of `unit`."""
    return block == dim or (block > 0 and block % unit == 0 and block < dim + unit)


def check_tiles(params: Params, **units: int) -> None:
    """DomainError unless the block `b<dim>` of each named dimension is legal for its unit."""
    for dim, unit in units.items():
        block, size = params[f"b{dim}"], params[dim]
        if not legal_block(block, size, unit):
            raise DomainError(
                f"b{dim} must be {size} (the whole dimension) or a multiple of {unit} below "
                f"{size + unit}, got {block}"
            )


def halves(params: Params, dim: str, unit: int) -> bool:
    """Whether a dimension can be cut in two that are points of the domain with the same block."""
    half, rest = divmod(params[dim], 2)
    return not rest and legal_block(params[f"b{dim}"], half, unit)


def blocks(dim: int, unit: int, most: int = 4) -> st.SearchStrategy[int]:
    """Legal block lengths of `dim` that cut it into at most `most` blocks."""
    candidates = {dim}
    for block in range(unit, dim + unit, unit):
        if cdiv(dim, block) <= most:
            candidates.add(block)
    return st.sampled_from(sorted(candidates))


def sizes(*choices: int) -> st.SearchStrategy[int]:
    """One of a list of lengths."""
    return st.sampled_from(choices)


def names(*choices: str) -> st.SearchStrategy[str]:
    """One of a list of dtypes or contract options."""
    return st.sampled_from(choices)


# --------------------------------------------------------------------------- arrays


def rng_of(seed: int) -> np.random.Generator:
    """The generator of a seed; PCG64 by name so that a seed means the same for good."""
    return np.random.Generator(np.random.PCG64(seed))


def make_arrays(case: Case, example: Example) -> Arrays:
    """The arrays of an example, from its seed."""
    return case.make(example.params, example.inputs, rng_of(example.seed))


def integers(rng: np.random.Generator, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """Uniform integers in [-limit, limit], int64."""
    return rng.integers(-limit, limit, size=shape, endpoint=True)


def elements(kind: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """An array for data movement and element-wise work.

    Integers take their whole range (they wrap); "position" counts up, modulo what the dtype
    holds exactly.
    """
    target = dtype_of(dtype)
    if kind == "position":
        period = min(largest_exact_integer(target), 2**22) + 1
        return (np.arange(np.prod(shape)) % period).reshape(shape).astype(target)
    if not is_float(target):
        info = np.iinfo(target)
        return rng.integers(info.min, info.max, size=shape, endpoint=True, dtype=target)
    if kind == "exact":
        return integers(rng, shape, probe_operand_limit(target)).astype(target)
    values = rng.standard_normal(shape)
    if kind == "wide":
        values *= 2.0 ** rng.integers(-6, 6, size=shape, endpoint=True)
    if kind == "special":
        values = _with_specials(values, rng)
    return values.astype(np.float32).astype(target)


def _with_specials(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`values` with about one -0, NaN, +inf and -inf in each 16 elements, at least one each."""
    flat = values.reshape(-1).copy()
    count = max(1, flat.size // 16)
    for special in (-0.0, np.nan, np.inf, -np.inf):
        flat[rng.integers(0, flat.size, size=count)] = special
    return flat.reshape(values.shape)


def probe_limit(
    terms: int, dtype: str, out: str, accumulator_bits: int = 24, most: int | None = None
) -> int:
    """The largest L for integer operands |x|, |y| <= L with every partial sum exact.

    terms * L^2 < 2^accumulator_bits, L exact in bf16 and in the operand dtype; for outputs of
    narrow range, L so small that the largest of very many results stays finite (results are
    sums of `terms` products of variance below L^4 / 9; twelve standard deviations fit).
    """
    limit = probe_operand_limit(dtype_of(dtype))
    if most is not None:
        limit = min(limit, most)
    limit = min(limit, int(np.sqrt((2**accumulator_bits - 1) / max(terms, 1))))
    spread = largest(dtype_of(out)) / (4.0 * np.sqrt(max(terms, 1)))
    return max(1, min(limit, int(np.sqrt(spread)) if spread < limit**2 else limit))


def operand(
    kind: str,
    shape: tuple[int, int],
    dtype: str,
    rng: np.random.Generator,
    *,
    axis: int,
    limit: int,
    scale: float = 1.0,
    flip: bool = False,
) -> np.ndarray:
    """One operand of a contraction over `axis`.

    Args:
      limit: of the integer probes (see `probe_limit`).
      scale: standard deviation of the real distributions.
      flip: for "cancel": this operand repeats itself with changed sign along `axis`, the
        other one (flip=False) repeats itself nearly, so that the two halves cancel.
    """
    target = dtype_of(dtype)
    if kind == "position":
        return _position(shape, limit).astype(target)
    if kind == "exact" or not is_float(target):
        return _probes(rng, shape, limit, target)
    values = rng.standard_normal(shape) * scale
    if kind == "cancel":
        values = _halves(values, axis, flip, rng)
    if kind == "wide":
        across = [1, 1]
        across[1 - axis] = shape[1 - axis]
        values *= 2.0 ** rng.integers(-8, 8, size=across, endpoint=True)
    return values.astype(np.float32).astype(target)


def _probes(
    rng: np.random.Generator, shape: tuple[int, ...], limit: int, target: np.dtype
) -> np.ndarray:
    """Integers up to `limit`; where that is all of an integer type, its least number too."""
    probes = integers(rng, shape, limit)
    if not is_float(target) and limit == ml_dtypes.iinfo(target).max:
        probes = np.where(probes == -limit, ml_dtypes.iinfo(target).min, probes)
    return probes.astype(target)


def _position(shape: tuple[int, int], limit: int) -> np.ndarray:
    """Integers in [-limit, limit] that depend on row and column through unlike primes."""
    i, j = np.indices(shape)
    return (i * 7919 + j * 104729 + (i // 8) * (j // 8) * 31) % (2 * limit + 1) - limit


def _halves(values: np.ndarray, axis: int, flip: bool, rng: np.random.Generator) -> np.ndarray:
    half = values.shape[axis] // 2
    if half == 0:
        return values
    out = np.moveaxis(values.copy(), axis, 0)
    if flip:
        out[half : 2 * half] = -out[:half]
    else:
        out[half : 2 * half] = out[:half] * (1 + 2.0**-6 * rng.standard_normal(out[:half].shape))
    return np.moveaxis(out, 0, axis)


def value_error(name: str, match: str, params: Params, *arrays: np.ndarray) -> Negative:
    """Bad arrays or parameters that a kernel must refuse with a ValueError while it is traced."""
    return Negative(
        name=name,
        params=params,
        phase="trace",
        error="ValueError",
        match=match,
        arrays=lambda _: arrays,
    )
