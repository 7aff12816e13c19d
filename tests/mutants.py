"""Kernels that are wrong in one known way, and odd ones that are right: they test the judge.

A subject like any other (`pytest --subject tests/mutants.py`), except that most of its kernels
must fail. The builders below make a right kernel of one pattern; a mutant changes one keyword.
`MUTANTS` says of each what is wrong, which input kinds must condemn it, and which modes are known
to miss it. `CONTROLS` must pass: right kernels of a form that no reference kernel has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

MODES = ("interpret", "tpu-interpret")
# What the HLO interpreter cannot see: it has one core, no DMA, and runs a grid's steps on whole
# arrays.
HLO_MISSES = ("interpret",)

Params = Mapping[str, Any]
Fn = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong kernel.

    Attributes:
      defect: what is wrong with it.
      by: input kinds each of which must condemn it on some example; "negative" stands for the
        case's negative examples.
      survives: modes that miss it: there, no example may fail.
      shows: the points where the defect makes a difference.
      says: regular expression that a verdict, "STATUS: why", must match.
    """

    kernel: Kernel
    defect: str
    by: tuple[str, ...]
    survives: tuple[str, ...]
    shows: Callable[[Params], Any]
    says: str

    @property
    def killed_in(self) -> tuple[str, ...]:
        """The modes that must condemn it."""
        return tuple(mode for mode in MODES if mode not in self.survives)


def mutant(
    name: str,
    fn: Fn,
    defect: str,
    *,
    by: str,
    survives: tuple[str, ...] = (),
    shows: Callable[[Params], Any] = lambda p: True,
    says: str = "^WRONG",
    **stages: Any,
) -> Mutant:
    """A row of MUTANTS: `name` is "case/kernel", `by` a list of kinds with commas."""
    case, _, kernel = name.partition("/")
    return Mutant(
        kernel=Kernel(case=case, name=kernel, fn=fn, **stages),
        defect=defect,
        by=tuple(by.split(", ")),
        survives=survives,
        shows=shows,
        says=says,
    )


def control(name: str, fn: Fn, **stages: Any) -> Kernel:
    """A row of CONTROLS."""
    case, _, kernel = name.partition("/")
    return Kernel(case=case, name=kernel, fn=fn, **stages)


def reference(case: str) -> Any:
    """The module that holds the reference kernels of a case; nothing imports it by name."""
    kernels = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).kernels
    return sys.modules[next(k.fn.__module__ for k in kernels if k.case == case)]


def ragged(*dims: str) -> Callable[[Params], bool]:
    """Points where a block does not divide one of the dimensions."""
    return lambda p: any(p[d] % p[f"b{d}"] for d in dims)


def several(*dims: str) -> Callable[[Params], bool]:
    """Points with more than one block along each of the dimensions."""
    return lambda p: all(p[d] > p[f"b{d}"] for d in dims)


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


# ---------------------------------------------------------------------------- add


def widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32 if is_float(x.dtype) else jnp.int32)


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
    exact = widen(x) + widen(y)
    near = exact.astype(dtype)
    if not is_float(dtype) or near.dtype == exact.dtype:
        return near
    bits = lax.bitcast_convert_type(near, f"uint{8 * near.dtype.itemsize}")
    shorter = lax.bitcast_convert_type(bits - 1, near.dtype)
    return jnp.where(jnp.abs(widen(near)) > jnp.abs(exact), shorter, near)


def saturated(x: jax.Array, y: jax.Array, dtype: Any) -> jax.Array:
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


def copied(*, waits: int = 1, signals: int = 0) -> Fn:
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
    padding = [(0, most - size) for most, size in zip(LARGEST, x.shape, strict=True)]
    padded = [jnp.pad(a.astype(jnp.float32), padding) for a in (x, y)]
    return BUILT(*padded)[: x.shape[0], : x.shape[1]].astype(x.dtype)


def raises(x: jax.Array, y: jax.Array) -> jax.Array:
    raise NotImplementedError("no vector layout for this kernel")


def whole_blocks(x: jax.Array, y: jax.Array, *, bm: int, bn: int) -> jax.Array:
    """x + y without dropping what the last blocks hold beyond the array."""
    padding = [(0, -x.shape[0] % bm), (0, -x.shape[1] % bn)]
    return tiles()(jnp.pad(x, padding), jnp.pad(y, padding), bm=bm, bn=bn)


def several_tiles(p: Params) -> bool:
    return p["m"] > p["bm"] or p["n"] > p["bn"]


def narrow_integer(p: Params) -> bool:
    return p["dtype"] in ("int8", "int16", "uint8", "uint16")


ADD = (
    mutant(
        "add/towards_zero",
        tiles(towards_zero),
        "cuts off the bits that a narrow float cannot hold instead of rounding",
        by="normal",
        shows=lambda p: p["dtype"] == "bfloat16" or p["dtype"].startswith("float8"),
    ),
    mutant(
        "add/saturates",
        tiles(saturated),
        "narrow integers stop at their limits instead of wrapping",
        by="exact",
        shows=narrow_integer,
    ),
    mutant(
        "add/bfloat16_operands",
        tiles(
            lambda x, y, dtype: (widen(x).astype(jnp.bfloat16) + widen(y).astype(jnp.bfloat16))
            .astype(dtype)
            if dtype == jnp.float32
            else (widen(x) + widen(y)).astype(dtype)
        ),
        "adds float32 in bfloat16; small integers do not show it",
        by="normal, wide",
        shows=lambda p: p["dtype"] == "float32",
    ),
    mutant(
        "add/y_blocks_swapped",
        tiles(y_map=lambda i, j: (j, i)),
        "takes block (j, i) of y where (i, j) belongs",
        by="exact, position, normal",
        shows=several_tiles,
    ),
    mutant(
        "add/y_block_pinned",
        tiles(y_map=lambda i, j: (0, j)),
        "takes y's first row of blocks everywhere",
        by="position",
        shows=several("m"),
    ),
    mutant(
        "add/last_blocks_missing",
        tiles(blocks=lambda size, block: size // block),
        "the grid is rounded down: the ragged last blocks are never visited",
        by="exact, normal",
        shows=lambda p: ragged("m", "n")(p) and several_tiles(p),
    ),
    mutant(
        "add/output_pinned",
        tiles(o_map=lambda i, j: (0, j)),
        "every row of blocks is written over the first",
        by="exact, normal",
        shows=several("m"),
    ),
    mutant(
        "add/writes_every_other_block",
        tiles(writes=lambda i, j: (i + j) % 2 == 0),
        "leaves every other block of the output unwritten",
        by="exact, normal",
        shows=several_tiles,
    ),
    mutant(
        "add/float32_out",
        tiles(out="float32"),
        "returns float32 whatever it is given",
        by="exact",
        shows=lambda p: p["dtype"] != "float32",
        says="dtype float32, expected",
    ),
    mutant(
        "add/whole_blocks_out",
        whole_blocks,
        "returns the padding of its last blocks as well",
        by="exact",
        shows=ragged("m", "n"),
        says="shape .* expected",
    ),
    mutant(
        "add/shared_output",
        shared_output,
        "cores that run in parallel write into one output block",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=several("m"),
        says="WRONG: race",
    ),
    mutant(
        "add/dma_wait_missing",
        copied(waits=0),
        "reads what a copy has not brought yet",
        by="exact, normal",
        survives=HLO_MISSES,
        says="nan|semaphore",
    ),
    mutant(
        "add/dma_wait_twice",
        copied(waits=2),
        "waits for a second copy that nobody started",
        by="exact",
        survives=HLO_MISSES,
        says="^TIMEOUT",
    ),
    mutant(
        "add/semaphore_left",
        copied(signals=1),
        "ends with a semaphore that nobody waited for",
        by="exact",
        survives=HLO_MISSES,
        says="semaphore was left signalled",
    ),
    mutant(
        "add/raises",
        raises,
        "raises while it is traced",
        by="exact",
        says="^REJECTED: NotImplementedError: no vector layout",
    ),
    mutant(
        "add/built_at_import",
        built_at_import,
        "calls pallas_call when it is imported, where no interpreter can be chosen",
        by="exact",
        says="^REJECTED: .*call pl.pallas_call inside fn",
    ),
)


# ---------------------------------------------------------------------------- sum


class At(NamedTuple):
    """A grid step: the block of each dimension, and the last block of the contracted one."""

    i: Any
    j: Any
    k: Any
    last: Any


def in_order(order: str, names: str, mapping: Fn) -> Fn:
    """An index map over a grid whose axes stand in another order than the map's arguments."""
    return lambda *point: mapping(*(point[order.index(name)] for name in names))


def semantics(order: str, parallel: str) -> Any:
    return pltpu.CompilerParams(
        dimension_semantics=tuple("parallel" if a in parallel else "arbitrary" for a in order)
    )


def wide(dtype: Any) -> Any:
    return jnp.dtype({"bfloat16": "float32", "int8": "int32", "int16": "int32"}.get(dtype.name, dtype))


def summed(
    *,
    order: str = "ijk",
    parallel: str = "",
    accumulator: Fn = wide,
    clear: Fn = lambda at: at.k == 0,
    add: Fn = lambda acc, x, at: acc + x,
    cast: Fn = lambda x, dtype: x.astype(dtype),
    terms: Fn = lambda b: b,
) -> Fn:
    """x (b, m, n) summed over b: in the output block if it has the accumulator's dtype."""

    def fn(x: jax.Array, *, bm: int, bn: int) -> jax.Array:
        b, m, n = x.shape
        out = x.dtype if is_float(x.dtype) else wide(x.dtype)
        acc = accumulator(x.dtype)
        sizes = {"i": pl.cdiv(m, bm), "j": pl.cdiv(n, bn), "k": max(1, terms(b))}

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
            in_specs=[
                pl.BlockSpec((None, bm, bn), in_order(order, "ijk", lambda i, j, k: (k, i, j)))
            ],
            out_specs=pl.BlockSpec((bm, bn), in_order(order, "ijk", lambda i, j, k: (i, j))),
            out_shape=jax.ShapeDtypeStruct((m, n), out),
            scratch_shapes=[pltpu.VMEM((bm, bn), acc)],
            compiler_params=semantics(order, parallel),
        )(x)

    return fn


def many_terms(p: Params) -> bool:
    return p["b"] > 1


def many_tiles_and_terms(p: Params) -> bool:
    return p["b"] > 1 and several_tiles(p)


SUM = (
    mutant(
        "sum/naive",
        summed(clear=lambda at: at.k < 0),
        "the guide's naive_sum: adds to a block that nobody cleared",
        by="exact, position, normal",
        shows=lambda p: p["dtype"] in ("float32", "int32"),
    ),
    mutant(
        "sum/naive_unsigned",
        summed(clear=lambda at: at.k < 0),
        "the same for unsigned numbers, where the HLO interpreter's memory happens to be zero",
        by="exact",
        shows=lambda p: p["dtype"] == "uint32",
    ),
    mutant(
        "sum/cleared_at_second_step",
        summed(clear=lambda at: at.k == 1),
        "clears the accumulator one step too late",
        by="exact",
    ),
    mutant(
        "sum/cleared_under_wrong_axis",
        summed(clear=lambda at: at.i == 0),
        "clears in every step of the first row of blocks, and in no other row",
        by="exact, position",
        shows=many_tiles_and_terms,
    ),
    mutant(
        "sum/reduction_axis_first",
        summed(order="kij"),
        "comes back to an output block that has been written out: the pipeline does not reload it",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=many_tiles_and_terms,
    ),
    mutant(
        "sum/reduction_axis_middle",
        summed(order="ikj"),
        "the same with the reduction in the middle of the grid",
        by="exact",
        survives=HLO_MISSES,
        shows=lambda p: p["b"] > 1 and p["n"] > p["bn"],
    ),
    mutant(
        "sum/parallel_reduction",
        summed(parallel="ijk"),
        "lets several cores add to one block",
        by="exact",
        survives=HLO_MISSES,
        shows=many_terms,
        says="WRONG: race",
    ),
    mutant(
        "sum/last_term_missing",
        summed(terms=lambda b: b - 1),
        "stops one term early",
        by="exact, position, normal",
        shows=many_terms,
    ),
    mutant(
        "sum/bfloat16_accumulator",
        summed(accumulator=lambda dtype: jnp.dtype("bfloat16") if is_float(dtype) else dtype),
        "adds up in bfloat16",
        by="exact, normal",
        shows=lambda p: p["b"] > 1 and p["dtype"] == "float32",
    ),
    mutant(
        "sum_narrow/narrow_accumulator",
        summed(accumulator=lambda dtype: dtype),
        "adds up in the dtype of the terms",
        by="exact",
        shows=many_terms,
    ),
    mutant(
        "sum_narrow/first_term_twice",
        summed(add=lambda acc, x, at: acc + jnp.where(at.k == 0, 2, 1).astype(x.dtype) * x),
        "starts from the first term and then adds it",
        by="exact, position",
    ),
    mutant(
        "sum_narrow/unsigned",
        summed(
            cast=lambda x, dtype: x.astype(dtype)
            if is_float(x.dtype)
            else lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(dtype)
        ),
        "widens signed integers without their sign",
        by="exact",
        shows=lambda p: p["dtype"].startswith("int"),
    ),
)


# ---------------------------------------------------------------------------- matmul


def zero_tail(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    """`block` with zeros beyond the array's `size`."""
    index = step * block.shape[axis] + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return jnp.where(index < size, block, jnp.zeros_like(block))


def kept(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    return block


def tail_times_zero(block: jax.Array, axis: int, step: Any, size: int) -> jax.Array:
    index = step * block.shape[axis] + lax.broadcasted_iota(jnp.int32, block.shape, axis)
    return block * (index < size).astype(block.dtype)


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
    parallel: str = "",
    k_blocks: Fn = pl.cdiv,
    x_map: Fn = lambda i, j, k: (i, k),
    y_map: Fn | None = None,
    o_map: Fn = lambda i, j, k: (i, j),
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
    named = "jk" if transposed else "kj"
    y_index = y_map or (lambda i, j, k: tuple({"j": j, "k": k}[a] for a in named))

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
                pl.BlockSpec((bm, bk), in_order(order, "ijk", x_map)),
                pl.BlockSpec(y_block, in_order(order, "ijk", y_index)),
            ],
            out_specs=pl.BlockSpec((bm, bn), in_order(order, "ijk", o_map)),
            out_shape=jax.ShapeDtypeStruct((m, n), out or x.dtype),
            scratch_shapes=() if in_place else (pltpu.VMEM((bm, bn), accumulator),),
            compiler_params=semantics(order, parallel),
        )(x, y)

    return fn


def steps(p: Params) -> bool:
    return p["k"] > p["bk"]


MATMUL = (
    mutant(
        "matmul_f32/never_cleared",
        dense(in_place=True, clear=lambda at: at.k < 0),
        "adds to an output block that nobody cleared",
        by="exact, normal",
    ),
    mutant(
        "matmul_f32/cleared_under_wrong_axis",
        dense(in_place=True, clear=lambda at: at.j == 0),
        "clears in every step of the first column of blocks, and in no other column",
        by="exact, normal",
        shows=lambda p: steps(p) or p["n"] > p["bn"],
    ),
    mutant(
        "matmul_f32/reduction_axis_first",
        dense(in_place=True, order="kij"),
        "comes back to an output block that has been written out: the pipeline does not reload it",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=lambda p: steps(p) and several_tiles(p),
    ),
    mutant(
        "matmul_f32/parallel_reduction",
        dense(in_place=True, parallel="ijk"),
        "lets several cores add to one block",
        by="exact",
        survives=HLO_MISSES,
        shows=steps,
        says="WRONG: race",
    ),
    mutant(
        "matmul_f32/y_blocks_swapped",
        dense(in_place=True, y_map=lambda i, j, k: (j, k)),
        "takes block (j, k) of y where (k, j) belongs",
        by="exact, position, normal",
        shows=lambda p: steps(p) or p["n"] > p["bn"],
    ),
    mutant(
        "matmul_f32/bfloat16_operands",
        dense(before=lambda x, y, _: (x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))),
        "rounds float32 operands to bfloat16, which no interpreter does; integers do not show it",
        by="normal, cancel, wide",
    ),
    mutant(
        "matmul/bfloat16_accumulator",
        dense(accumulator=jnp.bfloat16),
        "adds up in bfloat16",
        by="exact, position",
        shows=lambda p: steps(p) and not p["dtype"].startswith("float8"),
    ),
    mutant(
        "matmul/bfloat16_terms",
        dense(product=lambda x, y, axis, acc: dot(x, y, axis, jnp.bfloat16).astype(acc)),
        "rounds the product of each step of k to bfloat16 before it adds it in float32",
        by="exact, position, normal",
        shows=lambda p: p["k"] >= 16 * p["bk"],
    ),
    mutant(
        "matmul/tail_kept",
        dense(x_tail=kept, y_tail=kept),
        "multiplies what the last block of k holds beyond the array",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_times_zero",
        dense(x_tail=tail_times_zero, y_tail=tail_times_zero),
        "multiplies the tail of k by zero, and 0 * NaN is NaN",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_of_x_only",
        dense(y_tail=kept),
        "clears the tail of k in x only",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_of_y_only",
        dense(x_tail=kept),
        "clears the tail of k in y only",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_dropped",
        dense(k_blocks=lambda k, bk: k // bk),
        "rounds the number of steps down: the ragged end of k is left out",
        by="exact, position, normal",
        shows=lambda p: ragged("k")(p) and steps(p),
    ),
    mutant(
        "matmul/stored_at_first_step",
        dense(store=lambda at: at.k == 0),
        "writes the accumulator out before it is complete",
        by="exact, position, normal",
        shows=steps,
    ),
    mutant(
        "matmul/output_pinned",
        dense(o_map=lambda i, j, k: (0, j)),
        "every row of blocks is written over the first; the rest is never written",
        by="exact, normal",
        shows=several("m"),
    ),
    mutant(
        "matmul/checks_nothing",
        dense(),
        "takes operands and blocks that its contract refuses",
        by="negative",
        checks_inputs=True,
    ),
    mutant(
        "matmul_transpose_rhs/square_forgotten",
        lambda x, y, **blocks: dense(transposed=y.shape[0] != y.shape[1])(x, y, **blocks),
        "forgets the transpose where the shapes do not ask for it",
        by="exact, position",
        shows=lambda p: p["n"] == p["k"] > 1,
    ),
    mutant(
        "matmul_transpose_rhs/square_blocks_forgotten",
        dense(
            transposed=True,
            product=lambda x, y, axis, acc: dot(x, y, int(y.shape[0] != y.shape[1]), acc),
        ),
        "forgets to transpose inside a square block",
        by="exact, position, normal",
        shows=lambda p: p["bn"] == p["bk"] and p["n"] == p["k"],
    ),
    mutant(
        "matmul_transpose_rhs/y_blocks_swapped",
        dense(transposed=True, y_map=lambda i, j, k: (k, j)),
        "takes block (k, j) of y where (j, k) belongs",
        by="exact, position",
        shows=lambda p: p["k"] > p["bk"] or p["n"] > p["bn"],
    ),
    mutant(
        "matmul_transpose_rhs/tail_of_other_axis",
        dense(transposed=True, y_tail=lambda block, axis, *rest: zero_tail(block, 0, *rest)),
        "clears rows of y where it should clear the tail of k",
        by="exact",
        shows=ragged("k"),
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
    return FUNCTIONS[options["activation"]](acc)


def applied(name: str, block: jax.Array) -> jax.Array:
    return FUNCTIONS[name](block.astype(jnp.float32)).astype(block.dtype)


def fused(x: jax.Array, y: jax.Array, options: Any) -> tuple[jax.Array, jax.Array]:
    return applied(options["f"], x), applied(options["g"], y)


def smooth(p: Params) -> bool:
    return p["activation"] in ("gelu", "silu")


FUSED = (
    mutant(
        "matmul_activation/every_step",
        dense(add=lambda acc, term, at, options: act(acc + term, options)),
        "applies the activation to every partial sum",
        by="exact, normal, cancel",
        shows=steps,
    ),
    mutant(
        "matmul_activation/before_last_step",
        dense(
            add=lambda acc, term, at, options: term
            + jnp.where((at.k == at.last) & (at.k > 0), act(acc, options), acc)
        ),
        "applies the activation one step too early",
        by="exact, normal",
        shows=steps,
    ),
    mutant(
        "matmul_activation/applied_twice",
        dense(after=lambda acc, options: act(act(acc, options), options)),
        "applies the activation twice",
        by="exact, normal",
        shows=smooth,
    ),
    mutant(
        "matmul_activation/never_applied",
        dense(),
        "leaves the activation out",
        by="exact, normal",
    ),
    mutant(
        "matmul_activation/rounded_first",
        dense(after=lambda acc, options: act(acc.astype(jnp.bfloat16), options)),
        "rounds the sum to bfloat16 before the activation",
        by="normal",
        shows=smooth,
    ),
    mutant(
        "matmul_template/identity_only",
        dense(transposed=True),
        "ignores the activation",
        by="exact, normal",
        shows=lambda p: p["activation"] != "identity",
    ),
    mutant(
        "matmul_template/square_forgotten",
        lambda x, y, **options: dense(transposed=y.shape[0] != y.shape[1], after=act)(
            x, y, **options
        ),
        "forgets the transpose where the shapes do not ask for it",
        by="exact, position",
        shows=lambda p: p["n"] == p["k"] > 1,
    ),
    mutant(
        "matmul_template/activation_of_terms",
        dense(transposed=True, add=lambda acc, term, at, options: acc + act(term, options)),
        "applies the activation to the product of every step",
        by="exact, normal",
        shows=lambda p: steps(p) and p["activation"] != "identity",
    ),
    mutant(
        "matmul_prologue/functions_swapped",
        dense(before=lambda x, y, o: (applied(o["g"], x), applied(o["f"], y))),
        "applies f to y and g to x",
        by="exact, normal",
        shows=lambda p: p["f"] != p["g"],
    ),
    mutant(
        "matmul_prologue/y_untouched",
        dense(before=lambda x, y, o: (applied(o["f"], x), y)),
        "ignores g",
        by="normal",
        shows=lambda p: p["g"] != "identity",
    ),
    mutant(
        "matmul_prologue/after_the_product",
        dense(after=lambda acc, o: FUNCTIONS[o["f"]](acc)),
        "applies f to the product instead of x",
        by="normal",
        shows=lambda p: p["f"] != "identity",
    ),
    mutant(
        "matmul_prologue/bfloat16_functions",
        dense(
            before=lambda x, y, o: tuple(
                FUNCTIONS[o[name]](a.astype(jnp.bfloat16)).astype(a.dtype)
                for name, a in (("f", x), ("g", y))
            )
        ),
        "computes f and g in bfloat16",
        by="normal, cancel",
        shows=lambda p: p["dtype"] == "float32",
    ),
)


# ---------------------------------------------------------------------------- int8


def int8(**changed: Any) -> Fn:
    return dense(out="int32", **({"accumulator": jnp.int32} | changed))


INT8 = (
    mutant(
        "matmul_int8/int8_accumulator",
        int8(accumulator=jnp.int8),
        "adds up in int8, which wraps",
        by="exact, position",
    ),
    mutant(
        "matmul_int8/int16_accumulator",
        int8(accumulator=jnp.int16),
        "adds up in int16, which wraps",
        by="exact",
        shows=lambda p: p["k"] >= 100,
    ),
    mutant(
        "matmul_int8/no_preferred_type",
        int8(product=lambda x, y, axis, acc: dot(x, y, axis, None).astype(acc)),
        "leaves preferred_element_type out: each product wraps in int8",
        by="exact, position",
    ),
    mutant(
        "matmul_int8/bfloat16_terms",
        int8(
            product=lambda x, y, axis, acc: dot(
                x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), axis, jnp.bfloat16
            ).astype(acc)
        ),
        "multiplies in bfloat16 and rounds each product to it",
        by="exact",
        shows=lambda p: p["k"] >= 100,
    ),
    mutant(
        "matmul_int8/unsigned",
        int8(before=lambda x, y, _: (x, lax.bitcast_convert_type(y, jnp.uint8).astype(jnp.int32))),
        "reads y without its sign",
        by="exact",
    ),
    mutant(
        "matmul_int8/without_the_least",
        int8(before=lambda x, y, _: (jnp.maximum(x, -127), jnp.maximum(y, -127))),
        "takes -128 for -127",
        by="exact",
    ),
)


# ---------------------------------------------------------------------------- gradients


def gradients(
    *,
    dx: Fn = lambda x, y, dz: (dz, y),
    dy: Fn = lambda x, y, dz: (x, dz),
    results: Fn = lambda z, dx, dy: (z, dx, dy),
    tail: Fn = zero_tail,
) -> Fn:
    """x @ y, dz @ y.T and x.T @ dz; `dx` and `dy` say what is multiplied."""

    def fn(x: Any, y: Any, dz: Any, *, bm: int, bk: int, bn: int) -> tuple[jax.Array, ...]:
        z = dense()(x, y, bm=bm, bk=bk, bn=bn)
        by_n = dense(transposed=True, x_tail=tail, y_tail=tail)
        by_m = dense()
        left, right = dy(x, y, dz)
        return results(
            z,
            by_n(*dx(x, y, dz), bm=bm, bk=bn, bn=bk),
            by_m(left.T, right, bm=bk, bk=bm, bn=bn),
        )

    return fn


def square(p: Params) -> bool:
    return p["m"] == p["k"] == p["n"] > 1


GRAD = (
    mutant(
        "matmul_grad/x_instead_of_y",
        gradients(dx=lambda x, y, dz: (dz, x if x.shape == y.shape else y)),
        "multiplies dz by x where y belongs, if their shapes allow it",
        by="exact, position",
        shows=square,
    ),
    mutant(
        "matmul_grad/transpose_missing",
        gradients(dy=lambda x, y, dz: (x.T if x.shape == x.T.shape else x, dz)),
        "forgets to transpose x, if its shape allows it",
        by="exact, position",
        shows=square,
    ),
    mutant(
        "matmul_grad/scaled",
        gradients(dy=lambda x, y, dz: (x, dz * 2)),
        "one gradient is twice too large",
        by="exact, normal",
    ),
    mutant(
        "matmul_grad/cotangent_ignored",
        gradients(dx=lambda x, y, dz: (jnp.ones_like(dz), y)),
        "takes dz for ones",
        by="exact, normal",
    ),
    mutant(
        "matmul_grad/tail_of_n_kept",
        gradients(tail=kept),
        "multiplies what the last block of n holds beyond the array",
        by="exact, normal",
        shows=ragged("n"),
    ),
    mutant(
        "matmul_grad/results_swapped",
        gradients(results=lambda z, dx, dy: (z, dy, dx)),
        "returns dy before dx",
        by="exact",
        says="result 1",
    ),
    mutant(
        "matmul_grad/value_left_out",
        gradients(results=lambda z, dx, dy: (dx, dy)),
        "returns the gradients without the value",
        by="exact",
        says="2 results, expected 3",
    ),
)


# ---------------------------------------------------------------------------- slices

SLICES = reference("dynamic_slice")
Pair = tuple[int, int]


def sliced(
    *,
    first: Fn = lambda starts, sizes, blocks: starts // blocks,
    x_map: Fn = lambda i, j, first: (first[0] + i, first[1] + j),
) -> Fn:
    """A slice of x by blocks, whose starts are multiples of a block."""

    def fn(
        x: Any, starts: Any, *, size_m: int, size_n: int, bm: int | None = None,
        bn: int | None = None,
    ) -> jax.Array:
        sizes, blocks = (size_m, size_n), (bm or size_m, bn or size_n)

        def body(first_ref: Any, x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...]

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
    offset: Fn = lambda starts, block: starts % block,
    last: Fn = lambda starts, block: (starts + block - 1) // block,
    join: Fn = join,
) -> Fn:
    """A slice of x at any start: each block of it from the four that it overlaps."""

    def fn(
        x: Any, starts: Any, *, size_m: int, size_n: int, bm: int | None = None,
        bn: int | None = None,
    ) -> jax.Array:
        sizes, blocks = (size_m, size_n), (bm or size_m, bn or size_n)

        def body(a: Any, b: Any, at: Any, *refs: Any) -> None:
            o_ref = refs[-1]
            wide = jnp.float32 if is_float(o_ref.dtype) else jnp.int32
            corners = [ref[...].astype(wide) for ref in refs[:-1]]
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


def inside(p: Params) -> bool:
    """Starts inside a block along some axis."""
    return p["start_m"] % p["bm"] > 0 or p["start_n"] % p["bn"] > 0


def moved(p: Params) -> bool:
    return p["start_m"] > 0 or p["start_n"] > 0


SLICE = (
    mutant(
        "dynamic_slice/next_block",
        sliced(first=lambda starts, sizes, blocks: starts // blocks + 1),
        "takes the block after the right one",
        by="position, normal",
    ),
    mutant(
        "dynamic_slice/axes_swapped",
        sliced(first=lambda starts, sizes, blocks: starts[::-1] // blocks),
        "takes the start of each axis for the other's",
        by="position",
        shows=lambda p: moved(p) and p["start_m"] != p["start_n"],
    ),
    mutant(
        "dynamic_slice/starts_ignored",
        sliced(first=lambda starts, sizes, blocks: starts * 0),
        "always takes the first block",
        by="position",
        shows=moved,
    ),
    mutant(
        "dynamic_slice/clamps",
        SLICES.block_aligned,
        "moves bad starts into range instead of raising",
        by="negative",
        finish=lambda checked: checked[1],
        checks_inputs=True,
        says="accepted, but",
    ),
    mutant(
        "dynamic_slice_blocked/divided_by_size",
        sliced(first=lambda starts, sizes, blocks: starts // sizes),
        "the guide's index: counts starts in slices, not in blocks",
        by="position",
        shows=lambda p: any(p[f"start_{d}"] // p[f"size_{d}"] != p[f"start_{d}"] // p[f"b{d}"]
                            for d in "mn"),
    ),
    mutant(
        "dynamic_slice_blocked/first_block_repeated",
        sliced(x_map=lambda i, j, first: (first[0], first[1])),
        "fills the slice with its first block",
        by="position",
        shows=lambda p: p["size_m"] > p["bm"] or p["size_n"] > p["bn"],
    ),
    mutant(
        "dynamic_slice_blocked/blocks_transposed",
        sliced(x_map=lambda i, j, first: (first[0] + j, first[1] + i)),
        "walks the blocks of x by columns and those of the slice by rows",
        by="position",
        shows=lambda p: p["size_m"] > p["bm"] or p["size_n"] > p["bn"],
    ),
    mutant(
        "dynamic_slice_unaligned/rounded_down",
        joined(offset=lambda starts, block: starts * 0),
        "starts at the beginning of the block",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/one_too_far",
        joined(offset=lambda starts, block: jnp.where(starts % block > 0, starts % block + 1, 0)),
        "rotates by one element too many",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/rotated_back",
        joined(
            join=lambda first, last, offset, axis: jnp.where(
                lax.broadcasted_iota(jnp.int32, first.shape, axis) < first.shape[axis] - offset,
                pltpu.roll(first, offset, axis),
                pltpu.roll(last, offset, axis),
            )
        ),
        "rotates the wrong way",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/own_neighbour",
        joined(last=lambda starts, block: starts // block),
        "ends every block in the block it begins in",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/neighbour_past_the_end",
        joined(last=lambda starts, block: starts // block + 1),
        "fetches a neighbour for an aligned start too, and so past the end of x",
        by="position",
        survives=HLO_MISSES,
        shows=lambda p: any(
            p[f"start_{d}"] % p[f"b{d}"] == 0 and p[f"start_{d}"] + p[f"size_{d}"] == p[d]
            for d in "mn"
        ),
        says="(?s)^WRONG.*[Oo]ut.of.bounds",
    ),
)


# ---------------------------------------------------------------------------- sparse @ dense

SPARSE = reference("dsd")


def sparse(
    *,
    clear: Fn = lambda rows, step, last: rows[step] != rows[jnp.maximum(step - 1, 0)],
    store: Fn = lambda rows, step, last: rows[step] != rows[jnp.minimum(step + 1, last)],
    y_map: Fn = lambda j, step, rows, cols: (cols[step], j),
    add: Fn = lambda acc, term, last: acc + term,
    alias: bool = True,
    parallel: str = "",
) -> Fn:
    """Stored blocks (nnz, bm, bk) @ y (k, n); the accumulator begins and ends with a row."""

    def fn(rows: Any, cols: Any, blocks: Any, y: Any, *, m: int, bn: int) -> jax.Array:
        (nnz, bm, bk), n = blocks.shape, y.shape[1]
        zeros = jnp.zeros((m, pl.cdiv(n, bn) * bn), y.dtype)
        if nnz == 0:
            return zeros[:, :n]

        def body(rows: Any, cols: Any, x_ref: Any, y_ref: Any, _: Any, o_ref: Any, acc: Any) -> None:
            step, last = pl.program_id(1), nnz - 1

            @pl.when((step == 0) | clear(rows, step, last))
            def start() -> None:
                acc[...] = jnp.zeros_like(acc)

            term = dot(x_ref[...], y_ref[...], 0, jnp.float32)
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
                    pl.BlockSpec((bk, bn), y_map),
                    pl.BlockSpec(memory_space=pl.ANY),
                ],
                out_specs=pl.BlockSpec((bm, bn), lambda j, step, rows, cols: (rows[step], j)),
                scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
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


def takes_anything(rows: Any, cols: Any, blocks: Any, y: Any, **_: int) -> tuple[Any, ...]:
    return rows, cols, blocks, y


def stores(p: Params) -> bool:
    return p["pattern"] != "none"


def full_rows(p: Params) -> bool:
    return p["pattern"] in ("full", "random") and p["m"] > p["bm"] and p["k"] > p["bk"]


DSD = (
    mutant(
        "dsd/reads_past_the_indices",
        sparse(store=lambda rows, step, last: rows[step] != rows[jnp.minimum(step + 1, last + 1)]),
        "the guide's listing: the last step reads one past the end of indices_i",
        by="exact",
        survives=HLO_MISSES,
        shows=stores,
        says="(?s)^WRONG.*[Oo]ut.of.bounds",
    ),
    mutant(
        "dsd/empty_rows_unwritten",
        sparse(alias=False),
        "without the alias nobody writes the rows that store nothing",
        by="exact, normal",
        shows=lambda p: p["pattern"] in ("gaps", "last") and p["m"] > p["bm"],
    ),
    mutant(
        "dsd/rows_run_together",
        sparse(clear=lambda rows, step, last: step < 0),
        "does not clear the accumulator where the row changes",
        by="exact, normal",
        shows=lambda p: stores(p) and p["m"] > p["bm"] and p["pattern"] not in ("last",),
    ),
    mutant(
        "dsd/last_block_of_row_dropped",
        sparse(add=lambda acc, term, ends: jnp.where(ends, acc, acc + term)),
        "stores a row before its last block is added",
        by="exact, normal",
        shows=stores,
    ),
    mutant(
        "dsd/y_by_step",
        sparse(y_map=lambda j, step, rows, cols: (step, j)),
        "takes the blocks of y in order, whatever their indices",
        by="exact, position",
        shows=full_rows,
    ),
    mutant(
        "dsd/y_by_row",
        sparse(y_map=lambda j, step, rows, cols: (rows[step], j)),
        "looks y up under the row index",
        by="exact, position",
        shows=full_rows,
    ),
    mutant(
        "dsd/parallel_blocks",
        sparse(parallel="jk"),
        "lets several cores share the blocks of a row",
        by="exact",
        survives=HLO_MISSES,
        shows=full_rows,
        says="^WRONG",
    ),
    mutant(
        "dsd/times_zeros",
        densified,
        "multiplies the zeros between the blocks too, and 0 * inf is NaN",
        by="special",
        shows=lambda p: p["pattern"] not in ("full",),
    ),
    mutant(
        "dsd/takes_unsorted_rows",
        sparse(),
        "does not ask whether block rows are in order",
        by="negative",
        prepare=takes_anything,
        checks_inputs=True,
    ),
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
    x, y, block_mask, prefetch_mask, *rest = MASKED.prepare(x, y, mask, **blocks)
    return x, y, block_mask, prefetch_mask * 0, *rest


def masked(
    *,
    x_map: Fn | None = None,
    y_map: Fn | None = None,
    computes: Fn = lambda block_mask, i, j: block_mask[i, j] != 0,
    clear: Fn = lambda step, computed: step == 0,
    select: Fn = lambda mask, acc: jnp.where(mask != 0, acc, 0.0),
) -> Fn:
    """where(mask, x @ y, 0) for the arguments that the reference's `prepare` makes."""

    def fn(x: Any, y: Any, *maps_and_data: Any, bm: int, bk: int, bn: int) -> jax.Array:
        (m, k), n = x.shape, y.shape[1]
        grid = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))

        def held(i: Any, j: Any, step: Any, *maps: Any) -> Any:
            return MASKED.fetched_k(i, j, step, *maps, last=grid[2] - 1)

        def body(block_mask: Any, p_mask: Any, p_i: Any, p_j: Any, *refs: Any) -> None:
            x_ref, y_ref, mask_ref, o_ref, acc = refs
            i, j, step = (pl.program_id(axis) for axis in range(3))
            computed = computes(block_mask, i, j)

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
                        x_map or (lambda i, j, step, *maps: (maps[2][i, j], held(i, j, step, *maps))),
                    ),
                    pl.BlockSpec(
                        (bk, bn),
                        y_map or (lambda i, j, step, *maps: (held(i, j, step, *maps), maps[3][i, j])),
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


def skips(p: Params) -> bool:
    return p["mask"] in ("causal", "local", "blocks", "trailing", "none") and several_tiles(p)


MASK = (
    mutant(
        "masked_matmul/masks_compared_as_printed",
        MASKED.prefetch_maps,
        "the guide's sparsify_mask: str() of a large block shows dots, so unlike blocks look equal",
        by="exact",
        shows=lambda p: p["mask"] == "hole" and p["bm"] * p["bn"] > 1000 and several_tiles(p),
        prepare=sparsified(),
    ),
    mutant(
        "masked_matmul/published_listing",
        MASKED.prefetch_maps,
        "the guide's sparsify_mask on a mask that its blocks do not divide",
        by="exact",
        shows=ragged("m", "n"),
        says="^(REJECTED|WRONG)",
        prepare=sparsified(key=np.ndarray.tobytes, padded=False),
    ),
    mutant(
        "masked_matmul/last_block_fetched",
        MASKED.prefetch_maps,
        "the guide's prefetch maps: after the last computed block they fetch the grid's last",
        by="exact",
        survives=HLO_MISSES,
        shows=lambda p: p["mask"] == "trailing",
        says="values are right, but .* blocks of x",
        prepare=sparsified(key=np.ndarray.tobytes),
        operands=OPERANDS,
    ),
    mutant(
        "masked_matmul/fetches_for_nothing",
        masked(
            x_map=lambda i, j, step, *maps: (i, step), y_map=lambda i, j, step, *maps: (step, j)
        ),
        "skips the arithmetic of empty blocks and fetches their operands all the same",
        by="exact",
        survives=HLO_MISSES,
        shows=skips,
        says="values are right, but .* blocks of [xy]",
        prepare=MASKED.prepare,
        operands=OPERANDS,
    ),
    mutant(
        "masked_matmul/times_mask",
        masked(select=lambda mask, acc: mask * acc),
        "multiplies by the mask, and 0 * NaN is NaN",
        by="special",
        shows=lambda p: p["mask"] in ("causal", "local", "hole"),
        prepare=MASKED.prepare,
    ),
    mutant(
        "masked_matmul/first_mask_only",
        masked(),
        "applies the same mask block everywhere",
        by="exact, position",
        shows=lambda p: p["mask"] in ("causal", "local", "hole") and several_tiles(p),
        prepare=first_mask_only,
    ),
    mutant(
        "masked_matmul/partial_blocks_kept",
        masked(select=lambda mask, acc: acc),
        "keeps all of a block that is true in part",
        by="exact, normal",
        shows=lambda p: p["mask"] in ("causal", "local", "hole"),
        prepare=MASKED.prepare,
    ),
    mutant(
        "masked_matmul/skipped_blocks_stale",
        masked(clear=lambda step, computed: (step == 0) & computed),
        "stores the last computed block again where nothing was computed",
        by="exact, normal",
        shows=skips,
        prepare=MASKED.prepare,
    ),
    mutant(
        "masked_matmul/block_mask_transposed",
        masked(
            computes=lambda block_mask, i, j: block_mask[
                jnp.minimum(j, block_mask.shape[0] - 1), jnp.minimum(i, block_mask.shape[1] - 1)
            ]
            != 0
        ),
        "asks about block (j, i) where it is at (i, j)",
        by="exact",
        shows=lambda p: p["mask"] in ("causal", "trailing") and several_tiles(p),
        prepare=MASKED.prepare,
    ),
    mutant(
        "masked_matmul/x_not_held",
        masked(x_map=lambda i, j, step, *maps: (maps[2][i, j], step)),
        "holds the row of x over skipped blocks, but walks along it",
        by="exact",
        survives=HLO_MISSES,
        shows=lambda p: skips(p) and steps(p),
        says="values are right, but .* blocks of x",
        prepare=MASKED.prepare,
        operands=OPERANDS,
    ),
)


# ---------------------------------------------------------------------------- right, but odd


def backwards(p_map: Fn) -> Fn:
    return p_map


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


def inner_loop(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """A grid over the result only; the steps of k are a loop inside the kernel."""
    (m, k), n = x.shape, y.shape[1]
    chunk = bk if k % bk == 0 else k

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def step(number: Any, acc: jax.Array) -> jax.Array:
            at = pl.ds(number * chunk, chunk)
            return acc + dot(x_ref[:, at], y_ref[at, :], 0, jnp.float32)

        acc = lax.fori_loop(0, k // chunk, step, jnp.zeros((bm, bn), jnp.float32))
        o_ref[...] = acc.astype(o_ref.dtype)

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


def two_halves(x: jax.Array, y: jax.Array, *, bm: int, bk: int, bn: int) -> jax.Array:
    """Even and odd steps of k have accumulators of their own."""
    (m, k), n = x.shape, y.shape[1]
    counts = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc: Any) -> None:
        step = pl.program_id(2)

        @pl.when(step == 0)
        def clear() -> None:
            acc[...] = jnp.zeros_like(acc)

        term = dot(zero_tail(x_ref[...], 1, step, k), zero_tail(y_ref[...], 0, step, k), 0, acc.dtype)
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


CONTROLS = (
    control("add/copied", copied()),
    control("sum/at_once", at_once),
    control("sum_narrow/at_once", at_once),
    control("matmul/reversed_k", reversed_k),
    control("matmul/columns_first", dense(order="jik")),
    control("matmul/whole", whole),
    control("matmul/inner_loop", inner_loop),
    control("matmul/two_halves", two_halves),
    control("matmul_f32/scratch", dense()),
    control("matmul_transpose_rhs/transposed_outside", lambda x, y, **blocks: dense()(x, y.T, **blocks)),
    control("matmul_activation/stored_every_step", dense(after=act, store=lambda at: at.k >= 0)),
    control("matmul_template/epilogue", dense(transposed=True, after=act)),
    control("matmul_prologue/prologue", dense(before=fused)),
    control("matmul_int8/float32_accumulator", int8(accumulator=jnp.float32)),
    control("matmul_grad/three_kernels", gradients()),
    control("dynamic_slice/unchecked", sliced()),
    control("dynamic_slice_blocked/unchecked", sliced()),
    control("dynamic_slice_unaligned/joined", joined()),
    control("dsd/sequential", sparse()),
    control("masked_matmul/select_after", select_after),
)

NO_KERNEL = control("add/no_kernel", no_kernel)
MUTANTS: tuple[Mutant, ...] = (
    *ADD, *SUM, *MATMUL, *FUSED, *INT8, *GRAD, *SLICE, *DSD, *MASK
)
KERNELS = (*(m.kernel for m in MUTANTS), *CONTROLS, NO_KERNEL)
