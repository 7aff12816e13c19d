"""Kernels that are wrong in one known way, and odd ones that are right: they test the judge.

A subject like any other (`pytest --subject tests/mutants.py`), except that most of its kernels
must fail; `mutant_table.py` says what is wrong with each and how it shows. Every builder makes a
right kernel of one pattern, of which a mutant changes one part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

Fn = Callable[..., Any]


def kernel(name: str, fn: Fn, **stages: Any) -> Kernel:
    """The kernel called "case/name"."""
    case, _, own = name.partition("/")
    return Kernel(case=case, name=own, fn=fn, **stages)


def reference(case: str) -> Any:
    """The module that holds the reference kernels of a case; nothing imports it by name."""
    kernels = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).kernels
    return sys.modules[next(k.fn.__module__ for k in kernels if k.case == case)]


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


# ---------------------------------------------------------------------------- add


def widen(x: jax.Array) -> jax.Array:
    """x as float32 or int32."""
    return x.astype(jnp.float32 if is_float(x.dtype) else jnp.int32)


def to_bfloat16(x: jax.Array) -> jax.Array:
    """Floats rounded to bfloat16, in 32 bits: XLA may leave out a pair of casts, but not this."""
    return lax.reduce_precision(widen(x), 8, 7) if is_float(x.dtype) else widen(x)


def tiles(
    op: Fn = lambda x, y, dtype: (widen(x) + widen(y)).astype(dtype),
    *,
    blocks: Fn = pl.cdiv,
    y_map: Fn = lambda i, j: (i, j),
    o_map: Fn = lambda i, j: (i, j),
    writes: Fn = lambda i, j: i >= 0,
    out: str | None = None,
) -> Fn:
    """x + y by tiles."""

    def fn(x: jax.Array, y: jax.Array, *, bm: int, bn: int) -> jax.Array:
        def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
            @pl.when(writes(pl.program_id(0), pl.program_id(1)))
            def write() -> None:
                o_ref[...] = op(x_ref[...], y_ref[...], o_ref.dtype)

        return pl.pallas_call(
            body,
            grid=(max(1, blocks(x.shape[0], bm)), max(1, blocks(x.shape[1], bn))),
            in_specs=[
                pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
                pl.BlockSpec((bm, bn), y_map),
            ],
            out_specs=pl.BlockSpec((bm, bn), o_map),
            out_shape=jax.ShapeDtypeStruct(x.shape, out or x.dtype),
        )(x, y)

    return fn


def towards_zero(x: jax.Array, y: jax.Array, dtype: Any) -> jax.Array:
    """The sum, rounded down in magnitude."""
    exact = widen(x) + widen(y)
    near = exact.astype(dtype)
    if not is_float(dtype) or near.dtype == exact.dtype:
        return near
    bits = lax.bitcast_convert_type(near, f"uint{8 * near.dtype.itemsize}")
    shorter = lax.bitcast_convert_type(bits - 1, near.dtype)
    return jnp.where(jnp.abs(widen(near)) > jnp.abs(exact), shorter, near)


def saturated(x: jax.Array, y: jax.Array, dtype: Any) -> jax.Array:
    """The sum, held between a narrow integer's limits."""
    exact = widen(x) + widen(y)
    if is_float(dtype) or jnp.dtype(dtype).itemsize == 4:
        return exact.astype(dtype)
    info = jnp.iinfo(dtype)
    return jnp.clip(exact, info.min, info.max).astype(dtype)


def shared_output(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """Every step writes its rows of one output block, from whichever core it runs on."""
    (m, n), steps = x.shape, pl.cdiv(x.shape[0], bm)

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        total = (widen(x_ref[...]) + widen(y_ref[...])).astype(o_ref.dtype)
        o_ref[pl.ds(pl.program_id(0) * bm, bm), :] = total

    spec = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        grid=(steps,),
        in_specs=[spec, spec],
        out_specs=pl.BlockSpec((steps * bm, n), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((steps * bm, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)[:m]


def set_once(x: jax.Array, y: jax.Array, *, bm: int) -> jax.Array:
    """The first step puts zeros into scratch; the others add what is there, on their core."""
    (m, n), spec = x.shape, pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))

    def body(x_ref: Any, y_ref: Any, o_ref: Any, scratch: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def clear() -> None:
            scratch[...] = jnp.zeros_like(scratch)

        total = widen(x_ref[...]) + widen(y_ref[...]) + scratch[...]
        o_ref[...] = total.astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, bm),),
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, n), widen(x).dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)


def copied(*, waits: int = 1, signals: int = 0, spoils: bool = False) -> Fn:
    """x + y with a copy of x into VMEM that the kernel makes itself."""

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        def body(x_hbm: Any, y_ref: Any, o_ref: Any, x_ref: Any, done: Any, other: Any) -> None:
            copy = pltpu.make_async_copy(x_hbm, x_ref, done)
            copy.start()
            for _ in range(waits):
                copy.wait()
            for _ in range(signals):
                pl.semaphore_signal(other)
            o_ref[...] = (widen(x_ref[...]) + widen(y_ref[...])).astype(o_ref.dtype)
            if spoils:
                x_ref[...] = jnp.zeros_like(x_ref)
                pltpu.sync_copy(x_ref, x_hbm)

        return pl.pallas_call(
            body,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.VMEM)],
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM(x.shape, x.dtype),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.REGULAR,
            ],
        )(x, y)

    return fn


def plain_body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


LARGEST = (512, 512)
BUILT = pl.pallas_call(plain_body, out_shape=jax.ShapeDtypeStruct(LARGEST, jnp.float32))


def built_at_import(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y by a call that was built when this file was loaded."""
    padding = [(0, most - size) for most, size in zip(LARGEST, x.shape, strict=True)]
    padded = [jnp.pad(a.astype(jnp.float32), padding) for a in (x, y)]
    return BUILT(*padded)[: x.shape[0], : x.shape[1]].astype(x.dtype)


def raises(x: jax.Array, y: jax.Array) -> jax.Array:
    """Gives up while it is traced."""
    raise NotImplementedError("no vector layout for this kernel")


def whole_blocks(x: jax.Array, y: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """x + y without dropping what the last blocks hold beyond the array."""
    padding = [(0, -x.shape[0] % bm), (0, -x.shape[1] % bn)]
    return tiles()(jnp.pad(x, padding), jnp.pad(y, padding), bm=bm, bn=bn)


ADD = (
    kernel("add/towards_zero", tiles(towards_zero)),
    kernel(
        "add/through_float32",
        tiles(lambda x, y, dtype: (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(dtype)),
    ),
    kernel("add/saturates", tiles(saturated)),
    kernel(
        "add/bfloat16_operands",
        tiles(lambda x, y, dtype: (to_bfloat16(x) + to_bfloat16(y)).astype(dtype)),
    ),
    kernel("add/y_blocks_swapped", tiles(y_map=lambda i, j: (j, i))),
    kernel("add/last_blocks_missing", tiles(blocks=lambda size, block: size // block)),
    kernel("add/output_pinned", tiles(o_map=lambda i, j: (0, j))),
    kernel("add/writes_every_other_block", tiles(writes=lambda i, j: (i + j) % 2 == 0)),
    kernel("add/float32_out", tiles(out="float32")),
    kernel("add/whole_blocks_out", whole_blocks),
    kernel("add/shared_output", shared_output),
    kernel("add/scratch_set_once", set_once),
    kernel("add/dma_wait_missing", copied(waits=0)),
    kernel("add/dma_wait_twice", copied(waits=2)),
    kernel("add/semaphore_left", copied(signals=1)),
    kernel("add/x_overwritten", copied(spoils=True)),
    kernel("add/raises", raises),
    kernel("add/built_at_import", built_at_import),
)


# ---------------------------------------------------------------------------- sum


class At(NamedTuple):
    """A grid step: the block of each dimension, and the last block of the contracted one."""

    i: Any
    j: Any
    k: Any
    last: Any


def in_order(order: str, mapping: Fn) -> Fn:
    """The index map of a grid whose axes stand in `order`, for a `mapping` of i, j and k."""
    return lambda *point: mapping(*(point[order.index(axis)] for axis in "ijk"))


def semantics(order: str, parallel: str) -> Any:
    """Compiler parameters of a grid with axes `order`, some of them parallel."""
    return pltpu.CompilerParams(
        dimension_semantics=tuple("parallel" if a in parallel else "arbitrary" for a in order)
    )


def wide(dtype: Any) -> Any:
    """The 32-bit type in which a dtype is summed."""
    return jnp.dtype(
        {"bfloat16": "float32", "int8": "int32", "int16": "int32"}.get(dtype.name, dtype)
    )


def summed(
    *,
    order: str = "ijk",
    parallel: str = "",
    accumulator: Fn = wide,
    clear: Fn = lambda at: at.k == 0,
    add: Fn = lambda acc, x, at: acc + x,
    cast: Fn = lambda x, dtype: x.astype(dtype),
) -> Fn:
    """x (b, m, n) summed over b: in the output block if it has the accumulator's dtype."""

    def fn(x: jax.Array, *, bm: int, bn: int) -> jax.Array:
        b, m, n = x.shape
        out = x.dtype if is_float(x.dtype) else wide(x.dtype)
        acc = accumulator(x.dtype)
        sizes = {"i": pl.cdiv(m, bm), "j": pl.cdiv(n, bn), "k": b}

        def body(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
            at = At(*(pl.program_id(order.index(a)) for a in "ijk"), sizes["k"] - 1)
            acc_ref = o_ref if acc == out else acc_ref

            @pl.when(clear(at))
            def start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

            acc_ref[...] = add(acc_ref[...], cast(x_ref[...], acc_ref.dtype), at).astype(acc)

            @pl.when(at.k == at.last)
            def store() -> None:
                o_ref[...] = acc_ref[...].astype(o_ref.dtype)

        return pl.pallas_call(
            body,
            grid=tuple(sizes[a] for a in order),
            in_specs=[pl.BlockSpec((None, bm, bn), in_order(order, lambda i, j, k: (k, i, j)))],
            out_specs=pl.BlockSpec((bm, bn), in_order(order, lambda i, j, k: (i, j))),
            out_shape=jax.ShapeDtypeStruct((m, n), out),
            scratch_shapes=[pltpu.VMEM((bm, bn), acc)],
            compiler_params=semantics(order, parallel),
        )(x)

    return fn


SUM = (
    kernel("sum/naive", summed(clear=lambda at: at.k < 0)),
    kernel("sum/naive_int32", summed(clear=lambda at: at.k < 0)),
    kernel("sum/cleared_at_second_step", summed(clear=lambda at: at.k == 1)),
    kernel("sum/cleared_under_wrong_axis", summed(clear=lambda at: at.i == 0)),
    kernel("sum/reduction_axis_first", summed(order="kij")),
    kernel("sum/parallel_reduction", summed(parallel="ijk")),
    kernel(
        "sum/bfloat16_accumulator",
        summed(accumulator=lambda dtype: jnp.dtype("bfloat16") if is_float(dtype) else dtype),
    ),
    kernel(
        "sum/skips_nan",
        summed(cast=lambda x, dtype: jnp.where(jnp.isnan(x), 0, x) if is_float(dtype) else x),
    ),
    kernel("sum_narrow/narrow_accumulator", summed(accumulator=lambda dtype: dtype)),
    kernel(
        "sum_narrow/first_term_twice",
        summed(add=lambda acc, x, at: acc + jnp.where(at.k == 0, 2, 1).astype(x.dtype) * x),
    ),
    kernel(
        "sum_narrow/unsigned",
        summed(
            cast=lambda x, dtype: (
                x.astype(dtype)
                if is_float(x.dtype)
                else lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(dtype)
            )
        ),
    ),
)


# ---------------------------------------------------------------------------- matmul


def zero_tail(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    """`block` with zeros beyond the array's `size`."""
    index = step * block.shape[axis] + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def kept(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    """`block` with whatever it holds beyond the array."""
    return block


def tail_times_zero(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    """`block` times 1 inside the array and 0 beyond."""
    index = step * block.shape[axis] + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return block * (index < size).astype(block.dtype)


def tail_by_bfloat16(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    """`zero_tail` with indices in bfloat16."""
    index = step * block.shape[axis] + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(to_bfloat16(index.astype(jnp.float32)) < size, block, jnp.zeros_like(block))


def dot(x: jax.Array, y: jax.Array, axis: int, acc: Any) -> jax.Array:
    """The product of two blocks, contracted over the last axis of x and `axis` of y."""
    return lax.dot_general(x, y, (((1,), (axis,)), ((), ())), preferred_element_type=acc)


def dense(
    *,
    transposed: bool = False,
    out: str | None = None,
    accumulator: Any = jnp.float32,
    in_place: bool = False,
    order: str = "ijk",
    k_blocks: Fn = pl.cdiv,
    x_map: Fn = lambda i, j, k: (i, k),
    y_map: Fn | None = None,
    clear: Fn = lambda at: at.k == 0,
    x_tail: Fn = zero_tail,
    y_tail: Fn = zero_tail,
    before: Fn = lambda x, y, options: (x, y),
    product: Fn = dot,
    add: Fn = lambda acc, term, at, options: acc + term,
    store: Fn = lambda at: at.k == at.last,
    after: Fn = lambda acc, options: acc,
) -> Fn:
    """x (m, k) @ y (k, n), or (n, k) if `transposed`, by blocks.

    `options` are the case's own: an activation, or functions of the operands.
    """
    y_axis = 1 if transposed else 0
    right_map = (lambda i, j, k: (j, k)) if transposed else (lambda i, j, k: (k, j))

    def fn(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int, **options: str) -> jax.Array:
        (m, k), n = x.shape, y.shape[1 - y_axis]
        counts = {"i": pl.cdiv(m, bm), "j": pl.cdiv(n, bn), "k": max(1, k_blocks(k, bk))}

        def body(x_ref: Any, y_ref: Any, o_ref: Any, *scratch: Any) -> None:
            at = At(*(pl.program_id(order.index(a)) for a in "ijk"), counts["k"] - 1)
            acc_ref = o_ref if in_place else scratch[0]

            @pl.when(clear(at))
            def start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

            x_block, y_block = before(x_ref[...], y_ref[...], options)
            x_block = x_tail(x_block, 1, at.k, k)
            y_block = y_tail(y_block, y_axis, at.k, k)
            term = product(x_block, y_block, y_axis, acc_ref.dtype)
            acc_ref[...] = add(acc_ref[...], term, at, options).astype(acc_ref.dtype)

            @pl.when(store(at))
            def write() -> None:
                o_ref[...] = after(acc_ref[...], options).astype(o_ref.dtype)

        y_block = (bn, bk) if transposed else (bk, bn)
        return pl.pallas_call(
            body,
            grid=tuple(counts[a] for a in order),
            in_specs=[
                pl.BlockSpec((bm, bk), in_order(order, x_map)),
                pl.BlockSpec(y_block, in_order(order, y_map or right_map)),
            ],
            out_specs=pl.BlockSpec((bm, bn), in_order(order, lambda i, j, k: (i, j))),
            out_shape=jax.ShapeDtypeStruct((m, n), out or x.dtype),
            scratch_shapes=() if in_place else (pltpu.VMEM((bm, bn), accumulator),),
        )(x, y)

    return fn


def inner_loop(*, chunk: Fn) -> Fn:
    """A grid over the result only; the steps of k are a loop inside the kernel."""

    def fn(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
        (m, k), n = x.shape, y.shape[1]
        width = chunk(k, bk)

        def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
            def step(number: Any, acc: jax.Array) -> jax.Array:
                at = pl.ds(number * width, width)
                return acc + dot(x_ref[:, at], y_ref[at, :], 0, jnp.float32)

            zeros = jnp.zeros((bm, bn), jnp.float32)
            o_ref[...] = lax.fori_loop(0, pl.cdiv(k, width), step, zeros).astype(o_ref.dtype)

        return pl.pallas_call(
            body,
            grid=(pl.cdiv(m, bm), pl.cdiv(n, bn)),
            in_specs=[
                pl.BlockSpec((bm, k), lambda i, j: (i, 0)),
                pl.BlockSpec((k, bn), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        )(x, y)

    return fn


def refuses_without_reason(x: jax.Array, y: jax.Array, **blocks: int) -> jax.Array:
    """Right to refuse, but of no help."""
    raise ValueError("bad input")


def sixteen_bits(x: jax.Array) -> jax.Array:
    """x as 16-bit multiples of one scale, which its largest element sets."""
    scale = jnp.maximum(jnp.max(jnp.abs(jnp.where(jnp.isnan(x), 0, x))), 1e-30) / 2**15
    return jnp.round(x / scale) * scale


def cut_off(x: jax.Array) -> jax.Array:
    """float32 x towards zero, to the next bfloat16."""
    bits = lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(bits, jnp.float32)


MATMUL = (
    kernel("matmul_f32/reduction_axis_first", dense(in_place=True, order="kij")),
    kernel("matmul_f32/y_blocks_swapped", dense(in_place=True, y_map=lambda i, j, k: (j, k))),
    kernel(
        "matmul_f32/bfloat16_operands",
        dense(before=lambda x, y, _: (to_bfloat16(x), to_bfloat16(y))),
    ),
    kernel("matmul_f32/block_scaled", dense(before=lambda x, y, _: (sixteen_bits(x), y))),
    kernel("matmul/bfloat16_accumulator", dense(accumulator=jnp.bfloat16)),
    kernel(
        "matmul/bfloat16_terms",
        dense(product=lambda *operands: to_bfloat16(dot(*operands))),
    ),
    kernel("matmul/tail_kept", dense(x_tail=kept, y_tail=kept)),
    kernel("matmul/tail_times_zero", dense(x_tail=tail_times_zero, y_tail=tail_times_zero)),
    kernel("matmul/tail_of_x_only", dense(y_tail=kept)),
    kernel(
        "matmul/tail_by_bfloat16",
        dense(x_tail=tail_by_bfloat16, y_tail=tail_by_bfloat16),
    ),
    kernel("matmul/loop_overshoots", inner_loop(chunk=lambda k, bk: min(k, bk))),
    kernel("matmul/tail_dropped", dense(k_blocks=lambda k, bk: k // bk)),
    kernel("matmul/stored_at_first_step", dense(store=lambda at: at.k == 0)),
    kernel("matmul/cut_off", dense(after=lambda acc, _: cut_off(acc))),
    kernel("matmul/checks_nothing", dense(), checks_inputs=True),
    kernel("matmul/unhelpful_message", refuses_without_reason, checks_inputs=True),
    kernel(
        "matmul_transpose_rhs/square_forgotten",
        lambda x, y, **blocks: dense(transposed=y.shape[0] != y.shape[1])(x, y, **blocks),
    ),
    kernel(
        "matmul_transpose_rhs/tail_of_other_axis",
        dense(transposed=True, y_tail=lambda block, axis, *rest: zero_tail(block, 0, *rest)),
    ),
)


# ---------------------------------------------------------------------------- fused functions


FUNCTIONS: dict[str, Fn] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "square": jnp.square,
    "tanh": jnp.tanh,
}


def act(acc: jax.Array, options: Any) -> jax.Array:
    """The example's activation."""
    return FUNCTIONS[options["activation"]](acc)


def applied(name: str, block: jax.Array) -> jax.Array:
    """A function of a block, in float32, rounded to the block's dtype."""
    return FUNCTIONS[name](block.astype(jnp.float32)).astype(block.dtype)


def fused(x: jax.Array, y: jax.Array, options: Any) -> tuple[jax.Array, jax.Array]:
    """f of a block of x and g of a block of y."""
    return applied(options["f"], x), applied(options["g"], y)


FUSED = (
    kernel(
        "matmul_activation/every_step",
        dense(add=lambda acc, term, at, options: act(acc + term, options)),
    ),
    kernel(
        "matmul_activation/before_last_step",
        dense(
            add=lambda acc, term, at, options: (
                term + jnp.where((at.k == at.last) & (at.k > 0), act(acc, options), acc)
            )
        ),
    ),
    kernel(
        "matmul_activation/applied_twice",
        dense(after=lambda acc, options: act(act(acc, options), options)),
    ),
    kernel(
        "matmul_activation/rounded_first",
        dense(after=lambda acc, options: act(to_bfloat16(acc), options)),
    ),
    kernel(
        "matmul_activation/erf_gelu",
        dense(after=lambda acc, _: jax.nn.gelu(acc, approximate=False)),
    ),
    kernel("matmul_template/identity_only", dense(transposed=True)),
    kernel(
        "matmul_prologue/functions_swapped",
        dense(before=lambda x, y, o: (applied(o["g"], x), applied(o["f"], y))),
    ),
    kernel(
        "matmul_prologue/bfloat16_functions",
        dense(before=lambda x, y, options: fused(to_bfloat16(x), to_bfloat16(y), options)),
    ),
)


# ---------------------------------------------------------------------------- int8


def int8(**changed: Any) -> Fn:
    """`dense` for int8 operands and int32 results."""
    return dense(out="int32", **({"accumulator": jnp.int32} | changed))


INT8 = (
    kernel("matmul_int8/int16_accumulator", int8(accumulator=jnp.int16)),
    kernel(
        "matmul_int8/no_preferred_type",
        int8(product=lambda x, y, axis, acc: dot(x, y, axis, None).astype(acc)),
    ),
    kernel(
        "matmul_int8/without_the_least",
        int8(before=lambda x, y, _: (jnp.maximum(x, -127), jnp.maximum(y, -127))),
    ),
)


# ---------------------------------------------------------------------------- gradients


def gradients(
    *,
    dx: Fn = lambda x, y, dz: (dz, y),
    dy: Fn = lambda x, y, dz: (x, dz),
    tail: Fn = zero_tail,
) -> Fn:
    """x @ y, dz @ y.T and x.T @ dz; `dx` and `dy` say what is multiplied."""

    def fn(x: Any, y: Any, dz: Any, *, bm: int, bk: int, bn: int) -> tuple[jax.Array, ...]:
        by_n = dense(transposed=True, x_tail=tail, y_tail=tail)
        left, right = dy(x, y, dz)
        return (
            dense()(x, y, bm=bm, bk=bk, bn=bn),
            by_n(*dx(x, y, dz), bm=bm, bk=bn, bn=bk),
            dense()(left.T, right, bm=bk, bk=bm, bn=bn),
        )

    return fn


GRAD = (
    kernel(
        "matmul_grad/x_instead_of_y",
        gradients(dx=lambda x, y, dz: (dz, x if x.shape == y.shape else y)),
    ),
    kernel(
        "matmul_grad/transpose_missing",
        gradients(dy=lambda x, y, dz: (x.T if x.shape == x.T.shape else x, dz)),
    ),
    kernel("matmul_grad/scaled", gradients(dy=lambda x, y, dz: (x, dz * 2))),
    kernel("matmul_grad/cotangent_ignored", gradients(dx=lambda x, y, dz: (jnp.ones_like(dz), y))),
    kernel("matmul_grad/tail_of_n_kept", gradients(tail=kept)),
)


# ---------------------------------------------------------------------------- slices

SLICES = reference("dynamic_slice")


def extents(options: Mapping[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The sizes of a slice and of its blocks, which default to the slice."""
    sizes = (options["size_m"], options["size_n"])
    return sizes, (options.get("bm", sizes[0]), options.get("bn", sizes[1]))


def sliced(
    *,
    copy: Fn = lambda x: x,
    first: Fn = lambda starts, sizes, blocks: starts // blocks,
    x_map: Fn = lambda i, j, first: (first[0] + i, first[1] + j),
) -> Fn:
    """A slice of x by blocks, whose starts are multiples of a block."""

    def fn(x: Any, starts: Any, **options: int) -> jax.Array:
        sizes, blocks = extents(options)

        def body(first_ref: Any, x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = copy(x_ref[...])

        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(sizes[0] // blocks[0], sizes[1] // blocks[1]),
                in_specs=[pl.BlockSpec(blocks, x_map)],
                out_specs=pl.BlockSpec(blocks, lambda i, j, first: (i, j)),
            ),
            out_shape=jax.ShapeDtypeStruct(sizes, x.dtype),
        )(first(starts, jnp.array(sizes), jnp.array(blocks)).astype(jnp.int32), x)

    return fn


def join(first: jax.Array, last: jax.Array, offset: Any, axis: int) -> jax.Array:
    """The block that begins `offset` elements into `first` and ends in `last`."""
    width = first.shape[axis]
    index = lax.broadcasted_iota(jnp.int32, first.shape, axis)
    rolled = [pltpu.roll(block, (width - offset) % width, axis) for block in (first, last)]
    return jnp.where(index < width - offset, *rolled)


def joined(
    *,
    through: Fn = wide,
    offset: Fn = lambda starts, block: starts % block,
    last: Fn = lambda starts, block: (starts + block - 1) // block,
) -> Fn:
    """A slice of x at any start: each block of it from the four that it overlaps."""

    def fn(x: Any, starts: Any, **options: int) -> jax.Array:
        sizes, blocks = extents(options)

        def body(a: Any, b: Any, at: Any, *refs: Any) -> None:
            o_ref = refs[-1]
            corners = [ref[...].astype(through(ref.dtype)) for ref in refs[:-1]]
            left = join(corners[0], corners[2], at[0], 0)
            right = join(corners[1], corners[3], at[0], 0)
            o_ref[...] = join(left, right, at[1], 1).astype(o_ref.dtype)

        block = jnp.array(blocks, jnp.int32)
        return pl.pallas_call(
            body,
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
            out_shape=jax.ShapeDtypeStruct(sizes, x.dtype),
        )(starts // block, last(starts, block), offset(starts, block), x, x, x, x)

    return fn


def rows_checked(x: Any, starts: Any, **sizes: int) -> tuple[Any, jax.Array]:
    """(err, slice), where err knows nothing of the second axis."""
    err, _ = SLICES.block_aligned(x, starts.at[1].set(0), **sizes)
    return err, SLICES.block_aligned(x, starts, **sizes)[1]


SLICE = (
    kernel(
        "dynamic_slice/next_block", sliced(first=lambda starts, sizes, blocks: starts // blocks + 1)
    ),
    kernel(
        "dynamic_slice/axes_swapped",
        sliced(first=lambda starts, sizes, blocks: starts[::-1] // blocks),
    ),
    kernel("dynamic_slice/starts_ignored", sliced(first=lambda starts, sizes, blocks: starts * 0)),
    kernel("dynamic_slice/unsigned_zero", sliced(copy=lambda x: jnp.where(x == 0, 0, x))),
    kernel(
        "dynamic_slice/clamps",
        SLICES.block_aligned,
        finish=lambda checked: checked[1],
        checks_inputs=True,
    ),
    kernel(
        "dynamic_slice/columns_unchecked",
        rows_checked,
        finish=SLICES.finish,
        checks_inputs=True,
    ),
    kernel(
        "dynamic_slice_blocked/divided_by_size",
        sliced(first=lambda starts, sizes, blocks: starts // sizes),
    ),
    kernel(
        "dynamic_slice_blocked/blocks_transposed",
        sliced(x_map=lambda i, j, first: (first[0] + j, first[1] + i)),
    ),
    kernel(
        "dynamic_slice_unaligned/one_too_far",
        joined(offset=lambda starts, block: jnp.where(starts % block > 0, starts % block + 1, 0)),
    ),
    kernel("dynamic_slice_unaligned/through_float32", joined(through=lambda dtype: jnp.float32)),
    kernel(
        "dynamic_slice_unaligned/own_neighbour", joined(last=lambda starts, block: starts // block)
    ),
    kernel(
        "dynamic_slice_unaligned/neighbour_past_the_end",
        joined(last=lambda starts, block: starts // block + 1),
    ),
)


# ---------------------------------------------------------------------------- sparse @ dense

SPARSE = reference("dsd")


def sparse(
    *,
    clear: Fn = lambda rows, step, last: rows[step] != rows[jnp.maximum(step - 1, 0)],
    store: Fn = lambda rows, step, last: rows[step] != rows[jnp.minimum(step + 1, last)],
    add: Fn = lambda acc, term, ends: acc + term,
    accumulator: Any = jnp.float32,
    alias: bool = True,
    parallel: str = "",
) -> Fn:
    """Stored blocks (nnz, bm, bk) @ y (k, n); the accumulator begins and ends with a row."""

    def fn(rows: Any, cols: Any, blocks: Any, y: Any, *, m: int, bn: int) -> jax.Array:
        (nnz, bm, bk), n = blocks.shape, y.shape[1]
        zeros = jnp.zeros((m, pl.cdiv(n, bn) * bn), y.dtype)
        if nnz == 0:
            return zeros[:, :n]

        def body(
            rows: Any, cols: Any, x_ref: Any, y_ref: Any, _: Any, o_ref: Any, acc: Any
        ) -> None:
            step, last = pl.program_id(1), nnz - 1

            @pl.when((step == 0) | clear(rows, step, last))
            def start() -> None:
                acc[...] = jnp.zeros_like(acc)

            term = dot(x_ref[...], y_ref[...], 0, accumulator)
            acc[...] = add(acc[...], term, (step == last) | store(rows, step, last))

            @pl.when((step == last) | store(rows, step, last))
            def write() -> None:
                o_ref[...] = acc[...].astype(o_ref.dtype)

        result = pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(pl.cdiv(n, bn), nnz),
                in_specs=[
                    pl.BlockSpec((None, bm, bk), lambda j, step, rows, cols: (step, 0, 0)),
                    pl.BlockSpec((bk, bn), lambda j, step, rows, cols: (cols[step], j)),
                    pl.BlockSpec(memory_space=pl.ANY),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda j, step, rows, cols: (rows[step], j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), accumulator)],
            ),
            out_shape=jax.ShapeDtypeStruct(zeros.shape, y.dtype),
            input_output_aliases={4: 0} if alias else {},
            compiler_params=semantics("jk", parallel),
        )(rows, cols, blocks, y, zeros)
        return result[:, :n]

    return fn


def densified(rows: Any, cols: Any, blocks: Any, y: Any, *, m: int, bn: int) -> jax.Array:
    """The stored blocks in a matrix of zeros, times y."""
    _, bm, bk = blocks.shape
    k = y.shape[0]
    x = jnp.zeros((m // bm, k // bk, bm, bk), y.dtype).at[rows, cols].set(blocks)
    return dense()(x.swapaxes(1, 2).reshape(m, k), y, bm=bm, bk=k, bn=bn)


def sorted_columns(rows: Any, cols: Any, blocks: Any, y: Any, **_: int) -> tuple[Any, ...]:
    """Sorts the columns of each row, but not its blocks."""
    return rows, cols[np.lexsort((cols, rows))], blocks, y


def any_order(rows: Any, cols: Any, blocks: Any, y: Any, **options: int) -> tuple[Any, ...]:
    """All the checks but that of the order of the rows."""
    SPARSE.prepare(np.sort(rows), cols, blocks, y, **options)
    return rows, cols, blocks, y


DSD = (
    kernel(
        "dsd/reads_past_the_indices",
        sparse(store=lambda rows, step, last: rows[step] != rows[jnp.minimum(step + 1, last + 1)]),
    ),
    kernel("dsd/empty_rows_unwritten", sparse(alias=False)),
    kernel("dsd/rows_run_together", sparse(clear=lambda rows, step, last: step < 0)),
    kernel(
        "dsd/last_block_of_row_dropped",
        sparse(add=lambda acc, term, ends: jnp.where(ends, acc, acc + term)),
    ),
    kernel("dsd/bfloat16_accumulator", sparse(accumulator=jnp.bfloat16)),
    kernel("dsd/columns_put_in_order", sparse(), prepare=sorted_columns),
    kernel("dsd/parallel_blocks", sparse(parallel="jk")),
    kernel("dsd/times_zeros", densified),
    kernel("dsd/takes_unsorted_rows", sparse(), prepare=any_order, checks_inputs=True),
)


# ---------------------------------------------------------------------------- masked matmul

MASKED = reference("masked_matmul")


def published_mask(
    mask: Any, bm: int, bn: int, *, key: Fn = str, padded: bool = True
) -> tuple[Any, ...]:
    """The guide's sparsify_mask: loops that start one past the end, blocks told apart by `key`.

    The maps have a margin, which stands for JAX's habit of dropping writes out of bounds.
    """
    mask = (np.asarray(mask) != 0).astype(np.int32)
    if padded:
        mask = np.pad(mask, ((0, -mask.shape[0] % bm), (0, -mask.shape[1] % bn)))
    rows, cols = mask.shape[0] // bm, mask.shape[1] // bn
    maps = np.zeros((4, rows + 1, cols + 1), np.int32)
    types: list[Any] = []
    data = []
    held = (0, rows - 1, cols - 1)
    for i in range(rows, -1, -1):
        for j in range(cols, -1, -1):
            block = mask[i * bm : (i + 1) * bm, j * bn : (j + 1) * bn]
            if block.any():
                if key(block) not in types:
                    types.append(key(block))
                    data.append(block)
                held = (types.index(key(block)), i, j)
            maps[:, i, j] = (block.any(), *held)
    return *maps[:, :rows, :cols], np.stack(data or [np.zeros((bm, bn), np.int32)])


def sparsified(**changed: Any) -> Fn:
    """The host stage with the guide's `sparsify_mask`."""

    def prepare(x: Any, y: Any, mask: Any, *, bm: int, bk: int, bn: int) -> tuple[Any, ...]:
        return x, y, *published_mask(mask, bm, bn, **changed)

    return prepare


def first_mask_only(x: Any, y: Any, mask: Any, **blocks: int) -> tuple[Any, ...]:
    """Every block is told to use the first mask block."""
    x, y, block_mask, prefetch_mask, *rest = MASKED.prepare(x, y, mask, **blocks)
    return x, y, block_mask, prefetch_mask * 0, *rest


def empty_mask(x: Any, y: Any, mask: Any, **blocks: int) -> tuple[Any, ...]:
    """One more mask block, of zeros, for all that is skipped."""
    x, y, block_mask, prefetch_mask, i, j, data = MASKED.prepare(x, y, mask, **blocks)
    stored = np.concatenate([data, np.zeros_like(data[:1])])
    return x, y, block_mask, np.where(block_mask, prefetch_mask, len(data)), i, j, stored


def ones_only(x: Any, y: Any, mask: Any, **blocks: int) -> tuple[Any, ...]:
    """Takes the mask to be true where it is 1."""
    return MASKED.prepare(x, y, np.asarray(mask == 1), **blocks)


def masked(
    *,
    x_map: Fn | None = None,
    y_map: Fn | None = None,
    clear: Fn = lambda step, computed: step == 0,
    select: Fn = lambda mask, acc: jnp.where(mask != 0, acc, 0.0),
) -> Fn:
    """where(mask, x @ y, 0) for the arguments that the reference's `prepare` makes."""

    def fn(x: Any, y: Any, *maps_and_data: Any, bm: int, bk: int, bn: int) -> jax.Array:
        (m, k), n = x.shape, y.shape[1]
        grid = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))

        def held(i: Any, j: Any, step: Any, *maps: Any) -> Any:
            return MASKED.fetched_k(i, j, step, *maps, last=grid[2] - 1)

        def body(block_mask: Any, *refs: Any) -> None:
            x_ref, y_ref, mask_ref, o_ref, acc = refs[3:]
            i, j, step = (pl.program_id(axis) for axis in range(3))
            computed = block_mask[i, j] != 0

            @pl.when(clear(step, computed))
            def start() -> None:
                acc[...] = jnp.zeros_like(acc)

            @pl.when(computed)
            def accumulate() -> None:
                x_block = zero_tail(x_ref[...], 1, step, k)
                acc[...] += dot(x_block, zero_tail(y_ref[...], 0, step, k), 0, jnp.float32)

            @pl.when(step == grid[2] - 1)
            def store() -> None:
                o_ref[...] = select(mask_ref[...], acc[...]).astype(o_ref.dtype)

        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=4,
                grid=grid,
                in_specs=[
                    pl.BlockSpec(
                        (bm, bk),
                        x_map
                        or (lambda i, j, step, *maps: (maps[2][i, j], held(i, j, step, *maps))),
                    ),
                    pl.BlockSpec(
                        (bk, bn),
                        y_map
                        or (lambda i, j, step, *maps: (held(i, j, step, *maps), maps[3][i, j])),
                    ),
                    pl.BlockSpec((None, bm, bn), lambda i, j, step, *maps: (maps[1][i, j], 0, 0)),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda i, j, step, *maps: (i, j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            ),
            out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        )(*maps_and_data[:4], x, y, maps_and_data[4])

    return fn


OPERANDS = ("x", "y", "mask")


MASK = (
    kernel("masked_matmul/masks_compared_as_printed", masked(), prepare=sparsified()),
    kernel(
        "masked_matmul/published_listing",
        masked(),
        prepare=sparsified(key=np.ndarray.tobytes, padded=False),
    ),
    kernel(
        "masked_matmul/last_block_fetched",
        masked(),
        prepare=sparsified(key=np.ndarray.tobytes),
        operands=OPERANDS,
    ),
    kernel(
        "masked_matmul/fetches_for_nothing",
        masked(
            x_map=lambda i, j, step, *maps: (i, step), y_map=lambda i, j, step, *maps: (step, j)
        ),
        prepare=MASKED.prepare,
        operands=OPERANDS,
    ),
    kernel("masked_matmul/empty_mask_fetched", masked(), prepare=empty_mask, operands=OPERANDS),
    kernel(
        "masked_matmul/times_mask",
        masked(select=lambda mask, acc: mask * acc),
        prepare=MASKED.prepare,
    ),
    kernel("masked_matmul/first_mask_only", masked(), prepare=first_mask_only),
    kernel(
        "masked_matmul/partial_blocks_kept",
        masked(select=lambda mask, acc: acc),
        prepare=MASKED.prepare,
    ),
    kernel(
        "masked_matmul/skipped_blocks_stale",
        masked(clear=lambda step, computed: (step == 0) & computed),
        prepare=MASKED.prepare,
    ),
    kernel("masked_matmul/ones_only", masked(), prepare=ones_only),
)


# ---------------------------------------------------------------------------- grouped matmul

GROUPED = reference("grouped_matmul")
Plan = tuple[Any, ...]


def grouped(
    *,
    sizes: Fn = lambda sizes, m: sizes,
    plan: Fn = lambda plan, groups: plan,
    accumulator: Any = None,
    tail: Fn = zero_tail,
    clear: Fn = lambda visit, step: step == 0,
    select: Fn = lambda mine, acc, old: jnp.where(mine, acc, old),
) -> Fn:
    """Rows of group g @ rhs[g], for the visits that the reference plans.

    `sizes` changes what the plan is made from, `plan` the plan itself: blocks, owners, matrices,
    bounds.
    """

    def fn(lhs: Any, rhs: Any, group_sizes: Any, *, bm: int, bk: int, bn: int) -> jax.Array:
        (m, k), (groups, _, n) = lhs.shape, rhs.shape
        bm, bk, bn = min(bm, m), min(bk, k), min(bn, n)
        planned = plan(GROUPED.plan_visits(sizes(group_sizes, m), m, bm), groups)
        out = lhs.dtype if is_float(lhs.dtype) else jnp.int32
        acc_type = accumulator or (jnp.float32 if is_float(lhs.dtype) else jnp.int32)

        def body(blocks: Any, owners: Any, _: Any, bounds: Any, *refs: Any) -> None:
            lhs_ref, rhs_ref, o_ref, acc = refs
            visit, step = pl.program_id(1), pl.program_id(2)
            owner = owners[visit]

            @pl.when(clear(visit, step))
            def start() -> None:
                acc[...] = jnp.zeros_like(acc)

            @pl.when(owner < groups)
            def accumulate() -> None:
                x, y = tail(lhs_ref[...], 1, step, k), tail(rhs_ref[...], 0, step, k)
                acc[...] += dot(x, y, 0, wide(lhs.dtype)).astype(acc.dtype)

            @pl.when(step == pl.cdiv(k, bk) - 1)
            def store() -> None:
                row = blocks[visit] * bm + lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
                mine = (row >= bounds[owner]) & (row < bounds[owner + 1])
                values = (ref[...].astype(wide(lhs.dtype)) for ref in (acc, o_ref))
                o_ref[...] = select(mine, *values).astype(o_ref.dtype)

        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=4,
                grid=(pl.cdiv(n, bn), planned[0].shape[0], pl.cdiv(k, bk)),
                in_specs=[
                    pl.BlockSpec((bm, bk), lambda j, visit, step, *plan: (plan[0][visit], step)),
                    pl.BlockSpec(
                        (None, bk, bn), lambda j, visit, step, *plan: (plan[2][visit], step, j)
                    ),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda j, visit, step, *plan: (plan[0][visit], j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), acc_type)],
            ),
            out_shape=jax.ShapeDtypeStruct((m, n), out),
        )(*planned, lhs, rhs)

    return fn


def ends_later(plan: Plan, groups: int) -> Plan:
    """Each group but the last begins, and the one before it ends, a row too late."""
    blocks, owners, matrices, bounds = plan
    inside = jnp.arange(bounds.shape[0])
    return blocks, owners, matrices, bounds + ((inside > 0) & (inside < groups)).astype(jnp.int32)


def rest_unwritten(plan: Plan, groups: int) -> Plan:
    """Nobody owns the rows behind the last group."""
    return *plan[:3], plan[3].at[groups + 1].set(plan[3][groups])


def matrix_of_first(plan: Plan, groups: int) -> Plan:
    """A block of rows is multiplied by the matrix of the group that begins it."""
    blocks, owners, matrices, bounds = plan
    first = jnp.argmax(blocks[None, :] == blocks[:, None], axis=1)
    return blocks, owners, matrices[first], bounds


def one_visit_less(plan: Plan, groups: int) -> Plan:
    """Room for the groups, but not for the rows behind them."""
    return *(part[:-1] for part in plan[:3]), plan[3]


def last_takes_rest(sizes: Any, m: int) -> Any:
    """The last group has the rows behind it too."""
    return sizes.at[-1].add(m - jnp.sum(sizes))


def empty_to_the_end(sizes: Any, m: int) -> Any:
    """Groups with rows move up to the place of empty ones."""
    return sizes[jnp.argsort(sizes == 0, stable=True)]


def any_sizes(lhs: Any, rhs: Any, sizes: Any, **blocks: int) -> Plan:
    """All the checks but those of the values of group_sizes."""
    GROUPED.prepare(lhs, rhs, np.maximum(sizes, 0) // 8, **blocks)
    return lhs, rhs, sizes


def group_by_group(lhs: Any, rhs: Any, sizes: Any, **blocks: int) -> jax.Array:
    """A dense product for each group, of which the rows of other groups are zeros."""
    out = jnp.dtype("float32" if is_float(lhs.dtype) else "int32")
    product = dense(out=out.name, accumulator=out)
    ends, row = jnp.cumsum(sizes), jnp.arange(lhs.shape[0])[:, None]
    total = jnp.zeros((lhs.shape[0], rhs.shape[2]), out)
    for group in range(rhs.shape[0]):
        mine = (row >= ends[group] - sizes[group]) & (row < ends[group])
        total += product(jnp.where(mine, lhs, 0).astype(lhs.dtype), rhs[group], **blocks)
    return total.astype(lhs.dtype if is_float(lhs.dtype) else out)


GROUPS = (
    kernel("grouped_matmul/ends_one_row_later", grouped(plan=ends_later)),
    kernel("grouped_matmul/empty_groups_left_out", grouped(sizes=empty_to_the_end)),
    kernel("grouped_matmul/rest_unwritten", grouped(plan=rest_unwritten)),
    kernel("grouped_matmul/last_group_takes_the_rest", grouped(sizes=last_takes_rest)),
    kernel("grouped_matmul/matrix_of_first_group", grouped(plan=matrix_of_first)),
    kernel("grouped_matmul/one_visit_less", grouped(plan=one_visit_less)),
    kernel("grouped_matmul/whole_blocks_stored", grouped(select=lambda mine, acc, old: acc)),
    kernel(
        "grouped_matmul/earlier_groups_erased",
        grouped(select=lambda mine, acc, old: jnp.where(mine, acc, 0)),
    ),
    kernel("grouped_matmul/bfloat16_accumulator", grouped(accumulator=jnp.bfloat16)),
    kernel("grouped_matmul/tail_kept", grouped(tail=kept)),
    kernel(
        "grouped_matmul/cleared_once",
        grouped(clear=lambda visit, step: (visit == 0) & (step == 0)),
    ),
    kernel("grouped_matmul/takes_any_sizes", grouped(), prepare=any_sizes, checks_inputs=True),
)


# ---------------------------------------------------------------------------- attention

MINUS = -0.7 * float(jnp.finfo(jnp.float32).max)


class Pair(NamedTuple):
    """Positions of queries and keys, (bq, bk), and what is known of all of them."""

    query: Any
    key: Any
    first_query: Any
    t: int
    s: int
    window: int


def by_position(mask: str, at: Pair) -> Any:
    """Whether a causal or local mask leaves the key to the query."""
    causal = at.key <= at.query
    if mask == "none":
        return at.key >= 0
    return causal & (at.key >= at.query - at.window) if mask == "local" else causal


def flash(
    *,
    allowed: Fn = by_position,
    inside: Fn = lambda at: at.key < at.s,
    scaled: Fn = lambda q, k, scale: scale * dot(q, k, 1, jnp.float32),
    prepared: Fn = lambda q, scale: (q, scale),
    head: Fn = lambda i, h, hkv: i // (h // hkv),
    mask_map: Fn = lambda n, i, j: (n, i, j),
    mask_out: Fn = lambda logits, allowed: jnp.where(allowed, logits, MINUS),
    exp: Fn = jnp.exp,
    largest: Fn = lambda old, block: jnp.maximum(old, block),
    weigh: Fn = lambda weights, allowed: jnp.where(allowed, weights, 0.0),
    rescale_sum: Fn = lambda total, factor: factor * total,
    rescale_acc: Fn = lambda acc, factor: factor * acc,
    rounded: Fn = lambda value: value,
    v_tail: Fn = zero_tail,
    visits: Fn = lambda i, j, bq, bk: j >= 0,
    divided: Fn = lambda acc, total: acc / jnp.where(total > 0, total, 1.0),
    whole: bool = False,
) -> Fn:
    """softmax(scale * q @ k.T) @ v in one pass over blocks of keys, or over one block if `whole`.

    Given a mask as a fourth array, that; else one by position.
    """

    def fn(
        q: Any, k: Any, v: Any, *masks: Any, bq: int, bk: int, scale: float, **options: Any
    ) -> jax.Array:
        (b, h, t, d), (_, hkv, s, _) = q.shape, k.shape
        bq, bk = min(bq, t), s if whole else min(bk, s)
        q, scale = prepared(q, scale)

        def body(q_ref: Any, k_ref: Any, v_ref: Any, *refs: Any) -> None:
            *mask_ref, o_ref, m, total, acc = refs
            i, j = pl.program_id(2), pl.program_id(3)

            @pl.when(j == 0)
            def start() -> None:
                m[...] = jnp.full_like(m, MINUS)
                total[...] = jnp.zeros_like(total)
                acc[...] = jnp.zeros_like(acc)

            @pl.when(visits(i, j, bq, bk))
            def add() -> None:
                query = i * bq + lax.broadcasted_iota(jnp.int32, (bq, bk), 0)
                key = j * bk + lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
                at = Pair(query, key, i * bq, t, s, options.get("window", 0))
                given = mask_ref[0][...] != 0 if mask_ref else allowed(options["mask"], at)
                left = given & inside(at)
                logits = mask_out(rounded(scaled(q_ref[...], k_ref[...], scale)), left)
                top = largest(m[...], jnp.max(logits, axis=1, keepdims=True))
                weights = weigh(exp(logits - top), left)
                factor = exp(m[...] - top)
                block = jnp.sum(weights, axis=1, keepdims=True)
                total[...] = rescale_sum(total[...], factor) + block
                values = v_tail(v_ref[...], 0, j, s)
                product = dot(weights.astype(values.dtype), values, 0, jnp.float32)
                acc[...] = rescale_acc(acc[...], factor) + product
                m[...] = top

            @pl.when(j == pl.cdiv(s, bk) - 1)
            def store() -> None:
                o_ref[...] = divided(acc[...], total[...]).astype(o_ref.dtype)

        queries = pl.BlockSpec((None, None, bq, d), lambda n, i, block, j: (n, i, block, 0))
        keys = pl.BlockSpec((None, None, bk, d), lambda n, i, block, j: (n, head(i, h, hkv), j, 0))
        given = [
            pl.BlockSpec((None, bq, bk), lambda n, i, block, j: mask_map(n, block, j))
            for _ in masks
        ]
        return pl.pallas_call(
            body,
            grid=(b, h, pl.cdiv(t, bq), pl.cdiv(s, bk)),
            in_specs=[queries, keys, keys, *given],
            out_specs=queries,
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            scratch_shapes=[pltpu.VMEM((bq, width), jnp.float32) for width in (1, 1, d)],
        )(q, k, v, *(mask.astype(jnp.int32) for mask in masks))

    return fn


def ruled(*, causal: Fn = lambda at: at.key <= at.query, local: Fn | None = None) -> Fn:
    """Another causal mask, or another local one."""

    def allowed(mask: str, at: Pair) -> Any:
        if mask == "local" and local is not None:
            return local(at)
        window = at.key >= at.query - at.window if mask == "local" else at.key >= 0
        return causal(at) & window if mask != "none" else window

    return allowed


def scaled_first(q: Any, scale: float) -> tuple[Any, float]:
    """The scale applied to q, in its dtype."""
    return (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0


# exp2 of base-2 logits, as the hardware has it.
LOG2E = 1.4426950408889634


ATTENTION = (
    kernel(
        "attention/causal_without_itself", flash(allowed=ruled(causal=lambda at: at.key < at.query))
    ),
    kernel(
        "attention/causal_one_too_far",
        flash(allowed=ruled(causal=lambda at: at.key <= at.query + 1)),
    ),
    kernel(
        "attention/causal_by_first_query",
        flash(allowed=ruled(causal=lambda at: at.key <= at.first_query)),
    ),
    kernel(
        "attention/causal_from_the_end",
        flash(allowed=ruled(causal=lambda at: at.key <= at.query + at.s - at.t)),
    ),
    kernel(
        "attention/query_block_forgotten",
        flash(allowed=ruled(causal=lambda at: at.key <= at.query - at.first_query)),
    ),
    kernel(
        "attention/window_one_wider",
        flash(
            allowed=ruled(
                local=lambda at: (at.key <= at.query) & (at.key > at.query - at.window - 2)
            )
        ),
    ),
    kernel(
        "attention/window_to_both_sides",
        flash(allowed=ruled(local=lambda at: jnp.abs(at.key - at.query) <= at.window)),
    ),
    kernel("attention/causal_ignored", flash(allowed=lambda mask, at: at.key >= 0)),
    kernel(
        "attention/diagonal_block_skipped",
        flash(visits=lambda i, j, bq, bk: (j + 1) * bk <= (i + 1) * bq - 1),
    ),
    kernel("attention/largest_of_block", flash(largest=lambda old, block: block)),
    kernel("attention/largest_not_subtracted", flash(largest=lambda old, block: 0 * block)),
    kernel("attention/sum_not_rescaled", flash(rescale_sum=lambda total, factor: total)),
    kernel("attention/values_not_rescaled", flash(rescale_acc=lambda acc, factor: acc)),
    kernel("attention/last_block_only", flash(rescale_acc=lambda acc, factor: 0 * acc)),
    kernel("attention/heads_interleaved", flash(head=lambda i, h, hkv: i % hkv)),
    kernel("attention/first_head_only", flash(head=lambda i, h, hkv: 0 * i)),
    kernel("attention/empty_rows_nan", flash(divided=lambda acc, total: acc / total)),
    kernel("attention/empty_rows_averaged", flash(weigh=lambda weights, left: weights)),
    kernel(
        "attention/scaled_twice",
        flash(scaled=lambda q, k, scale: scale * scale * dot(q, k, 1, jnp.float32)),
    ),
    kernel("attention/not_scaled", flash(scaled=lambda q, k, scale: dot(q, k, 1, jnp.float32))),
    kernel("attention/tail_of_keys_kept", flash(inside=lambda at: at.key >= 0)),
    kernel("attention/tail_of_values_kept", flash(v_tail=kept)),
    kernel("attention/bfloat16_logits", flash(rounded=to_bfloat16)),
    kernel(
        "attention/bfloat16_values",
        flash(rescale_acc=lambda acc, factor: to_bfloat16(factor * acc)),
    ),
    kernel("attention/not_divided", flash(divided=lambda acc, total: acc)),
    kernel("attention/checks_nothing", flash(), checks_inputs=True),
    kernel("attention_masked/mask_of_first_batch", flash(mask_map=lambda n, i, j: (0, i, j))),
    kernel("attention_masked/mask_of_first_queries", flash(mask_map=lambda n, i, j: (n, 0, j))),
    kernel(
        "attention_masked/minus_ten_thousand",
        flash(mask_out=lambda logits, left: logits + jnp.where(left, 0.0, -1e4)),
    ),
    kernel("attention_masked/empty_rows_nan", flash(divided=lambda acc, total: acc / total)),
    kernel("attention_masked/empty_rows_averaged", flash(weigh=lambda weights, left: weights)),
    kernel("attention_masked/mask_after_softmax", flash(mask_out=lambda logits, left: logits)),
)


# ---------------------------------------------------------------------------- rows

EPSILON = 1e-6


def in_16_bits(x: jax.Array) -> jax.Array:
    """float32 x rounded to bfloat16, by its bits: every compiler takes that and none undoes it."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    odd = lax.shift_right_logical(bits, jnp.uint32(16)) & jnp.uint32(1)
    return cut_off(lax.bitcast_convert_type(bits + jnp.uint32(0x7FFF) + odd, jnp.float32))


def by_rows(body: Fn, x: jax.Array, *vectors: jax.Array, bm: int, blocks: Fn = pl.cdiv) -> Any:
    """`body` of a block of rows in float32 and of (1, n) vectors, rounded to x's dtype."""
    (m, n), count = x.shape, len(vectors)

    def kernel_body(*refs: Any) -> None:
        values = [ref[...].astype(jnp.float32) for ref in refs[:-1]]
        refs[-1][...] = body(*values).astype(x.dtype)

    rows = pl.BlockSpec((bm, n), lambda i: (i, 0))
    return pl.pallas_call(
        kernel_body,
        grid=(max(1, blocks(m, bm)),),
        in_specs=[rows, *(pl.BlockSpec((1, n), lambda i: (0, 0)) for _ in range(count))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, *(v.reshape(1, -1) for v in vectors))


def row_sum(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=1, keepdims=True)


def row_mean(x: jax.Array) -> jax.Array:
    return row_sum(x) / x.shape[1]


def whole_lanes(n: int) -> int:
    """n rounded up to a multiple of 128."""
    return pl.cdiv(n, 128) * 128


def without_nan(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), 0, x)


def normed(
    *,
    before: Fn = lambda x: x,
    mean: Fn = row_mean,
    variance: Fn = lambda x, d: row_mean(d * d),
    over: Fn = lambda d, v: d * lax.rsqrt(v + EPSILON),
    after: Fn = lambda y, scale, offset: y * scale + offset,
    blocks: Fn = pl.cdiv,
) -> Fn:
    """Layer norm by blocks of rows."""

    def body(x: jax.Array, *vectors: jax.Array) -> jax.Array:
        x = before(x)
        d = x - mean(x)
        return after(over(d, variance(x, d)), *vectors)

    return lambda x, *vectors, bm: by_rows(body, x, *vectors, bm=bm, blocks=blocks)


def rms(*, after: Fn = lambda y, scale: y * scale, **parts: Fn) -> Fn:
    """RMS norm by blocks of rows."""
    return normed(after=after, **({"mean": lambda x: 0.0} | parts))


def merged(x: jax.Array, d: jax.Array) -> jax.Array:
    """The variance of two halves of a row, put together."""
    half, n = x.shape[1] // 2, x.shape[1]
    if half == 0:
        return row_mean(d * d)
    parts = (x[:, :half], x[:, half:])
    means = [row_mean(p) for p in parts]
    squares = sum(row_sum(jnp.square(p - mean)) for p, mean in zip(parts, means, strict=True))
    return (squares + jnp.square(means[0] - means[1]) * (half * (n - half) / n)) / n


NORM = (
    kernel("layer_norm/mean_kept", normed(mean=lambda x: 0.0)),
    kernel("layer_norm/one_mean_a_block", normed(mean=jnp.mean)),
    kernel("layer_norm/bfloat16_mean", normed(mean=lambda x: in_16_bits(row_mean(x)))),
    kernel(
        "layer_norm/bfloat16_squares",
        normed(variance=lambda x, d: row_mean(in_16_bits(d * d))),
    ),
    kernel(
        "layer_norm/difference_of_squares",
        normed(variance=lambda x, d: row_mean(x * x) - jnp.square(row_mean(x))),
    ),
    kernel(
        "layer_norm/unbiased",
        normed(variance=lambda x, d: row_sum(d * d) / max(1, d.shape[1] - 1)),
    ),
    kernel(
        "layer_norm/padding_counted",
        normed(variance=lambda x, d: row_sum(d * d) / whole_lanes(d.shape[1])),
    ),
    kernel(
        "layer_norm/epsilon_outside",
        normed(over=lambda d, v: d / (jnp.sqrt(v) + EPSILON)),
    ),
    kernel("layer_norm/deviation_missing_root", normed(over=lambda d, v: d / (v + EPSILON))),
    kernel("layer_norm/offset_scaled", normed(after=lambda y, scale, offset: (y + offset) * scale)),
    kernel(
        "layer_norm/rounded_before_scale",
        normed(after=lambda y, scale, offset: in_16_bits(y) * scale + offset),
    ),
    kernel("layer_norm/skips_nan", normed(before=without_nan)),
    kernel("layer_norm/last_rows_missing", normed(blocks=lambda size, block: size // block)),
    kernel("layer_norm/checks_nothing", normed(), checks_inputs=True),
    kernel("rms_norm/centred", rms(mean=row_mean)),
    kernel("rms_norm/not_the_mean", rms(variance=lambda x, d: row_sum(d * d))),
    kernel("rms_norm/bfloat16_squares", rms(variance=lambda x, d: row_mean(in_16_bits(d * d)))),
    kernel(
        "rms_norm/padding_counted",
        rms(variance=lambda x, d: row_sum(d * d) / whole_lanes(d.shape[1])),
    ),
    kernel("rms_norm/epsilon_outside", rms(over=lambda d, v: d / (jnp.sqrt(v) + EPSILON))),
    kernel("rms_norm/larger_epsilon", rms(over=lambda d, v: d * lax.rsqrt(v + 1e-5))),
    kernel("rms_norm/one_plus_scale", rms(after=lambda y, scale: y * (1 + scale))),
    kernel("rms_norm/skips_nan", rms(before=without_nan)),
    kernel("rms_norm/checks_nothing", rms(), checks_inputs=True),
)


def shares(
    *,
    before: Fn = lambda x: x,
    largest: Fn = lambda x: jnp.max(x, axis=1, keepdims=True),
    exponential: Fn = lambda w: jnp.exp(w),
    total: Fn = lambda e, top: row_sum(e),
    divided: Fn = lambda e, s: e / s,
) -> Fn:
    """Softmax by blocks of rows."""

    def body(x: jax.Array) -> jax.Array:
        x = before(x)
        top = largest(x)
        e = exponential(x - top)
        return divided(e, total(e, top))

    return lambda x, *, bm: by_rows(body, x, bm=bm)


def padded_total(e: jax.Array, top: jax.Array) -> jax.Array:
    """The sum with a zero logit in each lane of padding."""
    return row_sum(e) + (whole_lanes(e.shape[1]) - e.shape[1]) * jnp.exp(-top)


def in_halves(x: jax.Array, *, bm: int) -> jax.Array:
    """Softmax with a running maximum over two halves of a row."""

    def body(x: jax.Array) -> jax.Array:
        half = max(1, x.shape[1] // 2)
        first = jnp.max(x[:, :half], axis=1, keepdims=True)
        top = jnp.max(x, axis=1, keepdims=True)
        # A half that is masked as a whole has no maximum to be relative to.
        base = jnp.where(jnp.isneginf(first), 0.0, first)
        total = row_sum(jnp.exp(x[:, :half] - base)) * jnp.exp(base - top)
        if half < x.shape[1]:
            total += row_sum(jnp.exp(x[:, half:] - top))
        return jnp.exp(x - top) / total

    return by_rows(body, x, bm=bm)


SOFTMAX = (
    kernel("softmax/nothing_subtracted", shares(largest=lambda x: 0.0)),
    kernel("softmax/maximum_of_the_block", shares(largest=jnp.max)),
    kernel(
        "softmax/summed_over_rows",
        shares(total=lambda e, top: jnp.sum(e, axis=0, keepdims=True)),
    ),
    kernel("softmax/padding_counted", shares(total=padded_total)),
    kernel("softmax/bfloat16_exponentials", shares(exponential=lambda w: in_16_bits(jnp.exp(w)))),
    kernel("softmax/bfloat16_sum", shares(total=lambda e, top: in_16_bits(row_sum(e)))),
    kernel(
        "softmax/approximate_reciprocal",
        shares(divided=lambda e, s: e * cut_off(1 / s)),
    ),
    kernel("softmax/masks_leak", shares(before=lambda x: jnp.maximum(x, -20.0))),
    kernel("softmax/skips_nan", shares(before=without_nan)),
    kernel("softmax/checks_nothing", shares(), checks_inputs=True),
)


# ---------------------------------------------------------------------------- gated linear unit

GATES: dict[str, Fn] = {**FUNCTIONS, "sigmoid": jax.nn.sigmoid}


def gated(
    *,
    parts: Fn = lambda w: (w[:, 0], w[:, 1]),
    tail: Fn = zero_tail,
    clear_up: Fn = lambda at: at.k == 0,
    add: Fn = lambda gate, up, terms, f: (gate + terms[0], up + terms[1]),
    after: Fn = lambda gate, up, f: f(gate) * up,
) -> Fn:
    """activation(x @ gate) * (x @ up) for weights (k, 2, n)."""

    def fn(x: Any, weights: Any, *, activation: str, bm: int, bk: int, bn: int) -> jax.Array:
        (m, k), n, f = x.shape, weights.shape[2], GATES[activation]

        def body(x_ref: Any, g_ref: Any, u_ref: Any, o_ref: Any, gate: Any, up: Any) -> None:
            at = At(*(pl.program_id(axis) for axis in range(3)), pl.cdiv(k, bk) - 1)

            @pl.when(at.k == 0)
            def start() -> None:
                gate[...] = jnp.zeros_like(gate)

            @pl.when(clear_up(at))
            def start_up() -> None:
                up[...] = jnp.zeros_like(up)

            x_block = tail(x_ref[...], 1, at.k, k)
            terms = [
                dot(x_block, tail(ref[...], 0, at.k, k), 0, jnp.float32) for ref in (g_ref, u_ref)
            ]
            gate[...], up[...] = add(gate[...], up[...], terms, f)

            @pl.when(at.k == at.last)
            def write() -> None:
                o_ref[...] = after(gate[...], up[...], f).astype(o_ref.dtype)

        w_spec = pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))
        return pl.pallas_call(
            body,
            grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
            in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), w_spec, w_spec],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)] * 2,
        )(x, *parts(weights))

    return fn


def interleaved(w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Columns that alternate between gate and up."""
    pairs = w.reshape(w.shape[0], -1, 2)
    return pairs[..., 0], pairs[..., 1]


def one_product(x: Any, weights: Any, *, activation: str, bm: int, bk: int, bn: int) -> jax.Array:
    """x times both matrices at once; activation and product outside the kernel."""
    k, n = x.shape[1], weights.shape[2]
    both = dense(out="float32")(x, weights.reshape(k, 2 * n), bm=bm, bk=bk, bn=2 * n)
    return (GATES[activation](both[:, :n]) * both[:, n:]).astype(x.dtype)


GATED = (
    kernel("gated_linear_unit/swapped", gated(parts=lambda w: (w[:, 1], w[:, 0]))),
    kernel("gated_linear_unit/interleaved", gated(parts=interleaved)),
    kernel(
        "gated_linear_unit/activation_every_step",
        gated(
            add=lambda gate, up, terms, f: (f(gate + terms[0]), up + terms[1]),
            after=lambda gate, up, f: gate * up,
        ),
    ),
    kernel(
        "gated_linear_unit/product_every_step",
        gated(
            add=lambda gate, up, terms, f: (gate + f(terms[0]) * terms[1], up),
            after=lambda gate, up, f: gate,
        ),
    ),
    kernel(
        "gated_linear_unit/activation_of_the_product",
        gated(after=lambda gate, up, f: f(gate * up)),
    ),
    kernel("gated_linear_unit/identity_only", gated(after=lambda gate, up, f: gate * up)),
    kernel(
        "gated_linear_unit/rounded_first",
        gated(after=lambda gate, up, f: f(in_16_bits(gate)) * in_16_bits(up)),
    ),
    kernel(
        "gated_linear_unit/bfloat16_sums",
        gated(
            add=lambda gate, up, terms, f: (
                in_16_bits(gate + terms[0]),
                in_16_bits(up + terms[1]),
            )
        ),
    ),
    kernel(
        "gated_linear_unit/erf_gelu",
        gated(after=lambda gate, up, f: jax.nn.gelu(gate, approximate=False) * up),
    ),
    kernel(
        "gated_linear_unit/up_cleared_once",
        gated(clear_up=lambda at: (at.i == 0) & (at.j == 0) & (at.k == 0)),
    ),
    kernel("gated_linear_unit/tail_kept", gated(tail=kept)),
    kernel("gated_linear_unit/checks_nothing", gated(), checks_inputs=True),
)


# ---------------------------------------------------------------------------- cross entropy


def reduced(losses: jax.Array, reduction: str) -> jax.Array:
    return jnp.sum(losses) / (losses.size if reduction == "mean" else 1)


def cross_entropy(
    *,
    rows: Fn = lambda b, bb: b,
    logits: Fn = lambda z: z,
    beyond: float = -jnp.inf,
    column: Fn = lambda block, width, index: block * width + index,
    largest: Fn = jnp.maximum,
    rescaled: Fn = lambda total, old, new: total * jnp.exp(old - new),
    loss: Fn = lambda lse, picked: lse - picked,
    reduce: Fn = lambda losses, reduction, v: reduced(losses, reduction),
) -> Fn:
    """The loss of softmax(x @ weights) by blocks of logits, each made at once.

    `rows` says how many rows of losses are kept.
    """

    def fn(x: Any, labels: Any, w: Any, *, reduction: str, bb: int, bh: int, bv: int) -> jax.Array:
        (b, h), v = x.shape, w.shape[1]

        def body(x_ref: Any, label: Any, w_ref: Any, o_ref: Any, *scratch: Any) -> None:
            top, total, picked = scratch
            block = pl.program_id(1)

            @pl.when(block == 0)
            def start() -> None:
                top[...] = jnp.full_like(top, -jnp.inf)
                total[...] = jnp.zeros_like(total)
                picked[...] = jnp.zeros_like(picked)

            z = logits(dot(x_ref[...], w_ref[...], 0, jnp.float32))
            index = lax.broadcasted_iota(jnp.int32, z.shape, 1)
            z = jnp.where(block * bv + index < v, z, beyond)
            new = largest(top[...], jnp.max(z, axis=1, keepdims=True))
            total[...] = rescaled(total[...], top[...], new) + row_sum(jnp.exp(z - new))
            top[...] = new
            picked[...] += row_sum(jnp.where(column(block, bv, index) == label[...], z, 0.0))

            @pl.when(block == pl.num_programs(1) - 1)
            def write() -> None:
                o_ref[...] = loss(top[...] + jnp.log(total[...]), picked[...])

        row = pl.BlockSpec((bb, 1), lambda i, j: (i, 0))
        losses = pl.pallas_call(
            body,
            grid=(pl.cdiv(b, bb), pl.cdiv(v, bv)),
            in_specs=[
                pl.BlockSpec((bb, h), lambda i, j: (i, 0)),
                row,
                pl.BlockSpec((h, bv), lambda i, j: (0, j)),
            ],
            out_specs=row,
            out_shape=jax.ShapeDtypeStruct((rows(b, bb), 1), jnp.float32),
            scratch_shapes=[pltpu.VMEM((bb, 1), jnp.float32)] * 3,
        )(x, labels[:, None], w)
        return reduce(losses, reduction, v)

    return fn


ENTROPY = tuple(
    kernel(f"linear_softmax_cross_entropy/{name}", fn, **stages)
    for name, fn, stages in (
        ("nothing_subtracted", cross_entropy(largest=lambda old, new: 0.0 * old), {}),
        ("not_rescaled", cross_entropy(rescaled=lambda total, old, new: total), {}),
        ("padding_counted", cross_entropy(beyond=0.0), {}),
        ("rows_past_the_end", cross_entropy(rows=lambda b, bb: pl.cdiv(b, bb) * bb), {}),
        (
            "column_within_the_block",
            cross_entropy(column=lambda block, width, index: index),
            {},
        ),
        ("bfloat16_logits", cross_entropy(logits=in_16_bits), {}),
        ("negative", cross_entropy(loss=lambda lse, picked: picked - lse), {}),
        ("label_forgotten", cross_entropy(loss=lambda lse, picked: lse), {}),
        (
            "always_the_sum",
            cross_entropy(reduce=lambda losses, reduction, v: jnp.sum(losses)),
            {},
        ),
        (
            "mean_over_the_vocabulary",
            cross_entropy(
                reduce=lambda losses, reduction, v: (
                    jnp.sum(losses) / (v if reduction == "mean" else 1)
                )
            ),
            {},
        ),
        ("checks_nothing", cross_entropy(), {"checks_inputs": True}),
    )
)


# ---------------------------------------------------------------------------- right, but odd


def reversed_k(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """Visits the blocks of k from the last to the first."""
    last = pl.cdiv(x.shape[1], bk) - 1
    turned = dense(
        x_map=lambda i, j, k: (i, last - k),
        y_map=lambda i, j, k: (last - k, j),
        x_tail=lambda block, axis, step, size: zero_tail(block, axis, last - step, size),
        y_tail=lambda block, axis, step, size: zero_tail(block, axis, last - step, size),
    )
    return turned(x, y, bm=bm, bk=bk, bn=bn)


def whole(x: jax.Array, y: jax.Array) -> jax.Array:
    """One block, whatever blocks the example asks for."""
    (m, k), n = x.shape, y.shape[1]
    return dense()(x, y, bm=m, bk=k, bn=n)


def two_halves(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """Even and odd steps of k have accumulators of their own."""
    (m, k), n = x.shape, y.shape[1]
    counts = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc: Any) -> None:
        step = pl.program_id(2)

        @pl.when(step == 0)
        def clear() -> None:
            acc[...] = jnp.zeros_like(acc)

        term = dot(
            zero_tail(x_ref[...], 1, step, k), zero_tail(y_ref[...], 0, step, k), 0, acc.dtype
        )
        acc[step % 2] += term

        @pl.when(step == counts[2] - 1)
        def store() -> None:
            o_ref[...] = (acc[0] + acc[1]).astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=counts,
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
            pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, step: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((2, bm, bn), jnp.float32)],
    )(x, y)


def select_after(x: Any, y: Any, mask: Any, *, bm: int, bk: int, bn: int) -> jax.Array:
    """The whole product, then the select: dense fetches, and no operands declared."""
    product = dense(out="float32")(x, y, bm=bm, bk=bk, bn=bn)
    return jnp.where(mask != 0, product, 0).astype(x.dtype)


def at_once(x: jax.Array) -> jax.Array:
    """The sum in one step, in whatever order jnp.sum likes."""
    out = x.dtype if is_float(x.dtype) else wide(x.dtype)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sum(x_ref[...].astype(wide(x.dtype)), axis=0).astype(out)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape[1:], out))(x)


def no_kernel(x: jax.Array, y: jax.Array) -> jax.Array:
    """Right, but no kernel at all: the run must say so."""
    return (widen(x) + widen(y)).astype(x.dtype)


def folded(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    """Layer norm as one product and one sum an element."""
    mean = row_mean(x)
    rstd = lax.rsqrt(row_mean(jnp.square(x - mean)) + EPSILON)
    return x * (rstd * scale) + (offset - mean * rstd * scale)


LOG2_E = 1.4426950408889634


CONTROLS = (
    kernel("add/copied", copied()),
    kernel("sum/at_once", at_once),
    kernel("matmul/reversed_k", reversed_k),
    kernel("matmul/columns_first", dense(order="jik")),
    kernel("matmul/whole", whole),
    kernel("matmul/inner_loop", inner_loop(chunk=lambda k, bk: k if k % bk else bk)),
    kernel("matmul/two_halves", two_halves),
    kernel(
        "matmul_transpose_rhs/transposed_outside", lambda x, y, **blocks: dense()(x, y.T, **blocks)
    ),
    kernel("matmul_activation/stored_every_step", dense(after=act, store=lambda at: at.k >= 0)),
    kernel("matmul_template/epilogue", dense(transposed=True, after=act)),
    kernel("matmul_prologue/prologue", dense(before=fused)),
    kernel("matmul_int8/float32_accumulator", int8(accumulator=jnp.float32)),
    kernel("matmul_grad/three_kernels", gradients()),
    kernel("dynamic_slice/unchecked", sliced()),
    kernel("dynamic_slice_unaligned/joined", joined()),
    kernel("dsd/sequential", sparse()),
    kernel("masked_matmul/select_after", select_after),
    kernel("grouped_matmul/group_by_group", group_by_group),
    kernel("attention/whole_keys", flash(whole=True)),
    kernel("attention/scaled_first", flash(prepared=scaled_first)),
    kernel(
        "attention/to_the_base_two",
        flash(prepared=lambda q, scale: (q, scale * LOG2E), exp=jnp.exp2),
    ),
    kernel("attention_masked/sequential", flash()),
    kernel("layer_norm/merged_halves", normed(variance=merged)),
    kernel(
        "layer_norm/mean_folded_into_the_offset",
        lambda x, scale, offset, *, bm: by_rows(folded, x, scale, offset, bm=bm),
    ),
    kernel("rms_norm/divided", rms(over=lambda d, v: d / jnp.sqrt(v + EPSILON))),
    kernel("softmax/in_halves", in_halves),
    kernel("softmax/in_powers_of_two", shares(exponential=lambda w: jnp.exp2(w * LOG2_E))),
    kernel("gated_linear_unit/one_product", one_product),
    kernel("linear_softmax_cross_entropy/whole_h", cross_entropy()),
)

# Right, but no kernel: only the end of a run can tell.
NO_KERNEL = kernel("add/no_kernel", no_kernel)

KERNELS = (
    *(*ADD, *SUM, *MATMUL, *FUSED, *INT8, *GRAD, *SLICE, *DSD, *MASK),
    *(*GROUPS, *ATTENTION),
    *(*NORM, *SOFTMAX, *GATED, *ENTROPY),
    *CONTROLS,
    NO_KERNEL,
)
