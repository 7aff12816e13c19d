"""Kernels that are known to be right: one file a pattern, one row a kernel."""

from collections.abc import Callable
from typing import Any

from conformance import Kernel

from . import (
    add,
    attention,
    cross_entropy,
    dsd,
    dynamic_slice,
    gated_linear_unit,
    grouped_matmul,
    limits,
    masked_matmul,
    matmul,
    matmul_fused,
    matmul_grad,
    matmul_int8,
    matmul_transpose,
    norm,
    softmax,
)
from . import sum as sum_  # leaves the builtin its name


def row(case: str, fn: Callable[..., Any], **stages: Any) -> Kernel:
    """A kernel named after its function. All of them raise the ValueErrors of their contract."""
    return Kernel(case=case, name=fn.__name__, fn=fn, checks_inputs=True, **stages)


TILED_ROWS = limits.packed_rows("m", "bm")
TRANSPOSED = limits.transposed_type
MATMUL = limits.first_of(limits.operand_type, TILED_ROWS)

KERNELS: tuple[Kernel, ...] = (
    row("add", add.whole),
    row("add", add.rows, unsupported=TILED_ROWS),
    row("add", add.tiles, unsupported=TILED_ROWS),
    row("add", add.megacore_rows, unsupported=TILED_ROWS),
    row("add", add.megacore_tiles, unsupported=TILED_ROWS),
    row("sum", sum_.accumulate),
    row("sum", sum_.tiled),
    row("sum", sum_.megacore),
    row("sum_narrow", sum_.scratch_accumulator, unsupported=TILED_ROWS),
    row("matmul_f32", matmul.output_accumulator),
    row("matmul", matmul.scratch_accumulator, unsupported=MATMUL),
    row("matmul_transpose_rhs", matmul_transpose.dot_general, unsupported=TRANSPOSED),
    row("matmul_transpose_rhs", matmul_transpose.swapaxes, unsupported=TRANSPOSED),
    row("matmul_activation", matmul_fused.epilogue, unsupported=MATMUL),
    row("matmul_template", matmul_fused.transpose_epilogue, unsupported=TRANSPOSED),
    row("matmul_prologue", matmul_fused.input_fusion, unsupported=MATMUL),
    row("matmul_int8", matmul_int8.scratch_accumulator, unsupported=MATMUL),
    row("matmul_grad", matmul_grad.custom_vjp, unsupported=MATMUL),
    row("dynamic_slice", dynamic_slice.block_aligned, finish=dynamic_slice.finish),
    row("dynamic_slice_blocked", dynamic_slice.blocked, finish=dynamic_slice.finish),
    row("dynamic_slice_unaligned", dynamic_slice.unaligned, finish=dynamic_slice.finish),
    row("dsd", dsd.static_blocks, prepare=dsd.prepare, unsupported=limits.stored_type),
    row("dsd", dsd.dynamic_blocks, prepare=dsd.prepare_dynamic, unsupported=MATMUL),
    row(
        "masked_matmul",
        masked_matmul.prefetch_maps,
        prepare=masked_matmul.prepare,
        operands=("x", "y", "mask"),
        unsupported=MATMUL,
    ),
    row(
        "grouped_matmul",
        grouped_matmul.masked_store,
        prepare=grouped_matmul.prepare,
        unsupported=MATMUL,
    ),
    row("layer_norm", norm.layer_norm),
    row("rms_norm", norm.rms_norm),
    row("gated_linear_unit", gated_linear_unit.two_accumulators, unsupported=MATMUL),
    row("softmax", softmax.rows),
    row("linear_softmax_cross_entropy", cross_entropy.running_maximum, unsupported=MATMUL),
    row("attention", attention.flash, unsupported=limits.operand_type),
    row("attention_masked", attention.flash_masked, unsupported=limits.operand_type),
)
