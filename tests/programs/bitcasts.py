"""The same bits as another dtype: of the same width, of a narrower, of a wider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from ._build import DTYPES, Maker, folder, integers, mixed, normal, on_values
from ._record import Program

_program = folder(__name__)

SAME_WIDTH = (
    ("f32", "i32"),
    ("i32", "f32"),
    ("f32", "u32"),
    ("u32", "i32"),
    ("bf16", "i16"),
    ("i16", "bf16"),
    ("bf16", "u16"),
    ("i8", "u8"),
    ("e4m3fn", "i8"),
    ("u8", "e5m2"),
    ("e5m2", "e4m3fn"),
)
# Rows multiply or divide by the ratio of the widths.
OTHER_WIDTH = (
    ("f32", "bf16"),
    ("bf16", "f32"),
    ("i32", "i8"),
    ("i8", "i32"),
    ("f32", "i8"),
    ("u8", "u32"),
    ("i16", "i8"),
    ("i8", "bf16"),
    ("i32", "i4"),
    ("i4", "i32"),
    ("i8", "i4"),
    ("bf16", "u8"),
)


def _numbers(dtype: str, *shape: int) -> Maker:
    """No NaN comes of them: payloads are not compared."""
    if dtype in ("f32", "bf16", "e4m3fn", "e5m2"):
        return normal(dtype, *shape)
    if dtype in ("i32", "u32"):  # finite as f32
        return integers(dtype, *shape, low=2**24, high=2**30)
    if dtype in ("i16", "u16"):
        return integers(dtype, *shape, low=2**8, high=2**14)
    return integers(dtype, *shape, low=0, high=7 if dtype.endswith("4") else 100)


def _values() -> Iterator[Program]:
    for source, target in SAME_WIDTH + OTHER_WIDTH:
        for shape in ((64, 128), (128, 256)):
            yield _program(
                f"{source}_as_{target}_{shape[0]}x{shape[1]}",
                on_values(lambda x, t=target: pltpu.bitcast(x, DTYPES[t])),
                _numbers(source, *shape),
            )
    for source, target in SAME_WIDTH:
        yield _program(
            f"lax_{source}_as_{target}",
            on_values(lambda x, t=target: lax.bitcast_convert_type(x, DTYPES[t])),
            _numbers(source, 5, 130) if source in ("f32", "i32") else _numbers(source, 32, 128),
        )


def _magnitude(x: Any) -> Any:
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(bits & 0x7FFFFFFF, jnp.float32)


def _exponent(x: Any) -> Any:
    return ((lax.bitcast_convert_type(x, jnp.int32) >> 23) & 0xFF) - 127


def _upper_half(x: Any) -> Any:
    """Truncation to bf16, as bits."""
    bits = lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _uses() -> Iterator[Program]:
    inputs = mixed("f32", 16, 128, values=(0.0, -0.0, float("inf"), -float("inf"), 1.0))
    for name, f in (("magnitude", _magnitude), ("exponent", _exponent), ("truncated", _upper_half)):
        yield _program(f"{name}_f32", on_values(f), inputs)
    # On a CPU there is no such operation.
    yield _program(
        "packed_bf16",
        on_values(lambda x, y: pltpu.pack_elementwise([x, y], packed_dtype=jnp.bfloat16)),
        normal("f32", 8, 128),
        normal("f32", 8, 128),
        expected=_packed,
    )
    for index in (0, 1):
        yield _program(
            f"unpacked_bf16_{index}",
            on_values(
                lambda x, i=index: pltpu.unpack_elementwise(
                    x, index=i, packed_dtype=jnp.bfloat16, unpacked_dtype=jnp.float32
                )
            ),
            _packed_pairs,
            expected=lambda x, i=index: x.view(DTYPES["bf16"])[:, i::2].astype(np.float32),
        )


def _packed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The first in the lower half of each word."""
    low, high = (v.astype(DTYPES["bf16"]).view(np.uint16).astype(np.uint32) for v in (x, y))
    return low | high << 16


def _packed_pairs(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((8, 256)).astype(DTYPES["bf16"]).view(np.int32)


PROGRAMS: tuple[Program, ...] = (*_values(), *_uses())
