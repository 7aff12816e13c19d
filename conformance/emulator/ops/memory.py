"""Loads, stores and the operations that make one memref of another.

Sources: mlir.llvm.org/docs/Dialects/MemRef and Vector; jaxlib/mosaic/dialect/tpu/tpu_ops.td.
A vector register is loaded from as many runs of 128 words as it has sublanes, at a distance of
`sublane_stride` runs: that is how the chip addresses VMEM, whatever the tiling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.emulator.memory import LANES, OutOfBounds, Ref, view
from conformance.emulator.ops import Function, Op, Unknown, element_of, operation, to_scalar
from conformance.emulator.ops.vreg import from_words, words
from conformance.emulator.types import MemRef, Vector

# --------------------------------------------------------------------------- scalars


@operation("memref.load")
def _load_scalar(op: Op) -> Function:
    element = element_of(op.results[0])
    ones: tuple[int, ...] = (1,) * len(op.memref(0).shape)
    return lambda ref, *index: to_scalar(ref.read(index, ones).reshape(()), element)


@operation("memref.store")
def _store_scalar(op: Op) -> Function:
    element = element_of(op.operands[0])
    ones = (1,) * len(op.memref(1).shape)
    return lambda value, ref, *index: ref.write(
        np.asarray(value).astype(element.dtype).reshape(ones), index
    )


# --------------------------------------------------------------------------- arrays


def _steps(op: Op, rank: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of an access, one a dimension of the memref."""
    strides = op.integers("strides") if "strides" in op.attributes else ()
    return (1,) * (rank - len(sizes)) + sizes, strides or (1,) * rank


@operation("vector.load", "tpu.vector_load", "tpu.strided_load", core=True)
def _load(op: Op) -> Function:
    result, rank = op.result(), len(op.memref(0).shape)
    sizes, strides = _steps(op, rank, result.shape)
    groups = op.segments()
    if len(groups) == 3 and groups[2]:

        def masked(core: Any, ref: Ref, *rest: Any) -> np.ndarray:
            value = ref.read(rest[:rank], sizes, strides).reshape(result.shape)
            return np.where(rest[rank], value, core.undefined(result))

        return masked
    return lambda core, ref, *index: ref.read(index, sizes, strides).reshape(result.shape)


@operation("vector.store", core=True)
def _store(op: Op) -> Function:
    sizes, strides = _steps(op, len(op.memref(1).shape), op.vector(0).shape)
    return lambda core, value, ref, *index: ref.write(value, index, sizes, strides)


@operation("tpu.vector_store", "tpu.strided_store", core=True)
def _store_masked(op: Op) -> Function:
    rank = len(op.memref(1).shape)
    sizes, strides = _steps(op, rank, op.vector(0).shape)
    add = op.flag("add")

    def store(core: Any, value: np.ndarray, ref: Ref, *rest: Any) -> None:
        index, mask = rest[:rank], rest[rank] if len(rest) > rank else None
        if add:
            old = ref.read(index, sizes, strides).reshape(value.shape)
            value = (old + value).astype(value.dtype)
        ref.write(value, index, sizes, strides, None if mask is None else mask.reshape(sizes))

    return store


# --------------------------------------------------------------------------- registers


def _places(start: int, sublanes: int, stride: int) -> np.ndarray:
    """Word addresses of a register, (sublanes, lanes)."""
    return np.add.outer(start + np.arange(sublanes) * stride * LANES, np.arange(LANES))


@operation("tpu.load", core=True)
def _load_register(op: Op) -> Function:
    """Sublanes that are masked off, or outside of the buffer, are undefined."""
    result = op.result()
    mask, stride = np.array(op.booleans("sublane_mask")), op.integer("sublane_stride", 1)
    sublanes = result.shape[0]
    dense = bool(mask.all()) and stride == 1 and result.element.bits >= 8
    shape, size = result.shape, sublanes * LANES
    dtype = result.element.dtype

    def load(core: Any, ref: Ref, *index: int) -> np.ndarray:
        start, memory = ref.word(index), ref.buffer.words
        if dense and 0 <= start <= len(memory) - size:
            return memory[start : start + size].copy().view(dtype).reshape(shape)
        return _gathered(core, memory, _places(start, sublanes, stride), mask, result)

    return load


def _gathered(
    core: Any, memory: np.ndarray, places: np.ndarray, mask: np.ndarray, result: Vector
) -> np.ndarray:
    """A register from the words at some addresses."""
    inside = (places >= 0) & (places < len(memory)) & mask[:, None]
    undefined = words(core.undefined(result), result.element)
    return from_words(np.where(inside, memory.take(places, mode="clip"), undefined), result)


@operation("tpu.store", core=True)
def _store_register(op: Op) -> Function:
    source = op.vector(0)
    mask, stride = np.array(op.booleans("sublane_mask")), op.integer("sublane_stride", 1)
    rank, sublanes = len(op.memref(1).shape), source.shape[0]
    add = op.flag("add")
    dense = bool(mask.all()) and stride == 1 and not add
    size = sublanes * LANES

    def store(core: Any, value: np.ndarray, ref: Ref, *rest: Any) -> None:
        start, memory = ref.word(rest[:rank]), ref.buffer.words
        lanes = rest[rank] if len(rest) > rank else None
        if dense and lanes is None and 0 <= start <= len(memory) - size:
            memory[start : start + size] = words(value, source.element).reshape(-1)
            return
        places = _places(start, sublanes, stride)
        chosen = np.broadcast_to(mask[:, None], places.shape)
        if lanes is not None and lanes.ndim == 2:
            chosen = chosen & lanes
        touched = places[chosen]
        if touched.size and not 0 <= touched.min() <= touched.max() < len(memory):
            raise OutOfBounds(f"a store to words {touched.min()}..{touched.max()} of {len(memory)}")
        old = from_words(memory.take(places, mode="clip"), source)
        if add:
            value = (old + value).astype(value.dtype)
        if lanes is not None and lanes.ndim == 3:
            value = np.where(lanes, value, old)
        memory[touched] = words(value, source.element)[chosen]

    return store


@operation("tpu.shuffled_load", core=True)
def _load_shuffled(op: Op) -> Function:
    """Each sublane from its own offset, in sublanes."""
    result = op.result()
    mask, offsets = np.array(op.booleans("sublane_mask")), np.array(op.integers("sublane_offsets"))

    def load(core: Any, ref: Ref, *index: int) -> np.ndarray:
        memory = ref.buffer.words
        places = np.add.outer(ref.word(index) + offsets * LANES, np.arange(LANES))
        return _gathered(core, memory, places, mask, result)

    return load


@operation("tpu.shuffled_store", core=True)
def _store_shuffled(op: Op) -> Function:
    source = op.vector(0)
    mask, offsets = np.array(op.booleans("sublane_mask")), np.array(op.integers("sublane_offsets"))

    def store(core: Any, value: np.ndarray, ref: Ref, *index: int) -> None:
        places = np.add.outer(ref.word(index) + offsets * LANES, np.arange(LANES))[mask]
        if not 0 <= places.min() <= places.max() < len(ref.buffer.words):
            raise OutOfBounds(f"a store to words {places.min()}..{places.max()}")
        ref.buffer.words[places] = words(value, source.element)[mask]

    return store


# --------------------------------------------------------------------------- memrefs of memrefs


def _sizes(of: MemRef, dynamic: tuple[int, ...]) -> tuple[int, ...]:
    given = iter(dynamic)
    return tuple(next(given) if n is None else n for n in of.shape)


def _result(op: Op) -> MemRef:
    found = op.results[0]
    if not isinstance(found, MemRef):
        raise Unknown(f"{op.name} giving {found}")
    return found


@operation("tpu.memref_slice", core=True)
def _slice(op: Op) -> Function:
    """The same layout from another start. It may reach past the end of the array: into padding."""
    result = _result(op)
    rank = len(op.memref(0).shape)
    dense = not op.memref(0).tiles

    def slice_(core: Any, ref: Ref, *rest: int) -> Ref:
        start, sizes = rest[:rank], _sizes(result, rest[rank:])
        if dense and any(
            s < 0 or s + n > axes[0].size * axes[0].unit
            for s, n, axes in zip(start, sizes, ref.dims, strict=True)
        ):
            raise OutOfBounds(f"a slice of {sizes} from {start} of an array of {ref.shape}")
        return _keep(core, ref, start, sizes)

    return slice_


def _keep(core: Any, ref: Ref, start: tuple[int, ...], sizes: tuple[int, ...]) -> Ref:
    """References are kept, so that their address tables are built once and not at every step."""
    key = (id(ref), start, sizes)
    kept = core.slices.get(key)
    if kept is None or kept[0] is not ref:
        made = Ref(ref.buffer, ref.address(start), sizes, ref.element, ref.dims)
        if len(core.slices) > 4096:
            core.slices.clear()
        core.slices[key] = kept = (ref, made)
    return kept[1]


@operation("tpu.memref_squeeze")
def _squeeze(op: Op) -> Function:
    """Drops dimensions of length 1."""
    result = _result(op)
    source = op.memref(0).shape
    kept = _kept_dimensions(source, result.shape)

    def squeeze(ref: Ref) -> Ref:
        dims = tuple(ref.dims[d] for d in kept)
        shape = tuple(ref.shape[d] for d in kept)
        return Ref(ref.buffer, ref.offset, shape, ref.element, dims)

    return squeeze


def _kept_dimensions(
    source: tuple[int | None, ...], result: tuple[int | None, ...]
) -> tuple[int, ...]:
    """Which dimensions remain; the last ones that fit, as tiled ones must."""
    kept: list[int] = []
    wanted = list(result)
    for d in reversed(range(len(source))):
        if wanted and source[d] == wanted[-1] and (source[d] != 1 or d + 1 >= len(wanted)):
            kept.append(d)
            wanted.pop()
        elif source[d] != 1:
            raise Unknown(f"tpu.memref_squeeze of {source} to {result}")
    return tuple(reversed(kept))


@operation("tpu.memref_reshape", "tpu.memref_bitcast", "tpu.reinterpret_cast", core=True)
def _reinterpret(op: Op) -> Function:
    """The same words under the result's own layout."""
    result = _result(op)
    groups = op.segments()
    offset_given = len(groups) > 2 and bool(groups[1])

    def reinterpret(core: Any, ref: Ref, *rest: int) -> Ref:
        moved = rest[0] if offset_given else 0
        sizes = _sizes(result, rest[1:] if offset_given else rest)
        key = (id(ref), moved, sizes, result)
        kept = core.slices.get(key)
        if kept is None or kept[0] is not ref:
            made = view(ref, result, sizes)
            made.offset += moved
            core.slices[key] = kept = (ref, made)
        return kept[1]

    return reinterpret


@operation("tpu.erase_memref_layout", "tpu.assume_layout", "memref.cast")
def _same(op: Op) -> Function:
    return lambda ref: ref


@operation("tpu.internal_scratch", core=True)
def _scratch(op: Op) -> Function:
    """Room that the compiler keeps for its own moves: the same for all who ask."""
    result = _result(op)
    return lambda core: core.scratch(result)


@operation("memref.alloca", "memref.alloc", core=True)
def _allocate(op: Op) -> Function:
    result = _result(op)
    return lambda core, *sizes: core.allocate(result, _sizes(result, sizes))


@operation("memref.dim")
def _dim(op: Op) -> Function:
    return lambda ref, d: ref.shape[d]


@operation("tpu.device_id", core=True)
def _device(op: Op) -> Function:
    return lambda core: 0


@operation("tpu.iteration_bound", core=True)
def _bound(op: Op) -> Function:
    dim = op.integer("dim")
    return lambda core: core.bounds[dim]
