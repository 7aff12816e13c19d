"""Conversions between all dtypes: rounding, saturation, wrap-around, NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ._build import (
    DTYPES,
    FLOATS,
    UNSIGNED,
    Maker,
    booleans,
    by,
    folder,
    integers,
    limits,
    mixed,
    on_values,
    permuted,
)
from ._record import Program

_program = folder(__name__)

# A whole number of native tiles of every dtype, and a ragged shape.
SHAPES = ((64, 128), (5, 130))
NAN, INF = float("nan"), float("inf")
ZEROS = (0.0, -0.0)
# Largest integer up to which every integer is a number of the dtype.
_EXACT = {"f32": 2**24, "bf16": 2**8, "e4m3fn": 2**4, "e5m2": 2**3}


def _cast(to: str) -> Callable[[Any], Any]:
    return lambda x: x.astype(DTYPES[to])


def _common(source: str, target: str, *shape: int) -> Maker:
    """Integers that both dtypes have, as the source."""
    if source == "bool":
        return booleans(*shape)
    low, high = -(2**31), 2**31 - 1
    for dtype in (source, target):
        if dtype == "bool":
            low, high = max(low, -1), min(high, 1)
        elif dtype in FLOATS:
            low, high = max(low, -_EXACT[dtype]), min(high, _EXACT[dtype])
        else:
            low, high = max(low, limits(dtype)[0]), min(high, limits(dtype)[1])
    if source not in FLOATS:
        return integers(source, *shape, low=low, high=high)
    whole = integers("i32", *shape, low=low, high=high)
    return lambda rng: whole(rng).astype(DTYPES[source])


def _pairs() -> Iterator[Program]:
    """Values that both sides have: nothing is rounded, nothing wraps."""
    for source in DTYPES:
        for target in DTYPES:
            if source != target:
                shape = SHAPES[(len(source) + len(target)) % 2]
                yield _program(
                    f"{source}_to_{target}_{by(shape)}",
                    on_values(_cast(target)),
                    _common(source, target, *shape),
                )


def _wrapping() -> Iterator[Program]:
    """Integers of the whole range: what does not fit loses its upper bits."""
    for source in ("i32", "u32", "i16", "u16", "i8", "u8"):
        for target in ("i32", "u32", "i16", "u16", "i8", "u8", "i4", "u4"):
            if source != target:
                yield _program(
                    f"{source}_to_{target}_wraps",
                    on_values(_cast(target)),
                    integers(source, 64, 128),
                    expected=lambda x, t=target: _wrapped(x, t),
                )


def _wrapped(x: np.ndarray, target: str) -> np.ndarray:
    low, high = limits(target)
    width = high - low + 1
    return ((x.astype(np.int64) - low) % width + low).astype(DTYPES[target])


def _halfway(source: str, target: str) -> tuple[float, ...]:
    """Halves between neighbours of the target, and what lies next to them, as the source."""
    digits = ml_dtypes.finfo(DTYPES[target]).nmant
    step = 2.0**-digits
    grid = [1 + step * k for k in range(2**digits)][:16]
    nudge = 2.0 ** -(ml_dtypes.finfo(DTYPES[source]).nmant - 2)
    ties = [g + step / 2 + d for g in grid for d in (0, nudge, -nudge)]
    return tuple(sign * t for t in ties for sign in (1, -1, 8, -0.125))


def _narrowing() -> Iterator[Program]:
    """Floats that must be rounded: to nearest, ties to even."""
    for source, target in (
        ("f32", "bf16"),
        ("f32", "e4m3fn"),
        ("f32", "e5m2"),
        ("bf16", "e4m3fn"),
        ("bf16", "e5m2"),
    ):
        cast = on_values(_cast(target))
        special = (*ZEROS, 1.0, -1.0)
        ties = _halfway(source, target)
        yield _program(
            f"{source}_to_{target}_ties", cast, permuted(source, 32, 128, values=ties + special)
        )
        yield _program(
            f"{source}_to_{target}_nan_inf",
            cast,
            permuted(source, 32, 128, values=(NAN, INF, -INF, *special)),
        )
        largest = float(ml_dtypes.finfo(DTYPES[target]).max)
        beyond = tuple(
            s * largest * f for f in (0.99, 1.0, 1.01, 1.07, 2.0, 100.0) for s in (1, -1)
        )
        if target != "bf16":
            yield _program(
                f"{source}_to_{target}_overflow", cast, permuted(source, 32, 128, values=beyond)
            )
        if target != "bf16":
            # Between the powers of two that the target still has: multiples of a quarter of the
            # least one.
            least = float(ml_dtypes.finfo(DTYPES[target]).smallest_subnormal)
            steps = tuple(s * least * k / 4 for k in range(1, 33) for s in (1, -1))
            yield _program(
                f"{source}_to_{target}_subnormal", cast, permuted(source, 32, 128, values=steps)
            )
    for source in ("bf16", "e4m3fn", "e5m2"):
        every = np.arange(256, dtype=np.uint8).view(DTYPES[source]) if source != "bf16" else None
        values = (NAN, INF, -INF, *ZEROS) if every is None else tuple(every.astype(np.float32))
        yield _program(
            f"{source}_to_f32_special",
            on_values(_cast("f32")),
            permuted(source, 32, 128, values=values),
        )


def _to_integers() -> Iterator[Program]:
    """Fractions go towards zero; what no integer of the target equals is the interpreter's."""
    fractions = (0.5, -0.5, 1.5, -1.5, 2.5, 0.99, -0.99, 7.0, -7.0, *ZEROS)
    for source in FLOATS:
        for target in ("i32", "i16", "i8", "u32", "u16", "u8"):
            values = tuple(abs(v) for v in fractions) if target in UNSIGNED else fractions
            cast = on_values(_cast(target))
            yield _program(
                f"{source}_to_{target}_fractions", cast, permuted(source, 32, 128, values=values)
            )
    for source in ("f32", "bf16"):
        for target in ("i32", "i16", "i8", "u32", "u8"):
            # XLA defines it: saturation, and 0 for NaN.
            far = (3e9, -3e9, 1e20, -1e20, 300.0, -300.0, 70000.0, -70000.0, INF, -INF, NAN)
            yield _program(
                f"{source}_to_{target}_saturates",
                on_values(_cast(target)),
                permuted(source, 32, 128, values=far),
                expected=lambda x, t=target: _saturated(x, t),
            )


def _saturated(x: np.ndarray, target: str) -> np.ndarray:
    low, high = limits(target)
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
    return np.clip(whole, low, high).astype(np.int64).astype(DTYPES[target])


def _from_integers() -> Iterator[Program]:
    """Integers that the float cannot hold are rounded to nearest, ties to even."""
    near = [sign * (2**24 + k) for k in range(1, 12) for sign in (1, -1)]
    edges = (*near, 2**31 - 1, -(2**31))
    yield _program(
        "i32_to_f32_rounds", on_values(_cast("f32")), mixed("i32", 16, 128, values=edges)
    )
    yield _program(
        "u32_to_f32_rounds",
        on_values(_cast("f32")),
        mixed("u32", 16, 128, values=(2**32 - 1, 2**31, 2**24 + 1, 2**24 + 3)),
    )
    # Fits into f32, so that rounding by way of f32 is one rounding.
    yield _program(
        "i32_to_bf16_rounds",
        on_values(_cast("bf16")),
        integers("i32", 16, 128, low=-(2**20), high=2**20),
    )
    yield _program("i16_to_bf16_rounds", on_values(_cast("bf16")), integers("i16", 16, 128))


def _booleans() -> Iterator[Program]:
    values = (NAN, INF, -INF, *ZEROS, 0.25, -3.0)
    for source in ("f32", "bf16"):
        yield _program(
            f"{source}_is_nonzero",
            on_values(lambda x: (x != 0).astype(jnp.int32)),
            permuted(source, 16, 128, values=values),
        )
        yield _program(
            f"{source}_to_bool_to_i32",
            on_values(lambda x: x.astype(bool).astype(jnp.int32)),
            permuted(source, 16, 128, values=values),
        )
    for target in ("i32", "f32", "bf16", "i16", "i8"):
        yield _program(
            f"comparison_to_{target}",
            on_values(lambda x, t=target: (x > 0).astype(DTYPES[t])),
            integers("i32", 32, 128, low=-3, high=3),
        )


def _chains() -> Iterator[Program]:
    """There and back, and by way of a third dtype."""
    for path in (
        ("i8", "f32", "i8"),
        ("i8", "bf16", "f32"),
        ("bf16", "f32", "bf16"),
        ("i32", "f32", "bf16"),
        ("u8", "i32", "f32"),
        ("i4", "i32", "i8"),
        ("i4", "i8", "bf16"),
        ("e4m3fn", "f32", "bf16"),
        ("e5m2", "bf16", "f32"),
        ("f32", "i32", "i8"),
    ):
        yield _program(
            "_".join(path),
            on_values(lambda x, a=path[1], b=path[2]: _cast(b)(_cast(a)(x))),
            _common(path[0], "i4" if "i4" in path else "i8", 64, 128),
        )


PROGRAMS: tuple[Program, ...] = (
    *_pairs(),
    *_wrapping(),
    *_narrowing(),
    *_to_integers(),
    *_from_integers(),
    *_booleans(),
    *_chains(),
)
