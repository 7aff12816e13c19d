"""Kernels that are known to be right: one file a pattern, one row a kernel."""

from collections.abc import Callable
from typing import Any

from conformance import Kernel

from . import (
    add,
    dsd,
    dynamic_slice,
    masked_matmul,
    matmul,
    matmul_fused,
    matmul_grad,
    matmul_int8,
    matmul_transpose,
)
from . import sum as sum_  # leaves the builtin its name


def row(case: str, fn: Callable[..., Any], **stages: Any) -> Kernel:
    """A kernel named after its function. All of them raise the ValueErrors of their contract."""
    return Kernel(case=case, name=fn.__name__, fn=fn, checks_inputs=True, **stages)


KERNELS: tuple[Kernel, ...] = (
    row("add", add.whole),
    row("add", add.rows),
    row("add", add.tiles),
    row("add", add.megacore_rows),
    row("add", add.megacore_tiles),
    row("sum", sum_.accumulate),
    row("sum", sum_.tiled),
    row("sum", sum_.megacore),
    row("sum_narrow", sum_.scratch_accumulator),
    row("matmul_f32", matmul.output_accumulator),
    row("matmul", matmul.scratch_accumulator),
    row("matmul_transpose_rhs", matmul_transpose.dot_general),
    row("matmul_transpose_rhs", matmul_transpose.swapaxes),
    row("matmul_activation", matmul_fused.epilogue),
    row("matmul_template", matmul_fused.transpose_epilogue),
    row("matmul_prologue", matmul_fused.input_fusion),
    row("matmul_int8", matmul_int8.scratch_accumulator),
    row("matmul_grad", matmul_grad.custom_vjp),
    row("dynamic_slice", dynamic_slice.block_aligned, finish=dynamic_slice.finish),
    row("dynamic_slice_blocked", dynamic_slice.blocked, finish=dynamic_slice.finish),
    row("dynamic_slice_unaligned", dynamic_slice.unaligned, finish=dynamic_slice.finish),
    row("dsd", dsd.static_blocks, prepare=dsd.prepare),
    row("dsd", dsd.dynamic_blocks, prepare=dsd.prepare_dynamic),
    row(
        "masked_matmul",
        masked_matmul.prefetch_maps,
        prepare=masked_matmul.prepare,
        operands=("x", "y", "mask"),
    ),
)
