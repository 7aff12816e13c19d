"""What the tables are written with: dtypes by short name, inputs, calls, records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._record import Program
from ._refusals import NEWEST, REFUSED

DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "i4": np.dtype(ml_dtypes.int4),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "u4": np.dtype(ml_dtypes.uint4),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("f32", "bf16", "e4m3fn", "e5m2")
UNSIGNED = ("u32", "u16", "u8", "u4")

# Relative error of one elementary function of f32, as NumPy, XLA and Mosaic evaluate it: each
# within a few ulp (2**-23) of the truth.
F32_FUNCTION = 2.0**-20
# One ulp of bf16: f32 results a few ulp apart may be rounded to neighbours.
BF16_FUNCTION = 2.0**-7

Maker = Callable[[np.random.Generator], np.ndarray]
Shape = tuple[int, ...]


def by(shape: Shape) -> str:
    """Shape in a name: 16x256."""
    return "x".join(map(str, shape)) or "scalar"


def struct(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a result."""
    return jax.ShapeDtypeStruct(shape, DTYPES[dtype])


# --- inputs ---


def limits(dtype: str) -> tuple[int, int]:
    """Least and greatest integer of an integer dtype."""
    info = ml_dtypes.iinfo(DTYPES[dtype])
    return int(info.min), int(info.max)


def integers(dtype: str, *shape: int, low: int | None = None, high: int | None = None) -> Maker:
    """Integers of the whole range of the dtype, or between the bounds, which are included."""
    if low is None or high is None:
        least, greatest = limits(dtype)
        low, high = least if low is None else low, greatest if high is None else high
    return lambda rng: rng.integers(low, high, shape, np.int64, endpoint=True).astype(DTYPES[dtype])


def small(dtype: str, *shape: int, limit: int = 8) -> Maker:
    """Integers whose sums and products stay exact; from 0 if the dtype is unsigned."""
    low = 0 if dtype in UNSIGNED else -limit
    return integers(dtype, *shape, low=low, high=limit)


def normal(dtype: str, *shape: int, scale: float = 1.0) -> Maker:
    """Floats with full mantissas."""
    return lambda rng: (rng.standard_normal(shape) * scale).astype(DTYPES[dtype])


def uniform(dtype: str, *shape: int, low: float, high: float) -> Maker:
    """Floats with full mantissas between two bounds."""
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32).astype(DTYPES[dtype])


def booleans(*shape: int) -> Maker:
    """Coin tosses."""
    return lambda rng: rng.random(shape) < 0.5


def movable(dtype: str, *shape: int) -> Maker:
    """What shows where an element came from: a permutation, as far as the dtype can count."""

    def make(rng: np.random.Generator) -> np.ndarray:
        order = rng.permutation(int(np.prod(shape))).reshape(shape) + rng.integers(50)
        if dtype == "bool":
            return order % 2 == 1
        if dtype in FLOATS:
            return (order % {"f32": 2**24, "bf16": 256, "e4m3fn": 16, "e5m2": 8}[dtype]).astype(
                DTYPES[dtype]
            )
        low, high = limits(dtype)
        return (order % min(high - low + 1, 2**20) + max(low, -(2**19))).astype(DTYPES[dtype])

    return make


def mixed(dtype: str, *shape: int, values: tuple[Any, ...], share: float = 0.5) -> Maker:
    """Full-mantissa floats, or integers of the whole range, among which `values` are strewn."""
    others = normal(dtype, *shape, scale=8.0) if dtype in FLOATS else integers(dtype, *shape)

    def make(rng: np.random.Generator) -> np.ndarray:
        chosen = np.array(values).astype(DTYPES[dtype])[rng.integers(len(values), size=shape)]
        return np.where(rng.random(shape) < share, chosen, others(rng)).astype(DTYPES[dtype])

    return make


def permuted(dtype: str, *shape: int, values: tuple[Any, ...]) -> Maker:
    """The values alone, repeated, in random order."""

    def make(rng: np.random.Generator) -> np.ndarray:
        chosen = np.resize(np.array(values).astype(DTYPES[dtype]), int(np.prod(shape)))
        return rng.permutation(chosen).reshape(shape)

    return make


# --- calls ---


def on_refs(kernel: Callable[..., None], *out: Any, **options: Any) -> Callable[..., Any]:
    """A function that calls the kernel, with whole arrays or as `options` say."""
    shape = out[0] if len(out) == 1 else out
    return lambda *arrays: pl.pallas_call(kernel, out_shape=shape, **options)(*arrays)


def smem() -> pl.BlockSpec:
    """A whole operand in scalar memory."""
    return pl.BlockSpec(memory_space=pltpu.SMEM)


def vmem() -> pl.BlockSpec:
    """A whole operand in vector memory."""
    return pl.BlockSpec(memory_space=pltpu.VMEM)


def anywhere() -> pl.BlockSpec:
    """A whole operand where XLA left it: for DMAs."""
    return pl.BlockSpec(memory_space=pl.ANY)


def on_values(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes `f` in a kernel: loads whole arrays, stores whole results."""

    def fn(*arrays: Any) -> Any:
        count = len(arrays)

        def kernel(*refs: Any) -> None:
            results = f(*(ref[...] for ref in refs[:count]))
            for ref, value in zip(refs[count:], jax.tree.leaves(results), strict=True):
                ref[...] = value

        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
        shapes = jax.eval_shape(f, *avals)
        return pl.pallas_call(kernel, out_shape=shapes)(*arrays)

    return fn


def as_i32(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with its boolean result as 0 and 1."""
    return lambda *values: f(*values).astype(jnp.int32)


# --- records ---


def folder(module: str) -> Callable[..., Program]:
    """Makes the records of one module.

    The record's maker takes what the program does (the second half of the name), the function,
    one maker for each input, and fields of `Program`; a tolerance makes it inexact.
    """
    name = module.rpartition(".")[2]

    def program(what: str, fn: Callable[..., Any], *inputs: Maker, **fields: Any) -> Program:
        full = f"{name}/{what}"
        newest = fields.pop("newest", False) or full in NEWEST
        return Program(
            name=full,
            fn=fn,
            make=lambda rng: tuple(np.asarray(make(rng)) for make in inputs),
            exact=not fields.get("tolerance"),
            refused=REFUSED.get(full, ()),
            newest=newest,
            **fields,
        )

    return program
