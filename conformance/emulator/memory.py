"""Memory of the emulated core: 32-bit words, and references that address them through tilings.

Uninitialised words hold a poison. Whatever a correct kernel computes cannot depend on it, so two
runs with different poisons must agree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from conformance.emulator.types import Element, MemRef

LANES = 128

# Filled into words in turn. NaN in every float type, -1 in every integer type, true as a mask:
POISON_NAN = (0xFFFFFFFF,)
# Large finite floats of either sign and of changing magnitude, and zero (false as a mask).
POISON_FINITE = (0x4B4B4B4B, 0xCB4BCB4B, 0x00000000)


class OutOfBounds(Exception):
    """An access outside of the memory that was allocated for it."""


class Axis(NamedTuple):
    """A part of one dimension's index: `(index // unit) % size` steps of `stride` elements."""

    size: int
    unit: int
    stride: int


Dims = tuple[tuple[Axis, ...], ...]


def layout(of: MemRef, shape: Sequence[int]) -> Dims:
    """How a memref's indices become element addresses.

    XLA's repeated tiling: each tile splits the innermost axes of what the tile before it left; the
    first tile's strides are given, everything within it is dense. A memref without a layout (the
    `original` level) is row-major, with rows packed into words and padded like on the chip: a
    change of the element type reads the same bits, and a copy may reach into the padding.
    """
    if not of.tiles:
        if of.tile_strides:
            return tuple((Axis(n, 1, s),) for n, s in zip(shape, of.tile_strides, strict=True))
        return _dense(of.element, tuple(shape))
    return _tiled(tuple(shape), of.tiles, of.tile_strides)


@functools.lru_cache(maxsize=4096)
def _dense(element: Element, shape: tuple[int, ...]) -> Dims:
    packing = element.packing if len(shape) >= 2 else 1
    stride = packing
    dims: list[tuple[Axis, ...]] = []
    for number, n in enumerate(reversed(shape)):
        if number == 1:
            rows = -(-_padded_rows(n, packing) // packing)
            dims.append((Axis(rows, packing, stride), Axis(packing, 1, 1)))
            stride *= rows
        else:
            size = -(-n // LANES) * LANES if number == 0 else n
            dims.append((Axis(size, 1, stride),))
            stride *= size
    return tuple(reversed(dims))


def _padded_rows(rows: int, packing: int) -> int:
    """Rows that the chip's tiles of eight words, or of a smaller power of two, take up."""
    words = -(-rows // packing)
    tile = min(8, 1 << (words - 1).bit_length()) if words else 1
    return -(-words // tile) * tile * packing


@functools.lru_cache(maxsize=4096)
def _tiled(
    shape: tuple[int, ...], tiles: tuple[tuple[int, ...], ...], strides: tuple[int, ...]
) -> Dims:
    rank, first = len(shape), tiles[0]
    tile_elements = math.prod(first)
    untiled = rank - len(first)
    dims: list[list[Axis]] = [[] for _ in shape]
    for d, stride in enumerate(strides):
        tile = first[d - untiled] if d >= untiled else 1
        dims[d].append(Axis(-(-shape[d] // tile), tile, stride * tile_elements))
    # (dimension, size, unit) of the axes within a tile, outermost first.
    inner = [(untiled + n, size, 1) for n, size in enumerate(first)]
    for next_tile in tiles[1:]:
        kept, split = inner[: len(inner) - len(next_tile)], inner[len(inner) - len(next_tile) :]
        pairs = list(zip(split, next_tile, strict=True))
        outer = [(d, size // t, unit * t) for (d, size, unit), t in pairs]
        within = [(d, t, unit) for (d, _, unit), t in pairs]
        inner = kept + outer + within
    stride = tile_elements
    for d, size, unit in inner:
        stride //= size
        if size > 1:
            dims[d].append(Axis(size, unit, stride))
    return tuple(tuple(axes) for axes in dims)


def extent(dims: Dims) -> int:
    """Elements that a whole memref with this layout spans, its padding included."""
    return 1 + sum((axis.size - 1) * axis.stride for axes in dims for axis in axes)


@functools.lru_cache(maxsize=4096)
def _offsets(axes: tuple[Axis, ...], length: int) -> np.ndarray:
    """Element offset of each index 0..length-1 of one dimension."""
    return np.zeros(length, np.intp) + _offset(axes, np.arange(length, dtype=np.intp))


def _offset(axes: tuple[Axis, ...], index: Any) -> Any:
    """Element offset of an index, or of an array of them; it may be outside of the dimension."""
    total = 0
    for number, (size, unit, stride) in enumerate(axes):
        part = index // unit
        total += (part if number == 0 else part % size) * stride
    return total


class Buffer:
    """Some 32-bit words of one memory space."""

    __slots__ = ("elements", "words")

    def __init__(self, words: int, poison: Sequence[int]) -> None:
        self.words = np.empty(words, np.uint32)
        self.elements: dict[int, np.ndarray] = {
            32: self.words,
            16: self.words.view(np.uint16),
            8: self.words.view(np.uint8),
        }
        self.fill(poison)

    def fill(self, poison: Sequence[int]) -> None:
        """Makes all words uninitialised."""
        for n, word in enumerate(poison):
            self.words[n :: len(poison)] = word


class Ref:
    """A memref: part of a buffer, seen as an array.

    Attributes:
      offset: elements of its own type from the start of the buffer.
    """

    __slots__ = ("_addresses", "_indices", "buffer", "dims", "element", "offset", "shape")

    def __init__(
        self, buffer: Buffer, offset: int, shape: tuple[int, ...], element: Element, dims: Dims
    ) -> None:
        self.buffer = buffer
        self.offset = offset
        self.shape = shape
        self.element = element
        self.dims = dims
        self._addresses: dict[tuple[int, ...], int] = {}
        self._indices: dict[object, np.ndarray] = {}

    def address(self, index: tuple[int, ...]) -> int:
        """Element address of one index."""
        found = self._addresses.get(index)
        if found is None:
            found = self.offset + sum(
                _offset(axes, i) for axes, i in zip(self.dims, index, strict=True)
            )
            if len(self._addresses) < 4096:
                self._addresses[index] = found
        return found

    def word(self, index: tuple[int, ...]) -> int:
        """Word address of one index; OutOfBounds when a word does not begin there."""
        word, rest = divmod(self.address(index) * self.element.bits, 32)
        if rest:
            raise OutOfBounds(f"a register at {index}, in the middle of a word")
        return word

    @property
    def _room(self) -> int:
        """Elements of its type in its buffer."""
        return len(self.buffer.words) * 32 // self.element.bits

    @property
    def place(self) -> tuple[int, int]:
        """Where it starts: equal for references to the same memory."""
        return id(self.buffer), self.offset * self.element.bits

    def _box(
        self, starts: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray:
        """Element addresses of a box; OutOfBounds when it is not inside."""
        key = (starts, sizes, strides)
        found = self._indices.get(key)
        if found is not None:
            return found
        total: Any = np.full((), self.offset, np.intp)
        for d, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
            end = start + (size - 1) * stride + 1
            if size and not 0 <= start <= end <= self.shape[d]:
                raise OutOfBounds(
                    f"indices {start}..{end - 1} of dimension {d}, which has {self.shape[d]}"
                )
            total = np.add.outer(total, _offsets(self.dims[d], self.shape[d])[start:end:stride])
        if total.size and not 0 <= total.min() <= total.max() < self._room:
            raise OutOfBounds(f"an array of {self.shape} that reaches beyond its memory")
        if len(self._indices) > 64:
            self._indices.clear()
        self._indices[key] = total
        return total

    def read(
        self,
        starts: tuple[int, ...] | None = None,
        sizes: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray:
        """The elements of a box, by default of all of it; a copy."""
        box = self._box(*self._whole(starts, sizes, strides))
        bits = self.element.bits
        if bits >= 8:
            return self.buffer.elements[bits].take(box).view(self.element.dtype)
        return from_bits(_small(self.buffer, box, bits), self.element)

    def write(
        self,
        value: np.ndarray,
        starts: tuple[int, ...] | None = None,
        sizes: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        """Stores a box, where `mask` is true."""
        if sizes is None and starts is not None:
            sizes = value.shape
        box = self._box(*self._whole(starts, sizes, strides))
        raw = to_bits(value.reshape(box.shape), self.element)
        if mask is not None:
            mask = np.broadcast_to(mask, box.shape)
            box, raw = box[mask], raw[mask]
        bits = self.element.bits
        if bits >= 8:
            self.buffer.elements[bits][box] = raw
        else:
            _set_small(self.buffer, box, raw, bits)

    def _whole(
        self,
        starts: tuple[int, ...] | None,
        sizes: tuple[int, ...] | None,
        strides: tuple[int, ...] | None,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        rank = len(self.shape)
        return starts or (0,) * rank, self.shape if sizes is None else sizes, strides or (1,) * rank


def to_bits(value: np.ndarray, element: Element) -> np.ndarray:
    """The bit patterns of elements, as unsigned integers of at least a byte."""
    value = np.ascontiguousarray(value, element.dtype)
    raw = value.view(f"u{element.dtype.itemsize}")
    return raw & ((1 << element.bits) - 1) if element.bits < 8 else raw


def from_bits(raw: np.ndarray, element: Element) -> np.ndarray:
    """Elements of a 2- or 4-bit type from their bit patterns."""
    if element.is_float or element.is_bool:
        return raw.astype(np.uint8).view(element.dtype)
    sign = 1 << (element.bits - 1)
    return ((raw.astype(np.int8) ^ sign) - sign).astype(element.dtype)


def _small(buffer: Buffer, box: np.ndarray, bits: int) -> np.ndarray:
    per_byte = 8 // bits
    found = buffer.elements[8].take(box // per_byte) >> (box % per_byte * bits).astype(np.uint8)
    return found & ((1 << bits) - 1)


def _set_small(buffer: Buffer, box: np.ndarray, raw: np.ndarray, bits: int) -> None:
    per_byte, array = 8 // bits, buffer.elements[8]
    for part in range(per_byte):  # neighbours in one byte must not undo each other
        here = box % per_byte == part
        place = box[here] // per_byte
        keep = np.uint8(0xFF & ~(((1 << bits) - 1) << (part * bits)))
        array[place] = (array[place] & keep) | (raw[here] << np.uint8(part * bits))


def allocate(of: MemRef, shape: Iterable[int], poison: Sequence[int]) -> Ref:
    """Fresh memory for a memref, all of it uninitialised, in whole vector registers."""
    sizes = tuple(shape)
    dims = layout(of, sizes)
    words = -(-extent(dims) * of.element.bits // 32)
    return Ref(Buffer(-(-words // LANES) * LANES, poison), 0, sizes, of.element, dims)


def view(source: Ref, of: MemRef, shape: Sequence[int]) -> Ref:
    """The same memory under another memref type."""
    offset = source.offset * source.element.bits // of.element.bits
    sizes = tuple(shape)
    return Ref(source.buffer, offset, sizes, of.element, layout(of, sizes))
