"""The least time that a chip allows for some work, and what share of it a kernel reaches.

A kernel is bound by arithmetic, operations by peak, or by memory, bytes by bandwidth, whichever
takes longer. Peaks and bandwidth are those of `pltpu.TpuInfo`, per TensorCore, times the cores of
the device; none is written down here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.case import Work
from conformance.chips import Chip

# The field of TpuInfo that has the peak of a matmul, by the dtype of its operands. float32
# operands are rounded to bfloat16 at DEFAULT precision, and take as long.
_PEAKS = {
    "float32": "bf16_ops_per_second",
    "bfloat16": "bf16_ops_per_second",
    "int8": "int8_ops_per_second",
    "float8_e4m3fn": "fp8_ops_per_second",
    "float8_e5m2": "fp8_ops_per_second",
    "int4": "int4_ops_per_second",
}


class NoPeak(ValueError):
    """JAX publishes no peak for a dtype on a chip."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What a chip allows for some work.

    Attributes:
      operations: of the work; a multiply-add counts 2.
      bytes: that cross HBM.
      peak: operations a second.
      bandwidth: bytes a second.
    """

    operations: int
    bytes: int
    peak: float
    bandwidth: float

    @property
    def compute_seconds(self) -> float:
        """Time of the arithmetic alone."""
        return self.operations / self.peak

    @property
    def memory_seconds(self) -> float:
        """Time of the traffic alone."""
        return self.bytes / self.bandwidth

    @property
    def least_seconds(self) -> float:
        """Nothing can be faster: arithmetic and traffic overlap at best."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes

    @property
    def ridge(self) -> float:
        """The intensity, in operations a byte, below which memory is the bound."""
        return self.peak / self.bandwidth

    @property
    def bound(self) -> str:
        """ "compute" or "memory"."""
        return "compute" if self.intensity >= self.ridge else "memory"


def roofline(work: Work, chip: Chip, dtype: str, moved: int | None = None) -> Roofline:
    """The bounds of `work` on a device.

    Args:
      dtype: of the matmul's operands.
      moved: bytes that a kernel with its blocks really moves; the least possible when None.

    Raises:
      NoPeak: there is no figure for this dtype on this chip.
    """
    return Roofline(
        operations=work.flops,
        bytes=work.bytes if moved is None else moved,
        peak=peak(chip, dtype),
        bandwidth=bandwidth(chip),
    )


def peak(chip: Chip, dtype: str) -> float:
    """Matmul operations a second of a device.

    Raises:
      NoPeak: there is no figure.
    """
    value = float(getattr(chip.info, _PEAKS[dtype], 0)) if dtype in _PEAKS else 0.0
    if not value:
        raise NoPeak(f"TpuInfo has no peak for {dtype} on {chip.name}")
    return value * chip.cores


def bandwidth(chip: Chip) -> float:
    """HBM bytes a second of a device."""
    return float(chip.info.mem_bw_bytes_per_second * chip.cores)


# --------------------------------------------------------------------------- utilization


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """A time compared with the roofline.

    Attributes:
      seconds: the time.
      least_seconds: the roofline's.
      flops_share: operations a second by peak, what guides call FLOP/s utilization.
    """

    seconds: float
    least_seconds: float
    flops_share: float

    @property
    def share(self) -> float:
        """Of the roofline; 1 is as fast as the chip allows."""
        return self.least_seconds / self.seconds

    @property
    def valid(self) -> bool:
        """False above 100 %: no chip is faster than it is, so the time is wrong (INVALID)."""
        return self.share <= 1


def utilization(limits: Roofline, seconds: float) -> Utilization:
    """How close a time comes.

    Raises:
      ValueError: the time is not positive.
    """
    if not seconds > 0:
        raise ValueError(f"a time must be positive, got {seconds}")
    return Utilization(
        seconds=seconds,
        least_seconds=limits.least_seconds,
        flops_share=limits.compute_seconds / seconds,
    )


# --------------------------------------------------------------------------- matmuls


def matmul_work(m: int, k: int, n: int, dtype: str, out: str | None = None) -> Work:
    """x (m, k) @ y (k, n), every operand moved once."""
    size, out_size = _itemsize(dtype), _itemsize(out or dtype)
    return Work(flops=2 * m * k * n, bytes=(m * k + k * n) * size + m * n * out_size)


def matmul_moved(m: int, k: int, n: int, *, bm: int, bn: int, dtype: str) -> int:
    """Bytes of a blocked matmul on a grid (m, n, k) whose k has more than one block.

    Each row block of x is read once for every column block of the result, each column block of
    y once for every row block: m k n / bn + k n m / bm + m n elements.
    """
    return (m * k * -(-n // bn) + k * n * -(-m // bm) + m * n) * _itemsize(dtype)


def crossover(chip: Chip, dtype: str) -> float:
    """m = k = n from which a matmul is bound by arithmetic.

    Solves 2 m^3 / (3 m^2 itemsize) = ridge.
    """
    return 1.5 * _itemsize(dtype) * peak(chip, dtype) / bandwidth(chip)


def _itemsize(dtype: str) -> int:
    import ml_dtypes  # noqa: F401  (makes NumPy know bfloat16 and its kin by name)

    return np.dtype(dtype).itemsize


# --------------------------------------------------------------------------- blocks


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """An operand or result that is moved block by block.

    Attributes:
      bytes: of one block.
      index: grid point -> which block it needs.
    """

    bytes: int
    index: Callable[..., tuple[int, ...]]


def moved(grid: Sequence[int], windows: Iterable[Blocked]) -> int:
    """Bytes that a pipeline moves on one core: a block moves when its index changes.

    A result's block is written as often as an operand's would be read.
    """
    return sum(w.bytes * len(fetches(grid, w.index)) for w in windows)


def fetches(grid: Sequence[int], index: Callable[..., tuple[int, ...]]) -> list[int]:
    """Numbers of the steps, in grid order, that need another block than the step before."""
    found, last = [], None
    for number, point in enumerate(itertools.product(*(range(n) for n in grid))):
        block = tuple(index(*point))
        if block != last:
            found.append(number)
        last = block
    return found
