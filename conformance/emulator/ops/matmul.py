"""The matrix unit: `tpu.matmul` and `vector.contract`.

Source: jaxlib/mosaic/dialect/tpu/tpu_ops.td. At default precision float32 operands are rounded to
bfloat16 and the products summed in float32: one pass, which is what every chip's generated code
does. Sums are in NumPy's order, which no contract may depend on.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from conformance.emulator.ops import Function, Op, Unknown, element_of, operation
from conformance.emulator.types import Element, Vector

_FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def widen(x: np.ndarray) -> np.ndarray:
    """A narrow float array as float32, exactly."""
    if x.dtype == _FLOAT32:
        return x
    if x.dtype == _BFLOAT16:
        raw = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32)
        return np.left_shift(raw, np.uint32(16), out=raw).view(np.float32)
    return x.astype(np.float32)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16, still held in float32."""
    return widen(x.astype(_BFLOAT16))


def product(a: np.ndarray, b: np.ndarray, acc: Element, precision: str) -> np.ndarray:
    """a @ b in the accumulator's type; batch dimensions lead."""
    if not acc.is_float:
        exact = a.astype(np.float64) @ b.astype(np.float64)  # below 2**53
        return exact.astype(np.int64).astype(acc.dtype)
    if precision == "bf16x3":
        return _three_passes(widen(a), widen(b))
    if precision != "fp32":
        a = to_bfloat16(a) if a.dtype == _FLOAT32 else a
        b = to_bfloat16(b) if b.dtype == _FLOAT32 else b
    return widen(a) @ widen(b)


def _three_passes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a_high, b_high = to_bfloat16(a), to_bfloat16(b)
    a_low, b_low = to_bfloat16(a - a_high), to_bfloat16(b - b_high)
    return a_high @ b_high + (a_high @ b_low + a_low @ b_high)


_DIMENSIONS = re.compile(r"\[([\d, ]*)\]")


@operation("tpu.matmul")
def _matmul(op: Op) -> Function:
    lhs, rhs, out = op.vector(0), op.vector(1), op.result()
    precision = op.word("precision") if "precision" in op.attributes else "bf16"
    left, right, order = _axes(op, lhs, rhs)
    dtype = out.element.dtype
    if op.vector(2).element.bits != 32:
        raise Unknown(f"tpu.matmul accumulating in {op.vector(2).element.name}")
    acc = op.vector(2).element

    def matmul(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        found = product(left(a), right(b), acc, precision)
        return (order(found) + c).astype(dtype, copy=False)

    return matmul


def _axes(op: Op, lhs: Vector, rhs: Vector) -> tuple[Function, Function, Function]:
    """Functions that bring operands to (batch, m, k) and (batch, k, n), and the product back."""
    if "dimension_numbers" not in op.attributes:
        left = (lambda x: x.T) if op.flag("transpose_lhs") else (lambda x: x)
        right = (lambda x: x.T) if op.flag("transpose_rhs") else (lambda x: x)
        return left, right, lambda x: x
    groups = [
        tuple(int(n) for n in part.split(",") if n.strip())
        for part in _DIMENSIONS.findall(op.attributes["dimension_numbers"])
    ]
    lhs_contract, rhs_contract, lhs_free, rhs_free, order, lhs_batch, rhs_batch = groups
    if len(lhs_contract) != 1 or len(rhs_free) != 1 or len(lhs_free) > 1:
        raise Unknown(f"tpu.matmul with {op.attributes['dimension_numbers']}")
    if not lhs_free:  # a vector: one row that the result does not have
        return _axes_of_vector(lhs_batch + lhs_contract, rhs_batch + rhs_contract + rhs_free)
    left_order = lhs_batch + lhs_free + lhs_contract
    right_order = rhs_batch + rhs_contract + rhs_free
    # The output's dimensions come as pairs (operand, its dimension).
    natural = [(0, d) for d in lhs_batch] + [(0, lhs_free[0]), (1, rhs_free[0])]
    wanted = list(zip(order[::2], order[1::2], strict=True))
    back = tuple(natural.index(pair) for pair in wanted)
    return (
        lambda x: x.transpose(left_order),
        lambda x: x.transpose(right_order),
        lambda x: x.transpose(back),
    )


def _axes_of_vector(
    left: tuple[int, ...], right: tuple[int, ...]
) -> tuple[Function, Function, Function]:
    return (
        lambda x: np.expand_dims(x.transpose(left), -2),
        lambda x: x.transpose(right),
        lambda x: x.squeeze(-2),
    )


@operation("vector.contract")
def _contract(op: Op) -> Function:
    """Only as Pallas emits it, by its affine maps."""
    maps = re.findall(r"\(([d\d, ]+)\) -> \(([d\d, ]*)\)", op.attributes["indexing_maps"])
    letters = [
        "".join(chr(97 + int(n)) for n in re.findall(r"d(\d+)", target)) for _, target in maps
    ]
    equation = f"{letters[0]},{letters[1]}->{letters[2]}"
    element = element_of(op.results[0])
    precision = op.word("precision") if "precision" in op.attributes else "bf16"

    def contract(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if element.is_float and precision != "fp32":
            a = to_bfloat16(a) if a.dtype == _FLOAT32 else a
            b = to_bfloat16(b) if b.dtype == _FLOAT32 else b
        wide = np.float32 if element.is_float else np.int64
        found = np.einsum(equation, a.astype(wide), b.astype(wide))
        return (found + c).astype(element.dtype)

    return contract
