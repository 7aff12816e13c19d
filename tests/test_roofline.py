"""The roofline: the matmul guide's numbers, bytes that blocks move, utilization."""

from __future__ import annotations

import pytest

from conformance import chips
from conformance.case import Work
from conformance.roofline import (
    Blocked,
    NoPeak,
    bandwidth,
    crossover,
    fetches,
    matmul_moved,
    matmul_work,
    moved,
    peak,
    roofline,
    utilization,
)

V5E = chips.get("v5e")


def test_work_of_the_guide():
    work = matmul_work(1024, 1024, 1024, "float32")
    assert (work.flops, work.bytes) == (2147483648, 12582912)


@pytest.mark.parametrize(("dtype", "intensity"), [("float32", 170.67), ("bfloat16", 341.33)])
def test_intensity_of_the_guide(dtype, intensity):
    limits = roofline(matmul_work(1024, 1024, 1024, dtype), V5E, dtype)
    assert round(limits.intensity, 2) == intensity


def test_ridge_is_that_of_the_guide_but_for_its_bandwidth():
    """The guide divides 197 TFLOP/s by 819 GB/s; TpuInfo says 820."""
    limits = roofline(matmul_work(1024, 1024, 1024, "float32"), V5E, "float32")
    assert (limits.peak, limits.bandwidth) == (197e12, 820e9)
    assert round(limits.ridge, 1) == 240.2
    assert round(limits.peak / 819e9, 1) == 240.5


def test_crossover_is_that_of_the_guide_but_for_its_rounding():
    """The guide takes 240 for the ridge: 2 m^3 / 12 m^2 > 240 from m = 1440 on."""
    exact = crossover(V5E, "float32")
    assert 1440 < exact < 1442
    below, above = (roofline(matmul_work(m, m, m, "float32"), V5E, "float32") for m in (1440, 1442))
    assert (below.bound, above.bound) == ("memory", "compute")


def test_bound_decides_the_least_time():
    small = roofline(matmul_work(128, 128, 128, "bfloat16"), V5E, "bfloat16")
    large = roofline(matmul_work(8192, 8192, 8192, "bfloat16"), V5E, "bfloat16")
    assert small.least_seconds == small.memory_seconds > small.compute_seconds
    assert large.least_seconds == large.compute_seconds > large.memory_seconds


def test_a_device_has_all_its_cores():
    one, two = chips.get("v4"), chips.get("v4-megacore")
    assert peak(two, "bfloat16") == 2 * peak(one, "bfloat16")
    assert bandwidth(two) == 2 * bandwidth(one)


@pytest.mark.parametrize(("chip", "dtype"), [("v4", "int8"), ("v5e", "float8_e5m2"), ("v5e", "x")])
def test_no_peak_is_an_error(chip, dtype):
    with pytest.raises(NoPeak, match=f"{dtype} on {chip}"):
        peak(chips.get(chip), dtype)


# ------------------------------------------------------------------ blocks


def test_bytes_of_blocks_are_those_of_the_guide():
    m, k, n, bm, bk, bn = 1024, 512, 2048, 128, 256, 512
    elements = m * k * n // bn + k * n * m // bm + m * n
    assert matmul_moved(m, k, n, bm=bm, bn=bn, dtype="bfloat16") == 2 * elements
    windows = (
        Blocked(bytes=2 * bm * bk, index=lambda i, j, step: (i, step)),
        Blocked(bytes=2 * bk * bn, index=lambda i, j, step: (step, j)),
        Blocked(bytes=2 * bm * bn, index=lambda i, j, step: (i, j)),
    )
    assert moved((m // bm, n // bn, k // bk), windows) == 2 * elements


def test_a_block_that_stays_is_not_moved_again():
    grid = (4, 3, 1)
    row = Blocked(bytes=10, index=lambda i, j, step: (i, step))
    column = Blocked(bytes=1, index=lambda i, j, step: (step, j))
    assert moved(grid, [row]) == 4 * 10  # the same for all of j
    assert moved(grid, [column]) == 12
    assert fetches(grid, lambda i, j, step: (0,)) == [0]


def test_moved_bytes_move_the_bound():
    work = Work(flops=10**12, bytes=10**6)
    assert roofline(work, V5E, "bfloat16").bound == "compute"
    assert roofline(work, V5E, "bfloat16", moved=10**11).bound == "memory"


# ------------------------------------------------------------------ utilization


def test_utilization_of_the_guide():
    limits = roofline(matmul_work(8192, 8192, 8192, "bfloat16"), V5E, "bfloat16")
    used = utilization(limits, 0.006099433819763363)
    assert round(100 * used.flops_share, 4) == 91.5048
    assert used.valid and used.share == used.flops_share


def test_above_the_roofline_a_time_is_invalid():
    limits = roofline(matmul_work(8192, 8192, 8192, "bfloat16"), V5E, "bfloat16")
    assert utilization(limits, limits.least_seconds).valid
    assert not utilization(limits, 0.999 * limits.least_seconds).valid
    memory = roofline(Work(flops=1, bytes=10**9), V5E, "float32")
    assert not utilization(memory, 0.999 * memory.memory_seconds).valid


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_is_positive(seconds):
    limits = roofline(Work(flops=1, bytes=1), V5E, "float32")
    with pytest.raises(ValueError, match="positive"):
        utilization(limits, seconds)
