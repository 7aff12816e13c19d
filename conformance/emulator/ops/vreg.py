"""Operations on whole vector registers: packing, masks, sublane moves, (dis)assembly.

Source: jaxlib/mosaic/dialect/tpu/tpu_ops.td in jax-ml/jax; vector layouts as its
layout.h describes them. A register of 32-bit elements is (sublanes, 128), one of narrower
elements (sublanes, 128, packing): the elements of one word, lowest bits first.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from conformance.emulator.memory import from_bits, to_bits
from conformance.emulator.ops import Function, Op, Unknown, operation
from conformance.emulator.ops.arith import as_signed, as_unsigned, to_float, to_integer, wrap
from conformance.emulator.types import Element, Vector, element


def _packing(shape: tuple[int, ...]) -> int:
    """Elements that share a word of a register."""
    return shape[2] if len(shape) == 3 else 1


def rows(register: np.ndarray) -> np.ndarray:
    """(sublanes, lanes[, packing]) as (sublanes * packing, lanes): rows in memory order."""
    if register.ndim == 2:
        return register
    sublanes, lanes, packing = register.shape
    return register.transpose(0, 2, 1).reshape(sublanes * packing, lanes)


def register(of_rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `rows`."""
    if len(shape) == 2:
        return of_rows
    sublanes, lanes, packing = shape
    return np.ascontiguousarray(of_rows.reshape(sublanes, packing, lanes).transpose(0, 2, 1))


def words(value: np.ndarray, element: Element) -> np.ndarray:
    """A register as its (sublanes, lanes) 32-bit words."""
    raw = to_bits(value, element)
    if raw.ndim == 2:
        return raw.view(np.uint32)
    if element.bits >= 8:
        return np.ascontiguousarray(raw).view(np.uint32)[..., 0]
    out = np.zeros(raw.shape[:2], np.uint32)
    for n in range(raw.shape[2]):
        out |= raw[..., n].astype(np.uint32) << np.uint32(n * element.bits)
    return out


def from_words(value: np.ndarray, to: Vector) -> np.ndarray:
    """A register of another element type from its words."""
    if len(to.shape) == 2:
        return np.ascontiguousarray(value).view(to.element.dtype)
    if to.element.bits >= 8:
        return np.ascontiguousarray(value)[..., None].view(to.element.dtype)
    shifts = np.arange(to.shape[2], dtype=np.uint32) * np.uint32(to.element.bits)
    raw = (value[..., None] >> shifts) & np.uint32((1 << to.element.bits) - 1)
    return from_bits(raw.astype(np.uint8), to.element)


@operation("tpu.bitcast_vreg")
def _bitcast(op: Op) -> Function:
    source, result = op.vector().element, op.result()
    return lambda x: from_words(words(x, source), result)


# --------------------------------------------------------------------------- packing


def _convert(of: Element, to: Element, unsigned: bool) -> Function:
    """Element conversion of packing and unpacking; floats become integers to nearest even."""
    if of.is_float and to.is_float:
        return lambda x: to_float(x, to)
    if of.is_float:
        return lambda x: to_integer(np.rint(x.astype(np.float32)), to, unsigned)
    read = as_unsigned if unsigned else as_signed
    if to.is_float:
        return lambda x: to_float(read(x, of), to)
    return lambda x: wrap(read(x, of), to)


@operation("tpu.unpack_subelements", core=True)
def _unpack(op: Op) -> Function:
    """Part `index` of a register, widened.

    Compressed: the index-th run of rows. Interleaved: of every group of subelements that share
    a wider word, the index-th. Integers that are not extended have undefined upper bits.
    """
    source, result, index = op.vector(), op.result(), op.integer("index")
    convert = _convert(source.element, result.element, op.flag("unsigned_integers"))
    packing = _packing(result.shape)
    ratio = source.shape[2] // packing
    count = result.shape[0] * packing
    compressed = op.word("pack_format") == "compressed"
    integers = not (source.element.is_float or result.element.is_float)
    undefined = integers and not op.flag("integer_extended", True)

    def unpack(core: Any, x: np.ndarray) -> np.ndarray:
        if compressed:
            part = register(rows(x)[index * count : (index + 1) * count], result.shape)
        else:
            part = x[..., index] if packing == 1 else np.ascontiguousarray(x[..., index::ratio])
        out = convert(part)
        return _upper_bits(out, core.undefined(result), source.element) if undefined else out

    return unpack


def _upper_bits(low: np.ndarray, high: np.ndarray, of: Element) -> np.ndarray:
    """The low bits of one array, as many as an element type has, and the upper of another."""
    mask = low.dtype.type((1 << of.bits) - 1)
    return (low & mask) | (high & ~mask)


@operation("tpu.pack_subelements", core=True)
def _pack(op: Op) -> Function:
    """Registers narrowed and put into one; places that no source fills are undefined."""
    source, result = op.vector(), op.result()
    positions = op.integers("positions")
    convert = _convert(source.element, result.element, op.flag("unsigned_integers"))
    count = source.shape[0] * _packing(source.shape)
    if op.word("pack_format") == "compressed":

        def compressed(core: Any, *parts: np.ndarray) -> np.ndarray:
            out = rows(core.undefined(result))
            out = out.copy()
            for position, part in zip(positions, parts, strict=True):
                out[position * count : (position + 1) * count] = convert(rows(part))
            return register(out, result.shape)

        return compressed
    ratio = result.shape[2] // _packing(source.shape)

    def interleaved(core: Any, *parts: np.ndarray) -> np.ndarray:
        out = core.undefined(result).copy()
        for position, part in zip(positions, parts, strict=True):
            wide = part[..., None] if part.ndim == 2 else part
            out[..., position::ratio] = convert(wide)
        return out

    return interleaved


@operation("tpu.unpack_elementwise")
def _unpack_elementwise(op: Op) -> Function:
    """Interleaved unpacking of what is declared as integers of the wider type."""
    source, result, index = op.vector(), op.result(), op.integer("index")
    inner = element(op.attributes["source_type"].strip())
    shift = index * inner.bits
    convert = _convert(inner, result.element, unsigned=False)

    def unpack(x: np.ndarray) -> np.ndarray:
        raw = to_bits(x, source.element) >> shift & ((1 << inner.bits) - 1)
        return convert(_narrow(raw, inner)).reshape(result.shape)

    return unpack


@operation("tpu.pack_elementwise")
def _pack_elementwise(op: Op) -> Function:
    result = op.result()
    inner = element(op.attributes["target_type"].strip())
    convert = _convert(op.vector().element, inner, unsigned=False)
    bits = result.element.bits

    def pack(*parts: np.ndarray) -> np.ndarray:
        out = np.zeros(result.shape, f"u{max(bits // 8, 1)}")
        for n, part in enumerate(parts):
            raw = to_bits(np.asarray(convert(part)), inner).astype(out.dtype)
            out |= raw << out.dtype.type(n * inner.bits)
        return out.view(result.element.dtype)

    return pack


def _narrow(raw: np.ndarray, of: Element) -> np.ndarray:
    if of.bits < 8:
        return from_bits(raw.astype(np.uint8), of)
    return np.ascontiguousarray(raw.astype(f"u{of.dtype.itemsize}")).view(of.dtype)


# --------------------------------------------------------------------------- masks


@operation("tpu.create_mask")
def _create_mask(op: Op) -> Function:
    """A box, in units of sublanes and lanes; every subelement of a word alike."""
    shape = op.result().shape

    def mask(*bounds: int) -> np.ndarray:
        rank = len(bounds) // 2
        out = np.zeros(shape, np.bool_)
        box = zip(bounds[:rank], bounds[rank:], strict=True)
        out[tuple(slice(max(low, 0), max(high, 0)) for low, high in box)] = True
        return out

    return mask


@operation("tpu.create_subelement_mask")
def _subelement_mask(op: Op) -> Function:
    """Rows [from, to), or all but [to, from)."""
    shape = op.result().shape
    start, end = op.integer("from"), op.integer("to")
    index = np.arange(math.prod(shape) // shape[1])
    chosen = (index >= start) & (index < end) if start <= end else (index < end) | (index >= start)
    value = register(np.broadcast_to(chosen[:, None], (len(index), shape[1])), shape)
    return lambda: value


@operation("tpu.pack_vmsk")
def _pack_mask(op: Op) -> Function:
    """Masks put together like compressed packing."""
    source, result, positions = op.vector(), op.result(), op.integers("positions")
    count = source.shape[0] * _packing(source.shape)

    def pack(*parts: np.ndarray) -> np.ndarray:
        out = np.zeros((result.shape[0] * result.shape[2], result.shape[1]), np.bool_)
        for position, part in zip(positions, parts, strict=True):
            out[position * count : (position + 1) * count] = rows(part)
        return register(out, result.shape)

    return pack


@operation("tpu.mask_cast")
def _mask_cast(op: Op) -> Function:
    """Another number of bits for each word: repeated, or one of those that must be equal."""
    source, shape = op.vector().shape, op.result().shape
    before = _packing(source)
    after = _packing(shape)

    def cast(x: np.ndarray) -> np.ndarray:
        wide = x if x.ndim == 3 else x[..., None]
        out = wide.repeat(after // before, 2) if after >= before else wide[..., :: before // after]
        return out[..., 0] if after == 1 else out

    return cast


# --------------------------------------------------------------------------- moves


@operation("tpu.sublane_shuffle")
def _shuffle(op: Op) -> Function:
    pattern = list(op.integers("pattern"))
    return lambda a, b: np.concatenate([a, b])[pattern]


@operation("tpu.broadcast_in_sublanes", core=True)
def _broadcast_in_sublanes(op: Op) -> Function:
    """Row i gets the value of lane `lane + i` everywhere."""
    result, lane = op.result(), op.integer("lane")

    def broadcast(core: Any, x: np.ndarray) -> np.ndarray:
        by_row = rows(x)
        count, lanes = by_row.shape
        out = rows(core.undefined(result)).copy()
        for i in range(count):
            if 0 <= lane + i < lanes:
                out[i] = by_row[i, lane + i]
        return register(out, result.shape)

    return broadcast


# --------------------------------------------------------------------------- assembly

_LAYOUT = re.compile(
    r'vpad<"(?P<bits>\d+),\{(?P<s>[\d*]+),(?P<l>[\d*]+)\},\((?P<t0>\d+),(?P<t1>\d+)\)'
    r'(?:,(?P<implicit>-?\d+))?">'
)


class _Layout:
    """Where a logical array's elements lie in its registers."""

    def __init__(self, op: Op, text: str, logical: Vector, native: Vector) -> None:
        self.logical, self.native = logical, native
        packing = _packing(native.shape)
        tile = (native.shape[0] * packing, native.shape[1])
        found = _LAYOUT.search(text)
        if found:
            offsets = found["s"], found["l"]
            plain = offsets == ("0", "0") and not found["implicit"]
            if not plain or (int(found["t0"]), int(found["t1"])) != tile:
                raise Unknown(f"{op.name} with layout {found[0]}")
        if len(logical.shape) < 2:
            raise Unknown(f"{op.name} of {logical}")
        self.tile = tile
        self.grid = (
            *logical.shape[:-2],
            -(-logical.shape[-2] // tile[0]),
            -(-logical.shape[-1] // tile[1]),
        )

    def assemble(self, parts: tuple[np.ndarray, ...]) -> np.ndarray:
        """Registers, in row-major order, to the logical array."""
        t0, t1 = self.tile
        stacked = np.stack([rows(p) for p in parts]).reshape(*self.grid, t0, t1)
        whole = np.moveaxis(stacked, -2, -3)
        shape = (*self.grid[:-2], self.grid[-2] * t0, self.grid[-1] * t1)
        out = whole.reshape(shape)
        return out[..., : self.logical.shape[-2], : self.logical.shape[-1]]

    def disassemble(self, core: Any, whole: np.ndarray) -> tuple[np.ndarray, ...]:
        """The logical array to registers; padding is undefined."""
        t0, t1 = self.tile
        shape = (*self.grid[:-2], self.grid[-2] * t0, self.grid[-1] * t1)
        if whole.shape != shape:
            padded = core.undefined(Vector(self.logical.element, shape)).copy()
            padded[..., : whole.shape[-2], : whole.shape[-1]] = whole
            whole = padded
        split = whole.reshape(*self.grid[:-1], t0, self.grid[-1], t1)
        parts = np.moveaxis(split, -2, -3).reshape(-1, t0, t1)
        return tuple(register(part, self.native.shape) for part in parts)


@operation("tpu.roll_vectors")
def _roll(op: Op) -> Function:
    layout = _Layout(op, op.attributes.get("out_layout", ""), op.result(), op.vector())
    return lambda *parts: layout.assemble(parts)


@operation("tpu.unroll_vectors", core=True)
def _unroll(op: Op) -> Function:
    native = op.results[0]
    if not isinstance(native, Vector):
        raise Unknown(f"{op.name} to {native}")
    layout = _Layout(op, op.attributes.get("in_layout", ""), op.vector(), native)
    single = len(op.results) == 1

    def unroll(core: Any, whole: np.ndarray) -> Any:
        parts = layout.disassemble(core, whole)
        return parts[0] if single else parts

    return unroll
