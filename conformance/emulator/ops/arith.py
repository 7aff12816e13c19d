"""Dialects `arith` and `math`: element-wise on scalars and vectors.

Source: mlir.llvm.org/docs/Dialects/ArithOps and MathOps. Integers wrap around. Where MLIR leaves
a result open, the TPU's reading is taken: conversions from float saturate and turn NaN into 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.emulator.memory import from_bits
from conformance.emulator.ops import (
    Function,
    Op,
    Unknown,
    element_of,
    elementwise,
    is_scalar,
    operation,
)
from conformance.emulator.types import Element

_FLOAT32 = np.dtype(np.float32)


def rounded(function: Callable[..., Any], of: Element) -> Function:
    """A float32 function as a function of a narrower float: computed in float32, rounded once."""
    if of.dtype == _FLOAT32:
        return function
    return lambda *values: function(*(v.astype(np.float32) for v in values)).astype(of.dtype)


def _floats(name: str, function: Callable[..., Any]) -> None:
    @operation(name)
    def build(op: Op) -> Function:
        return elementwise(op, rounded(function, element_of(op.results[0])))


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN propagates; +0 is above -0."""
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, np.where(np.signbit(a), b, a), np.maximum(a, b))


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN propagates; -0 is below +0."""
    return -maximum(-a, -b)


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float32])(x)


def _logistic(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(np.float32(1), x), whole)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b + c).astype(np.float32)


FLOATS: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": maximum,
    "arith.minimumf": minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log1p": np.log1p,
    "math.log2": np.log2,
    "math.tanh": np.tanh,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.atan2": np.arctan2,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.round": _round_away,
    "math.roundeven": np.rint,
    "math.erf": _erf,
    "math.powf": _power,
    "math.fma": _fma,
    "math.copysign": np.copysign,
    "tpu.logistic": _logistic,
}
for _name, _function in FLOATS.items():
    _floats(_name, _function)


# --------------------------------------------------------------------------- integers


def integral(function: Callable[..., Any], of: Element, unsigned: bool = False) -> Function:
    """An integer function that wraps around; 4-bit types go through int8 and back."""
    dtype = of.dtype
    if of.is_bool:
        return _of_booleans(function, unsigned)
    if of.bits < 8:
        wide = np.uint8 if unsigned else np.int8
        low = (1 << of.bits) - 1 if unsigned else -1

        def narrow(*values: Any) -> Any:
            out = function(*(v.astype(np.int8).astype(wide) & wide(low) for v in values))
            return wrap(out, of)

        return narrow
    if unsigned:
        raw = of.unsigned
        return lambda *values: function(*(v.view(raw) for v in values)).astype(raw).view(dtype)
    return lambda *values: function(*values).astype(dtype, copy=False)


_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def _of_booleans(function: Callable[..., Any], unsigned: bool) -> Function:
    """An integer function of one bit, which is -1 where a sign is read."""
    if function in _BITWISE:
        return function
    true = np.int8(1 if unsigned else -1)
    return lambda *values: (function(*(v.astype(np.int8) * true for v in values)) & 1).astype(
        np.bool_
    )


def _integers(name: str, function: Callable[..., Any], unsigned: bool = False) -> None:
    @operation(name)
    def build(op: Op) -> Function:
        return elementwise(op, integral(function, element_of(op.results[0]), unsigned))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero; x / 0 is -1 and the smallest number / -1 is itself, as on XLA."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.abs(a.astype(np.int64)) // np.abs(safe.astype(np.int64))
    signed = np.where((a < 0) != (safe < 0), -quotient, quotient)
    return np.where(b == 0, -1, signed)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sign of the dividend; x % 0 is x, as on XLA."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    found = np.abs(a.astype(np.int64)) % np.abs(safe.astype(np.int64))
    return np.where(b == 0, a, np.where(a < 0, -found, found))


def _divide_unsigned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, ~b.dtype.type(0), a // np.where(b == 0, b.dtype.type(1), b))


def _remainder_unsigned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, a % np.where(b == 0, b.dtype.type(1), b))


def _shift(function: Callable[..., Any], sign: bool = False) -> Callable[..., Any]:
    """A shift; by the width or more it gives 0, or copies of the sign."""

    def shifted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = a.dtype.itemsize * 8
        amount = b.astype(np.int64) & 0xFFFFFFFF
        inside = function(a, np.minimum(amount, bits - 1).astype(a.dtype))
        outside = np.where(a < 0, a.dtype.type(-1), a.dtype.type(0)) if sign else a.dtype.type(0)
        return np.where(amount < bits, inside, outside)

    return shifted


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    count = np.full(x.shape, bits, x.dtype)
    for bit in range(bits):
        count = np.where(x >> x.dtype.type(bit) != 0, x.dtype.type(bits - 1 - bit), count)
    return count


def _trailing_zeros(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    low = x & (~x + x.dtype.type(1))
    return np.where(x == 0, x.dtype.type(bits), x.dtype.type(bits - 1) - _leading_zeros(low))


SIGNED: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _divide,
    "arith.remsi": _remainder,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shrsi": _shift(np.right_shift, sign=True),
    "arith.floordivsi": lambda a, b: a.astype(np.int64) // np.where(b == 0, 1, b),
    "arith.ceildivsi": lambda a, b: -(-a.astype(np.int64) // np.where(b == 0, 1, b)),
    "math.absi": np.abs,
}
UNSIGNED: dict[str, Callable[..., Any]] = {
    "arith.divui": _divide_unsigned,
    "arith.remui": _remainder_unsigned,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
    "arith.shrui": _shift(np.right_shift),
    "arith.shli": _shift(np.left_shift),
    "math.ctpop": np.bitwise_count,
    "math.ctlz": _leading_zeros,
    "math.cttz": _trailing_zeros,
}
for _name, _function in SIGNED.items():
    _integers(_name, _function)
for _name, _function in UNSIGNED.items():
    _integers(_name, _function, unsigned=True)


@operation("arith.mulsi_extended", "arith.mului_extended")
def _multiply_extended(op: Op) -> Function:
    element = element_of(op.operands[0])
    wide = np.int64 if op.name == "arith.mulsi_extended" else np.uint64
    raw = element.dtype if wide is np.int64 else element.unsigned
    bits = element.bits

    def both(a: Any, b: Any) -> tuple[Any, Any]:
        product = np.asarray(a, element.dtype).view(raw).astype(wide) * np.asarray(
            b, element.dtype
        ).view(raw).astype(wide)
        low, high = product.astype(element.dtype), (product >> wide(bits)).astype(element.dtype)
        return low, high

    return both


# --------------------------------------------------------------------------- comparisons, select

_ORDER: tuple[Callable[..., Any], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)


@operation("arith.cmpi")
def _compare_integers(op: Op) -> Function:
    """Predicates: eq ne slt sle sgt sge ult ule ugt uge."""
    predicate = op.integer("predicate")
    element = element_of(op.operands[0])
    if predicate < 6:
        function = _ORDER[predicate]
        return elementwise(op, function)
    function = _ORDER[predicate - 4]
    if element.bits < 8:
        mask = (1 << element.bits) - 1
        return elementwise(
            op, lambda a, b: function(a.astype(np.int8) & mask, b.astype(np.int8) & mask)
        )
    raw = element.unsigned
    return elementwise(op, lambda a, b: function(a.view(raw), b.view(raw)))


@operation("arith.cmpf")
def _compare_floats(op: Op) -> Function:
    """Predicates: false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true.

    JAX lowers `!=` to `one`, which MLIR calls false of NaN; libtpu's code for it compares in XLA's
    partial order (vcmp.ne.partialorder), where NaN differs from everything. That is followed.
    """
    predicate = op.integer("predicate")
    ordered = (None, np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)

    def unordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.isnan(a) | np.isnan(b)

    def compare(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if predicate in (0, 15):
            return np.full(np.shape(a), predicate == 15)
        if predicate in (7, 14):
            return unordered(a, b) == (predicate == 14)
        function = ordered[predicate if predicate < 7 else predicate - 7]
        assert function is not None
        found = function(a, b)
        if predicate == 6:
            return found
        return found & ~unordered(a, b) if predicate < 7 else found | unordered(a, b)

    return elementwise(op, compare)


@operation("tpu.weird")
def _weird(op: Op) -> Function:
    """Infinity or NaN."""
    return elementwise(op, lambda x: ~np.isfinite(x))


@operation("arith.select")
def _select(op: Op) -> Function:
    if is_scalar(op.operands[0]):
        return lambda c, a, b: a if c else b
    return np.where


# --------------------------------------------------------------------------- constants, casts


@operation("arith.constant")
def _constant(op: Op) -> Function:
    value = op.constant
    return lambda: value


def to_integer(x: np.ndarray, to: Element, unsigned: bool) -> np.ndarray:
    """Truncates floats; saturates; NaN becomes 0."""
    low = 0 if unsigned else -(1 << (to.bits - 1))
    high = (1 << (to.bits if unsigned else to.bits - 1)) - 1
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=high, neginf=low)
    clipped = np.clip(wide, low, high).astype(np.int64)
    return wrap(clipped, to)


def wrap(x: np.ndarray, to: Element) -> np.ndarray:
    """The low bits of integers."""
    if to.is_bool:
        return (x & 1).astype(np.bool_)
    if to.bits >= 8:
        return x.astype(to.dtype)
    return from_bits(x.astype(np.int8) & np.int8((1 << to.bits) - 1), to)


def as_unsigned(x: np.ndarray, of: Element) -> np.ndarray:
    """The values of an integer array read without a sign, in a type that holds them."""
    if of.is_bool:
        return x.astype(np.int64)
    return x.astype(np.int64) & ((1 << of.bits) - 1)


def as_signed(x: np.ndarray, of: Element) -> np.ndarray:
    """The values of an integer array read with a sign; a true bit is -1."""
    return -x.astype(np.int64) if of.is_bool else x.astype(np.int64)


def to_float(x: np.ndarray, to: Element) -> np.ndarray:
    """Rounds once, to nearest even; narrower types go through float32, as the chip does."""
    if to.dtype.itemsize >= 4:
        return x.astype(to.dtype)
    return x.astype(np.float32).astype(to.dtype)


def _cast(name: str, function: Callable[[np.ndarray, Element, Element], np.ndarray]) -> None:
    @operation(name)
    def build(op: Op) -> Function:
        source, to = element_of(op.operands[0]), element_of(op.results[0])
        return elementwise(op, lambda x: function(x, source, to))


CASTS: dict[str, Callable[[np.ndarray, Element, Element], np.ndarray]] = {
    "arith.extf": lambda x, _, to: x.astype(to.dtype),
    "tpu.extf": lambda x, _, to: x.astype(to.dtype),
    "arith.truncf": lambda x, _, to: to_float(x, to),
    "arith.extsi": lambda x, of, to: as_signed(x, of).astype(to.dtype),
    "arith.extui": lambda x, of, to: wrap(as_unsigned(x, of), to),
    "arith.trunci": lambda x, _, to: wrap(x, to),
    "arith.sitofp": lambda x, of, to: to_float(as_signed(x, of), to),
    "arith.uitofp": lambda x, of, to: to_float(as_unsigned(x, of), to),
    "arith.fptosi": lambda x, _, to: to_integer(x, to, unsigned=False),
    "arith.fptoui": lambda x, _, to: to_integer(x, to, unsigned=True),
    "arith.index_cast": lambda x, of, to: as_signed(x, of).astype(to.dtype),
    "arith.index_castui": lambda x, of, to: wrap(as_unsigned(x, of), to),
}
for _name, _function in CASTS.items():
    _cast(_name, _function)


@operation("tpu.fptosi", "tpu.fptoui")
def _to_integer_rounded(op: Op) -> Function:
    to = element_of(op.results[0])
    unsigned = op.name.endswith("ui")
    nearest = op.word("rounding_mode") == "to_nearest_even"
    return elementwise(
        op,
        lambda x: to_integer(np.rint(x.astype(np.float32)) if nearest else x, to, unsigned),
    )


@operation("tpu.truncf", "tpu.sitofp", "tpu.uitofp")
def _to_float_rounded(op: Op) -> Function:
    source, to = element_of(op.operands[0]), element_of(op.results[0])
    if op.word("rounding_mode") != "to_nearest_even":
        raise Unknown(f"{op.name} rounding {op.word('rounding_mode')}")
    if op.name == "tpu.truncf":
        return elementwise(op, lambda x: to_float(x, to))
    read = as_unsigned if op.name == "tpu.uitofp" else as_signed
    return elementwise(op, lambda x: to_float(read(x, source), to))


@operation("tpu.reduce_precision")
def _reduce_precision(op: Op) -> Function:
    """Rounded to fewer mantissa bits, to nearest even; NaN stays as it is."""
    element = element_of(op.operands[0])
    dropped = 23 - op.integer("mantissa_bits")
    if element.name not in ("f32", "bf16") or op.integer("exponent_bits") != 8 or dropped < 1:
        bits = op.integer("exponent_bits"), op.integer("mantissa_bits")
        raise Unknown(f"tpu.reduce_precision of {element.name} to {bits}")

    def reduce(x: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(x).view(np.uint32)
        up = np.uint32((1 << (dropped - 1)) - 1) + (raw >> np.uint32(dropped) & np.uint32(1))
        kept = (raw + up) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
        return np.where(np.isnan(x), x, kept.view(np.float32))

    return elementwise(op, rounded(reduce, element))


@operation("arith.bitcast")
def _bitcast(op: Op) -> Function:
    to = element_of(op.results[0])
    return elementwise(op, lambda x: np.asarray(x).view(to.dtype))


@operation("tpu.assume_multiple")
def _same(op: Op) -> Function:
    return lambda x: x


@operation("tpu.reciprocal")
def _reciprocal(op: Op) -> Function:
    """Approximate on the chip where asked for; exact here."""
    return elementwise(op, rounded(lambda x: np.float32(1) / x, element_of(op.results[0])))
