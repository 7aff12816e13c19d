"""Types of the IR as the executor sees them, read from MLIR's text of a type."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np

# Element types by MLIR name. Integers carry no sign in MLIR: operations that need an unsigned
# reading ask for one. `index` is 32 bits wide on a TPU.
DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E4M3": np.dtype(ml_dtypes.float8_e4m3),
    "f8E3M4": np.dtype(ml_dtypes.float8_e3m4),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "i2": np.dtype(ml_dtypes.int2),
    "i1": np.dtype(np.bool_),
    "index": np.dtype(np.int32),
}
SEMAPHORES = ("!tpu.semaphore", "!tpu.dma_semaphore")

_BITS = {"index": 32, "i1": 1, "i2": 2, "i4": 4, "f4E2M1FN": 4} | dict.fromkeys(SEMAPHORES, 32)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class UnknownType(Exception):
    """A type that the executor has no reading of."""


@dataclass(frozen=True)
class Element:
    """An element type.

    Attributes:
      name: MLIR's name of it.
      dtype: how NumPy holds one; 4-bit types take a byte each outside of memory.
      bits: its width in memory.
    """

    name: str
    dtype: np.dtype
    bits: int

    @property
    def is_float(self) -> bool:
        return self.name.startswith(("f", "bf"))

    @property
    def is_bool(self) -> bool:
        return self.name == "i1"

    @property
    def packing(self) -> int:
        """How many share a 32-bit word."""
        return max(1, 32 // self.bits)

    @property
    def unsigned(self) -> np.dtype:
        """The unsigned NumPy type of the same size."""
        if self.name == "i4":
            return np.dtype(ml_dtypes.uint4)
        if self.name == "i1":
            return np.dtype(np.bool_)
        return np.dtype(_UNSIGNED[self.dtype.itemsize])


@dataclass(frozen=True)
class Scalar:
    """A value that is a Python int, a bool or a NumPy float."""

    element: Element


@dataclass(frozen=True)
class Vector:
    """A value that is an array of this shape."""

    element: Element
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MemRef:
    """A reference to memory.

    Attributes:
      shape: None for a size known at run time only.
      tiles: XLA's repeated tiling, outermost first; empty when the IR gives no layout.
      tile_strides: one a dimension, in first-level tiles (elements where nothing is tiled).
      space: "vmem", "smem", "any", "hbm", "semaphore_mem"...
      semaphore: "" or the semaphore type that it holds.
    """

    element: Element
    shape: tuple[int | None, ...]
    tiles: tuple[tuple[int, ...], ...]
    tile_strides: tuple[int, ...]
    space: str
    semaphore: str = ""


Type = Scalar | Vector | MemRef


def element(name: str) -> Element:
    """The element type called `name`."""
    if name in SEMAPHORES:
        return Element(name, np.dtype(np.int32), 32)
    if name not in DTYPES:
        raise UnknownType(f"element type {name}")
    dtype = DTYPES[name]
    return Element(name, dtype, _BITS.get(name, dtype.itemsize * 8))


_SHAPED = re.compile(r"(?P<kind>vector|memref)<(?P<dims>(?:(?:\d+|\?)x)*)(?P<rest>.*)>", re.S)
_TILED = re.compile(r"#tpu\.tiled<(?P<tiles>(?:\([\d,]*\))*),\[(?P<strides>[\d,]*)\]>")
_STRIDED = re.compile(r"strided<\[(?P<strides>[^\]]*)\](?:, offset: \S+)?>")
_SPACE = re.compile(r"#tpu\.memory_space<(?P<space>\w+)")


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Type:
    """The type that MLIR prints as `text`; UnknownType for what is not modelled."""
    found = _SHAPED.fullmatch(text)
    if found is None:
        return Scalar(element(text))
    shape = tuple(None if d == "?" else int(d) for d in found["dims"].split("x") if d)
    name, _, attributes = found["rest"].partition(",")
    if found["kind"] == "vector":
        return Vector(element(name.strip()), tuple(d for d in shape if d is not None))
    return _memref(element(name.strip()), shape, attributes)


def _memref(of: Element, shape: tuple[int | None, ...], attributes: str) -> MemRef:
    tiled, space = _TILED.search(attributes), _SPACE.search(attributes)
    tiles: tuple[tuple[int, ...], ...] = ()
    strides: tuple[int, ...] = ()
    if tiled:
        tiles = tuple(
            tuple(int(n) for n in tile.split(","))
            for tile in re.findall(r"\(([\d,]*)\)", tiled["tiles"])
        )
        strides = tuple(int(n) for n in tiled["strides"].split(",") if n)
    elif _STRIDED.search(attributes):
        raise UnknownType(f"memref with{attributes}")
    semaphore = of.name if of.name in SEMAPHORES else ""
    return MemRef(of, shape, tiles, strides, space["space"] if space else "any", semaphore)
