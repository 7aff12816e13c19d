"""Dialect `vector` and the shape-changing operations of dialect `tpu`.

Sources: mlir.llvm.org/docs/Dialects/Vector; jaxlib/mosaic/dialect/tpu/tpu_ops.td in jax-ml/jax.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.emulator.memory import from_bits, to_bits
from conformance.emulator.ops import Function, Op, Unknown, element_of, operation, to_scalar
from conformance.emulator.ops.arith import rounded
from conformance.emulator.types import Scalar, Vector


@operation("vector.broadcast")
def _broadcast(op: Op) -> Function:
    result = op.result()
    return lambda x: np.broadcast_to(np.asarray(x).astype(result.element.dtype), result.shape)


@operation("vector.shape_cast", "tpu.reshape")
def _reshape(op: Op) -> Function:
    shape = op.result().shape
    return lambda x: x.reshape(shape)


@operation("vector.transpose", "tpu.transpose")
def _transpose(op: Op) -> Function:
    permutation = op.integers("permutation")
    return lambda x: np.ascontiguousarray(x.transpose(permutation))


@operation("vector.extract")
def _extract(op: Op) -> Function:
    position = op.integers("static_position")
    if any(p < 0 for p in position):
        raise Unknown("vector.extract at a position known at run time")
    result = op.results[0]
    if isinstance(result, Scalar):
        return lambda x: to_scalar(x[position].reshape(()), result.element)
    return lambda x: x[position]


@operation("vector.extract_strided_slice")
def _slice(op: Op) -> Function:
    parts = zip(op.integers("offsets"), op.integers("sizes"), op.integers("strides"), strict=True)
    box = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in parts)
    return lambda x: x[box]


@operation("vector.insert_strided_slice")
def _insert_slice(op: Op) -> Function:
    offsets, sizes = op.integers("offsets"), op.vector(0).shape
    first = len(offsets) - len(sizes)
    box = tuple(offsets[:first]) + tuple(
        slice(o, o + s) for o, s in zip(offsets[first:], sizes, strict=True)
    )

    def insert(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        out = whole.copy()
        out[box] = part
        return out

    return insert


@operation("tpu.concatenate")
def _concatenate(op: Op) -> Function:
    axis = op.integer("dimension")
    return lambda *parts: np.concatenate(parts, axis)


@operation("tpu.repeat")
def _repeat(op: Op) -> Function:
    """The whole array again and again, as `np.tile` along one axis."""
    axis, times = op.integer("dimension"), op.integer("times")
    return lambda x: np.concatenate([x] * times, axis)


@operation("tpu.iota")
def _iota(op: Op) -> Function:
    result = op.result()
    dimensions = op.integers("dimensions")
    order = [d for d in range(len(result.shape)) if d not in dimensions] + list(dimensions)
    sizes = [result.shape[d] for d in order]
    count = math.prod(result.shape[d] for d in dimensions)
    flat = np.broadcast_to(np.arange(count), (math.prod(sizes) // max(count, 1), count))
    value = flat.reshape(sizes).transpose(np.argsort(order)).astype(result.element.dtype)
    return lambda: value


@operation("tpu.dynamic_rotate")
def _rotate(op: Op) -> Function:
    axis = op.integer("dimension")
    stride, along = op.integer("stride", 0), op.integer("stride_dimension", 0)
    if not stride:
        return lambda x, amount: np.roll(x, amount, axis)

    def strided(x: np.ndarray, amount: int) -> np.ndarray:
        steps = np.arange(x.shape[along]) * stride + amount
        source = np.arange(x.shape[axis])
        if axis == along:
            raise Unknown("tpu.dynamic_rotate along its stride dimension")
        index = np.subtract.outer(source, steps) % x.shape[axis]
        shape = [1] * x.ndim
        shape[axis], shape[along] = x.shape[axis], x.shape[along]
        table = (index if axis < along else index.T).reshape(shape)
        return np.take_along_axis(x, np.broadcast_to(table, x.shape), axis)

    return strided


@operation("tpu.gather")
def _gather(op: Op) -> Function:
    indices, axis = list(op.integers("indices")), op.integer("dimension")
    return lambda x: x.take(indices, axis)


@operation("tpu.dynamic_gather")
def _dynamic_gather(op: Op) -> Function:
    """Indices count modulo the length of the dimensions, taken together in row-major order."""
    dimensions = op.integers("dimensions") or (op.integer("dimension"),)

    def gather(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        length = math.prod(x.shape[d] for d in dimensions)
        where = indices.astype(np.int64) % length
        place = np.unravel_index(where, [x.shape[d] for d in dimensions])
        grid = list(np.indices(where.shape, sparse=True))
        for d, index in zip(dimensions, place, strict=True):
            grid[d] = index
        return x[tuple(grid)]

    return gather


# --------------------------------------------------------------------------- bits


@operation("tpu.bitcast")
def _bitcast(op: Op) -> Function:
    """Same bits, another element type; rows of narrower types share a word."""
    source, result = op.vector(), op.result()
    if source.element.bits == result.element.bits:
        return lambda x: from_raw(to_bits(x, source.element), result)

    def cast(x: np.ndarray) -> np.ndarray:
        return unpack_rows(pack_rows(x, source), result)

    return cast


def from_raw(raw: np.ndarray, to: Vector) -> np.ndarray:
    """Elements from bit patterns of their own width."""
    if to.element.bits < 8:
        return from_bits(raw, to.element).reshape(to.shape)
    return np.ascontiguousarray(raw).view(to.element.dtype).reshape(to.shape)


def pack_rows(x: np.ndarray, of: Vector) -> np.ndarray:
    """(..., rows, columns) of narrow elements as 32-bit words of neighbouring rows."""
    packing, bits = of.element.packing, of.element.bits
    raw = to_bits(x, of.element).astype(np.uint32)
    rows = raw.reshape(*raw.shape[:-2], -1, packing, raw.shape[-1])
    words = np.zeros((*rows.shape[:-2], rows.shape[-1]), np.uint32)
    for n in range(packing):
        words |= rows[..., n, :] << np.uint32(n * bits)
    return words


def unpack_rows(words: np.ndarray, to: Vector) -> np.ndarray:
    """The inverse of `pack_rows` for another element type."""
    packing, bits = to.element.packing, to.element.bits
    mask = np.uint32((1 << bits) - 1)
    parts = [(words >> np.uint32(n * bits)) & mask for n in range(packing)]
    raw = np.stack(parts, -2).astype(f"u{to.element.dtype.itemsize}")
    return from_raw(raw.reshape(to.shape), to)


# --------------------------------------------------------------------------- reductions

_REDUCTIONS = {
    "add": np.add,
    "sum": np.add,
    "mul": np.multiply,
    "maxf": np.maximum,
    "maximumf": np.maximum,
    "maxnumf": np.fmax,
    "maxsi": np.maximum,
    "max": np.maximum,
    "minf": np.minimum,
    "minimumf": np.minimum,
    "minnumf": np.fmin,
    "minsi": np.minimum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduction(kind: str) -> Any:
    """The NumPy ufunc of a reduction kind."""
    if kind not in _REDUCTIONS:
        raise Unknown(f"reduction kind {kind}")
    return _REDUCTIONS[kind]


@operation("vector.multi_reduction")
def _reduce(op: Op) -> Function:
    ufunc = reduction(op.word("kind"))
    axes = op.integers("reduction_dims")
    element = element_of(op.results[0])
    result = op.results[0]

    def reduce(x: np.ndarray, start: Any) -> Any:
        wide = x.astype(np.float32) if element.is_float else x
        out = ufunc(ufunc.reduce(wide, axis=axes), start).astype(element.dtype)
        return to_scalar(out, element) if isinstance(result, Scalar) else out

    return reduce


@operation("vector.reduction")
def _reduce_all(op: Op) -> Function:
    ufunc, element = reduction(op.word("kind")), element_of(op.results[0])

    def reduce(x: np.ndarray, *start: Any) -> Any:
        out = ufunc.reduce(x.astype(np.float32) if element.is_float else x, axis=None)
        return to_scalar(ufunc(out, *start) if start else out, element)

    return reduce


@operation("tpu.reduce_index")
def _reduce_index(op: Op) -> Function:
    """The first index of the largest or smallest; NaN counts as either."""
    axis, kind = op.integer("axis"), op.word("kind")
    dtype = element_of(op.results[0]).dtype
    function = {"arg_max": np.argmax, "arg_min": np.argmin}.get(kind)
    if function is None:
        raise Unknown(f"tpu.reduce_index {kind}")
    return lambda x: function(x.astype(np.float32) if x.dtype.kind == "V" else x, axis).astype(
        dtype
    )


@operation("tpu.all_reduce")
def _all_reduce(op: Op) -> Function:
    """Reduces one dimension; every place along it gets the result."""
    axis, kind = op.integer("dim"), op.word("kind")
    source, element = op.vector(), element_of(op.results[0])
    shape = op.result().shape
    if kind in ("arg_max", "arg_min"):
        function = np.argmax if kind == "arg_max" else np.argmin
        return lambda x: np.broadcast_to(
            np.expand_dims(function(x, axis), axis).astype(element.dtype), shape
        )
    if kind == "find_first_set":
        return lambda x: np.broadcast_to(
            np.where(x.any(axis, keepdims=True), x.argmax(axis, keepdims=True), -1), shape
        ).astype(element.dtype)
    ufunc = reduction(kind)
    if source.element.is_float:
        narrow = rounded(lambda x: ufunc.reduce(x, axis=axis, keepdims=True), source.element)
        return lambda x: np.broadcast_to(narrow(x), shape)
    return lambda x: np.broadcast_to(
        ufunc.reduce(x.astype(np.int64), axis=axis, keepdims=True).astype(element.dtype), shape
    )


@operation("vector.create_mask", "vector.constant_mask")
def _mask(op: Op) -> Function:
    shape = op.result().shape
    fixed = op.integers("mask_dim_sizes")

    def mask(*sizes: int) -> np.ndarray:
        out = np.zeros(shape, np.bool_)
        out[tuple(slice(0, max(n, 0)) for n in (sizes or fixed))] = True
        return out

    return mask
