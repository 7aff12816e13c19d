"""Kernels that are known to be right: one file a pattern, one row a kernel."""

from collections.abc import Callable
from typing import Any

from conformance import Kernel

from . import (
    add,
    attention,
    blocks,
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

# What all of them promise besides (see docs/properties.md), and what only some can.
MAPPED = ("vmap", "vmap-aot")
COMMON = ("eager", "donation", "determinism")
ALL = (*COMMON, *MAPPED, "shard_map", "export")

KERNELS: tuple[Kernel, ...] = (
    row("add", add.whole, properties=ALL),
    row("add", add.rows, unsupported=TILED_ROWS, properties=ALL),
    row("add", add.tiles, unsupported=TILED_ROWS, properties=ALL),
    row("add", add.megacore_rows, unsupported=TILED_ROWS, properties=ALL),
    row("add", add.megacore_tiles, unsupported=TILED_ROWS, properties=ALL),
    row("sum", sum_.accumulate, properties=ALL),
    row("sum", sum_.tiled, properties=ALL),
    row("sum", sum_.megacore, properties=ALL),
    row("sum_narrow", sum_.scratch_accumulator, unsupported=TILED_ROWS, properties=ALL),
    row("matmul_f32", matmul.output_accumulator, properties=ALL),
    row(
        "matmul",
        matmul.scratch_accumulator,
        unsupported=MATMUL,
        configs=blocks.long_steps,
        properties=ALL,
    ),
    row(
        "matmul",
        matmul.peeled,
        unsupported=MATMUL,
        configs=blocks.few_steps,
        properties=ALL,
    ),
    row(
        "matmul_transpose_rhs",
        matmul_transpose.dot_general,
        unsupported=TRANSPOSED,
        properties=ALL,
    ),
    row("matmul_transpose_rhs", matmul_transpose.swapaxes, unsupported=TRANSPOSED, properties=ALL),
    row("matmul_activation", matmul_fused.epilogue, unsupported=MATMUL, properties=ALL),
    row(
        "matmul_template",
        matmul_fused.transpose_epilogue,
        unsupported=TRANSPOSED,
        properties=ALL,
    ),
    row("matmul_prologue", matmul_fused.input_fusion, unsupported=MATMUL, properties=ALL),
    row(
        "matmul_int8",
        matmul_int8.scratch_accumulator,
        unsupported=MATMUL,
        configs=blocks.long_steps,
        properties=ALL,
    ),
    row(
        "matmul_int8",
        matmul_int8.peeled,
        unsupported=MATMUL,
        configs=blocks.few_steps,
        properties=ALL,
    ),
    row(
        "matmul_grad",
        matmul_grad.custom_vjp,
        unsupported=MATMUL,
        properties=(*COMMON, *MAPPED, "grad", "export"),
    ),
    # JAX does not serialise the checkify error that these return, and before 0.12 made another
    # program of it each time (docs/findings.md, 18).
    row(
        "dynamic_slice",
        dynamic_slice.block_aligned,
        finish=dynamic_slice.finish,
        properties=("eager", "donation", *MAPPED),
    ),
    row(
        "dynamic_slice_blocked",
        dynamic_slice.blocked,
        finish=dynamic_slice.finish,
        properties=("eager", "donation", *MAPPED),
    ),
    row(
        "dynamic_slice_unaligned",
        dynamic_slice.unaligned,
        finish=dynamic_slice.finish,
        properties=("eager", "donation", *MAPPED),
    ),
    # Their result starts as an operand in HBM, and the grid of one has a bound known at run time
    # only: JAX does not map either as a whole (docs/findings.md, 16 and 17).
    row(
        "dsd",
        dsd.static_blocks,
        prepare=dsd.prepare,
        unsupported=limits.stored_type,
        properties=(*COMMON, "vmap", "shard_map", "export"),
    ),
    row(
        "dsd",
        dsd.dynamic_blocks,
        prepare=dsd.prepare_dynamic,
        unsupported=MATMUL,
        properties=(*COMMON, "shard_map", "export"),
    ),
    row(
        "masked_matmul",
        masked_matmul.prefetch_maps,
        prepare=masked_matmul.prepare,
        operands=("x", "y", "mask"),
        unsupported=MATMUL,
        properties=(*COMMON, *MAPPED, "export"),
    ),
    row("layer_norm", norm.layer_norm, properties=(*ALL, "grad")),
    row("rms_norm", norm.rms_norm, properties=(*ALL, "grad")),
    row(
        "gated_linear_unit",
        gated_linear_unit.two_accumulators,
        unsupported=limits.operand_type,
        properties=(*ALL, "grad"),
    ),
    row("softmax", softmax.rows, properties=(*ALL, "grad")),
    row(
        "linear_softmax_cross_entropy",
        cross_entropy.running_maximum,
        unsupported=limits.operand_type,
        properties=(*COMMON, *MAPPED, "export"),
    ),
    row(
        "grouped_matmul",
        grouped_matmul.masked_store,
        prepare=grouped_matmul.prepare,
        unsupported=MATMUL,
        properties=(*COMMON, *MAPPED, "export"),
    ),
    row("attention", attention.flash, unsupported=limits.operand_type, properties=ALL),
    row(
        "attention_masked", attention.flash_masked, unsupported=limits.operand_type, properties=ALL
    ),
)
