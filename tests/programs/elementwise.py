"""One operation on every element: arithmetic, bits, functions; in vectors and in scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from ._build import (
    BF16_FUNCTION,
    F32_FUNCTION,
    as_i32,
    by,
    folder,
    integers,
    mixed,
    normal,
    on_refs,
    on_values,
    permuted,
    small,
    smem,
    struct,
    uniform,
    vmem,
)
from ._record import Program

_program = folder(__name__)

NAN, INF = float("nan"), float("inf")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0)
TIES = (0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.49999997, 8388609.0, -4194304.5)

Rows = dict[str, Callable[..., Any]]

FLOAT_UNARY: Rows = {
    "neg": lambda x: -x,
    "abs": jnp.abs,
    "square": lambda x: x * x,
    "cube": lambda x: lax.integer_pow(x, 3),
    "isnan": as_i32(jnp.isnan),
    "isinf": as_i32(jnp.isinf),
    "isfinite": as_i32(jnp.isfinite),
    "signbit": as_i32(jnp.signbit),
    "relu": lambda x: jnp.where(x > 0, x, 0),
    "nan_to_num": lambda x: jnp.where(jnp.isnan(x), 7, x),
}
ROUNDING: Rows = {
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round_to_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "trunc": jnp.trunc,
}
FLOAT_BINARY: Rows = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}
# Quotients round once in f32; in bf16 the compiler may multiply by a rounded reciprocal.
FLOAT_DIVISION: Rows = {"div": lambda x, y: x / y, "reciprocal": lambda x, y: 1 / x}

FUNCTIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    # name: function, bounds of its argument
    "exp": (jnp.exp, -20, 20),
    "exp2": (jnp.exp2, -20, 20),
    "log": (jnp.log, 1e-6, 1e6),
    "log2": (jnp.log2, 1e-6, 1e6),
    "log1p": (jnp.log1p, -0.9, 100),
    "tanh": (jnp.tanh, -8, 8),
    "logistic": (lax.logistic, -12, 12),
    "sqrt": (jnp.sqrt, 0, 1e6),
    "rsqrt": (lax.rsqrt, 1e-6, 1e6),
    "sin": (jnp.sin, -30, 30),
    "cos": (jnp.cos, -30, 30),
    "tan": (jnp.tan, -1.2, 1.2),
    "erf": (lax.erf, -4, 4),
    "erf_inv": (lax.erf_inv, -0.9, 0.9),
}
INTEGER_UNARY: Rows = {
    "neg": lambda x: -x,
    "not": lambda x: ~x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square": lambda x: x * x,
    "population_count": lax.population_count,
    "clz": lax.clz,
}
INTEGER_BINARY: Rows = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "max": jnp.maximum,
    "min": jnp.minimum,
}
DIVISION: Rows = {
    "div": lax.div,  # towards zero
    "rem": lax.rem,  # sign of the dividend
    "floor_divide": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
}
SHIFTS: Rows = {
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
}

# What JAX composes of several operations.
COMPOSED: Rows = {
    "logaddexp": jnp.logaddexp,
    "hypot": jnp.hypot,
    "copysign": jnp.copysign,
    "floor_divide": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "rem": lax.rem,
    "reduce_precision": lambda x, y: lax.reduce_precision(x, 8, 7),
    "nextafter": lax.nextafter,
    "clip": lambda x, y: jnp.clip(x, -jnp.abs(y), jnp.abs(y)),
    "polynomial": lambda x, y: ((x * 2 + y) * x - 3) * y + 1,
    "heaviside": jnp.heaviside,
    "squared_difference": lambda x, y: (x - y) * (x - y),
}


def _floats() -> Iterator[Program]:
    for dtype, shape in (("f32", (16, 256)), ("f32", (5, 130)), ("bf16", (16, 256))):
        one = mixed(dtype, *shape, values=SPECIAL)
        for name, f in FLOAT_UNARY.items():
            yield _program(f"{name}_{dtype}_{by(shape)}", on_values(f), one)
        for name, f in FLOAT_BINARY.items():
            yield _program(f"{name}_{dtype}_{by(shape)}", on_values(f), one, one)
        ties = mixed(dtype, *shape, values=SPECIAL + TIES, share=0.7)
        for name, f in ROUNDING.items():
            yield _program(f"{name}_{dtype}_{by(shape)}", on_values(f), ties)
    for dtype, tolerance in (("f32", F32_FUNCTION), ("bf16", BF16_FUNCTION)):
        one = mixed(dtype, 16, 128, values=(INF, -INF, 1.0, -2.0, 3.0))
        for name, f in FLOAT_DIVISION.items():
            yield _program(f"{name}_{dtype}", on_values(f), one, one, tolerance=tolerance)
        yield _program(
            f"sign_{dtype}",
            on_values(jnp.sign),
            mixed(dtype, 16, 128, values=(INF, -INF, 0.0, -0.0)),
        )
        yield _program(
            f"clamp_{dtype}",
            on_values(lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(2))),
            mixed(dtype, 16, 128, values=(INF, -INF, -1.0, 2.0)),
        )


def _extrema() -> Iterator[Program]:
    # XLA on CPU is no oracle for the maximum of a NaN: it depends on the operand and the shape.
    for dtype in ("f32", "bf16"):
        for name, f in (("max", jnp.maximum), ("min", jnp.minimum)):
            yield _program(
                f"{name}_{dtype}",
                on_values(f),
                mixed(dtype, 16, 256, values=(INF, -INF, 1.0, -1.0)),
                mixed(dtype, 16, 256, values=(INF, -INF, 1.0, -1.0)),
            )
            yield _program(
                f"{name}_nan_{dtype}",
                on_values(f),
                mixed(dtype, 16, 256, values=(NAN, INF, 1.0)),
                mixed(dtype, 16, 256, values=(NAN, -INF, 2.0)),
                expected=np.maximum if name == "max" else np.minimum,
            )
            # -0 is less than +0 in `arith.maximumf` and `arith.minimumf`.
            yield _program(
                f"{name}_zeros_{dtype}",
                on_values(f),
                permuted(dtype, 8, 128, values=(0.0, -0.0)),
                permuted(dtype, 8, 128, values=(0.0, -0.0)),
                expected=_maximum_of_zeros if name == "max" else _minimum_of_zeros,
            )


def _maximum_of_zeros(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.signbit(x), y, x)


def _minimum_of_zeros(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.signbit(x), x, y)


# XLA on a CPU multiplies the bf16 argument, or logarithm, by a rounded constant first.
_IN_FLOAT32: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: np.exp2(x.astype(np.float32)).astype(x.dtype),
    "log2": lambda x: np.log2(x.astype(np.float32)).astype(x.dtype),
}


def _functions() -> Iterator[Program]:
    for name, (f, low, high) in FUNCTIONS.items():
        for dtype, tolerance in (("f32", F32_FUNCTION), ("bf16", BF16_FUNCTION)):
            argument = uniform(dtype, 16, 128, low=low, high=high)
            expected = _IN_FLOAT32.get(name) if dtype == "bf16" else None
            yield _program(
                f"{name}_{dtype}",
                on_values(f),
                argument,
                tolerance=tolerance,
                expected=expected,
            )
    for name in ("exp", "log", "tanh", "logistic", "sqrt", "rsqrt", "erf", "log1p"):
        f = FUNCTIONS[name][0]
        argument = permuted("f32", 8, 128, values=SPECIAL)
        yield _program(f"{name}_special_f32", on_values(f), argument, tolerance=F32_FUNCTION)
    # A power is an exponential of a product: the error of the logarithm grows with the exponent.
    base, exponent = (uniform("f32", 16, 128, low=lo, high=hi) for lo, hi in ((0.1, 5), (-3, 3)))
    yield _program(
        "pow_f32", on_values(lambda x, y: x**y), base, exponent, tolerance=8 * F32_FUNCTION
    )
    yield _program(
        "atan2_f32",
        on_values(jnp.arctan2),
        normal("f32", 8, 128),
        normal("f32", 8, 128),
        tolerance=F32_FUNCTION,
    )
    for exponent_of in (2, 4, -1, -2, 7):
        yield _program(
            f"integer_pow_{exponent_of}_f32",
            on_values(lambda x, n=exponent_of: lax.integer_pow(x, n)),
            uniform("f32", 8, 128, low=0.5, high=2),
            tolerance=F32_FUNCTION,
        )
    # The approximation is the hardware's; its relative error is at most one ulp of bf16.
    yield _program(
        "reciprocal_approximate_f32",
        on_values(lambda x: pltpu.reciprocal(x, approx=True)),
        uniform("f32", 8, 128, low=0.5, high=100),
        tolerance=BF16_FUNCTION,
        newest=True,
    )
    yield _program(
        "reciprocal_exact_f32",
        on_values(lambda x: pltpu.reciprocal(x)),
        uniform("f32", 8, 128, low=0.5, high=100),
        tolerance=F32_FUNCTION,
        newest=True,
    )
    for dtype, tolerance in (("f32", F32_FUNCTION), ("bf16", BF16_FUNCTION)):
        for name, f in COMPOSED.items():
            # Multiples of a quarter: quotients near an integer are that integer.
            quarters = small(dtype, 16, 128, limit=16)
            yield _program(
                f"composed_{name}_{dtype}",
                on_values(lambda x, y, f=f: f(x / 4, y / 4 + jnp.where(y == 0, 1, 0))),
                quarters,
                quarters,
                tolerance=tolerance,
            )


def _integers() -> Iterator[Program]:
    for dtype, shape in (
        ("i32", (16, 256)),
        ("i32", (5, 130)),
        ("u32", (8, 128)),
        ("i16", (16, 128)),
    ):
        edges = (*range(-3, 4), 2**31 - 1, -(2**31))
        one = mixed("i32", *shape, values=edges, share=0.3)
        if dtype != "i32":
            one = mixed(dtype, *shape, values=(0, 1, 2), share=0.2)
        for name, f in INTEGER_UNARY.items():
            yield _program(f"{name}_{dtype}_{by(shape)}", on_values(f), one)
        for name, f in INTEGER_BINARY.items():
            yield _program(f"{name}_{dtype}_{by(shape)}", on_values(f), one, one)
    for dtype in ("i32", "u32"):
        divisor = integers(dtype, 8, 128, low=1, high=1000)
        for name, f in DIVISION.items():
            yield _program(f"{name}_{dtype}", on_values(f), integers(dtype, 8, 128), divisor)
        amount = integers(dtype, 8, 128, low=0, high=31)
        for name, f in SHIFTS.items():
            yield _program(f"{name}_{dtype}", on_values(f), integers(dtype, 8, 128), amount)
    for name, f in DIVISION.items():
        negative = integers("i32", 8, 128, low=-50, high=-1)
        yield _program(f"{name}_by_negative_i32", on_values(f), integers("i32", 8, 128), negative)
    # By the width or more, XLA shifts everything out.
    for name, f in SHIFTS.items():
        far = integers("i32", 8, 128, low=0, high=40)
        yield _program(f"{name}_far_i32", on_values(f), integers("i32", 8, 128), far)
    for divisor in (2, 3, 8, 128, -7):
        yield _program(
            f"floor_divide_and_mod_{divisor}_i32",
            on_values(lambda x, d=divisor: (x // d, x % d)),
            integers("i32", 8, 128),
        )
    yield _program(
        "clamp_i32", on_values(lambda x: jnp.clip(x, -5, 9)), small("i32", 16, 128, limit=20)
    )
    for shift in (1, 4, 31):
        yield _program(
            f"shift_by_constant_{shift}_i32",
            on_values(lambda x, s=shift: (x << s, x >> s)),
            integers("i32", 8, 128),
        )
    for dtype in ("i8", "u8", "u16", "bool", "i4"):
        for name in ("and", "or", "xor"):
            inputs = [_any(dtype, 32, 128)] * 2
            yield _program(f"{name}_{dtype}", on_values(INTEGER_BINARY[name]), *inputs)
        yield _program(f"not_{dtype}", on_values(lambda x: ~x), _any(dtype, 32, 128))


def _any(dtype: str, *shape: int) -> Any:
    if dtype == "bool":
        return lambda rng: rng.random(shape) < 0.5
    return integers(dtype, *shape)


SCALARS: dict[str, Rows] = {
    "i32": {
        "add": lambda x, y: x + y,
        "sub_mul": lambda x, y: (x - y) * 3,
        "div": lax.div,
        "rem": lax.rem,
        "floor_divide": lambda x, y: x // y,
        "mod": lambda x, y: x % y,
        "min_max": lambda x, y: jnp.minimum(x, y) - jnp.maximum(x, 5),
        "shifts": lambda x, y: (x << 3) ^ lax.shift_right_logical(x, 5) ^ (x >> y),
        "bits": lambda x, y: (x & y) | ~x ^ y,
        "select": lambda x, y: jnp.where(x > y, x, jnp.where(x == y, 1, -y)),
        "abs_sign": lambda x, y: jnp.abs(x) + jnp.sign(y),
        "clamp": lambda x, y: jnp.clip(x, -4, y),
    },
    "f32": {
        "add_mul": lambda x, y: (x + y) * x,
        "sub": lambda x, y: x - y,
        "min_max": lambda x, y: jnp.minimum(x, y) - jnp.maximum(x, 0.5),
        "select": lambda x, y: jnp.where(x > y, x, -y),
        "through_i32": lambda x, y: (x.astype(jnp.int32) + y.astype(jnp.int32)).astype(jnp.float32),
        "floor": lambda x, y: jnp.floor(x) + jnp.ceil(y),
        "round": lambda x, y: jnp.round(x) + jnp.round(y),
        "div": lambda x, y: x / y,
        "abs": lambda x, y: jnp.abs(x) - jnp.abs(y),
        "exp": lambda x, y: jnp.exp(x),
        "sqrt": lambda x, y: jnp.sqrt(y * y),
        "rsqrt": lambda x, y: lax.rsqrt(y * y),
        "tanh": lambda x, y: jnp.tanh(x),
        "pow": lambda x, y: lax.integer_pow(x, 3),
    },
    "u32": {"add": lambda x, y: x + y, "div": lax.div, "shift": lambda x, y: x >> 3},
}
INEXACT_SCALARS = ("div", "exp", "sqrt", "rsqrt", "tanh", "pow", "add_mul")


def _scalar(f: Callable[..., Any], count: int) -> Callable[..., None]:
    """Both operands and the result in SMEM, one pair after the other."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        for i in range(count):
            o_ref[i] = f(x_ref[i], y_ref[i])

    return kernel


def _scalars() -> Iterator[Program]:
    for dtype, rows in SCALARS.items():
        for name, f in rows.items():
            call = on_refs(
                _scalar(f, 8),
                struct(dtype, 8),
                in_specs=[smem(), smem()],
                out_specs=smem(),
            )
            if dtype in ("f32", "bf16"):
                inputs = (normal(dtype, 8, scale=4), uniform(dtype, 8, low=1, high=9))
            else:
                inputs = (integers(dtype, 8), integers(dtype, 8, low=1, high=9))
            tolerance = F32_FUNCTION if dtype == "f32" and name in INEXACT_SCALARS else 0.0
            yield _program(f"scalar_{name}_{dtype}", call, *inputs, tolerance=tolerance)
    for dtype in ("f32", "i32", "bf16"):
        yield _program(
            f"scalar_times_vector_{dtype}",
            on_refs(_scale, struct(dtype, 8, 128), in_specs=[smem(), vmem()]),
            small(dtype, 2),
            small(dtype, 8, 128),
        )


def _scale(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * s_ref[0] + s_ref[1]


PROGRAMS: tuple[Program, ...] = (
    *_floats(),
    *_extrema(),
    *_functions(),
    *_integers(),
    *_scalars(),
)
