"""What the executor of compiler IR computes: integers, floats, casts, comparisons, products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mosaic_operations import assert_same, function

from conformance.emulator import Unknown
from conformance.emulator.types import element

F32 = np.float32
NAN, INF = math.nan, math.inf

MAX, MIN = 2**31 - 1, -(2**31)
# operation, element type, operands, result
INTEGERS = [
    ("arith.addi", "i32", [[MAX, -1], [1, 1]], [MIN, 0]),
    ("arith.addi", "i8", [[127, -128], [1, -1]], [-128, 127]),
    ("arith.addi", "i4", [[7, -8], [1, -1]], [-8, 7]),
    ("arith.subi", "i16", [[-(2**15)], [1]], [2**15 - 1]),
    ("arith.muli", "i32", [[65536, 3], [65536, -5]], [0, -15]),
    ("arith.muli", "i4", [[3, -8], [3, -1]], [-7, -8]),
    ("arith.divsi", "i32", [[7, -7, 7, -7], [2, 2, -2, -2]], [3, -3, -3, 3]),
    ("arith.divsi", "i32", [[5, 0, MIN], [0, 0, -1]], [-1, -1, MIN]),
    ("arith.remsi", "i32", [[7, -7, 7, -7], [2, 2, -2, -2]], [1, -1, 1, -1]),
    ("arith.remsi", "i32", [[5, 0, MIN], [0, 0, -1]], [5, 0, 0]),
    ("arith.divui", "i32", [[-2, 5, 7], [2, 0, -1]], [MAX, -1, 0]),
    ("arith.remui", "i32", [[-1, 5], [10, 0]], [5, 5]),
    ("arith.floordivsi", "i32", [[7, -7], [2, 2]], [3, -4]),
    ("arith.ceildivsi", "i32", [[7, -7], [2, 2]], [4, -3]),
    ("arith.shli", "i32", [[1, 1, 1, -1], [31, 32, -1, 4]], [MIN, 0, 0, -16]),
    ("arith.shrsi", "i32", [[-8, -8, 8, -8], [1, 32, 99, -1]], [-4, -1, 0, -1]),
    ("arith.shrui", "i32", [[-1, -1, -1], [28, 32, -1]], [15, 0, 0]),
    ("arith.shrui", "i8", [[-128, -128], [7, 8]], [1, 0]),
    ("arith.shli", "i4", [[1, 3, 1], [3, 2, 4]], [-8, -4, 0]),
    ("arith.shrsi", "i4", [[-8, -8], [2, 5]], [-2, -1]),
    ("arith.shrui", "i4", [[-1, -8], [1, 3]], [7, 1]),
    ("arith.maxsi", "i32", [[-1, MIN], [1, MAX]], [1, MAX]),
    ("arith.maxui", "i32", [[-1, MIN], [1, MAX]], [-1, MIN]),
    ("arith.minui", "i8", [[-1, 3], [1, 4]], [1, 3]),
    ("arith.minsi", "i4", [[-8, 7], [7, 6]], [-8, 6]),
    ("arith.maxui", "i4", [[-8, 3], [7, 6]], [-8, 6]),
    ("arith.xori", "i32", [[-1], [5]], [-6]),
    ("math.absi", "i32", [[MIN, -3]], [MIN, 3]),
    ("math.ctpop", "i32", [[-1, 0, 6]], [32, 0, 2]),
    ("math.ctlz", "i32", [[0, 1, -1, 255]], [32, 31, 0, 24]),
    ("math.ctlz", "i8", [[0, 1, -1]], [8, 7, 0]),
    ("math.cttz", "i32", [[0, 8, MIN, -1]], [32, 3, 31, 0]),
]
FLOATS = [
    ("arith.maximumf", "f32", [[NAN, 1, 0.0], [1, NAN, 0.0]], [NAN, NAN, 0.0]),
    ("arith.minimumf", "f32", [[NAN, 1, -0.0], [1, NAN, -0.0]], [NAN, NAN, -0.0]),
    ("arith.maximumf", "bf16", [[-INF, 2, NAN], [-1, 3, 0]], [-1, 3, NAN]),
    ("arith.maxnumf", "f32", [[NAN, 1, NAN], [1, NAN, NAN]], [1, 1, NAN]),
    ("arith.minnumf", "f32", [[NAN, 1, NAN], [1, NAN, NAN]], [1, 1, NAN]),
    ("arith.divf", "f32", [[1, -1, 0], [0, 0, 0]], [INF, -INF, NAN]),
    ("arith.remf", "f32", [[-7, 7], [2, -2]], [-1, 1]),
    ("arith.addf", "bf16", [[256, 256], [1, 3]], [256, 260]),  # rounded once, to even
    ("math.absf", "f32", [[-0.0, -INF, NAN]], [0.0, INF, NAN]),
    ("math.round", "f32", [[0.5, -1.5, 2.4]], [1, -2, 2]),
    ("math.roundeven", "f32", [[0.5, -1.5, 2.5]], [0, -2, 2]),
    ("math.rsqrt", "f32", [[4, 0, -1]], [0.5, INF, NAN]),
    ("math.copysign", "f32", [[1, -2], [-0.0, 3]], [-1, 2]),
    ("math.fma", "f32", [[1 + 2**-12], [1 - 2**-12], [-1]], [-(2.0**-24)]),
]
CASTS = [
    ("arith.extsi", "i8", "i32", [-1, 127], [-1, 127]),
    ("arith.extui", "i8", "i32", [-1, 127], [255, 127]),
    ("arith.extsi", "i1", "i32", [True, False], [-1, 0]),
    ("arith.extui", "i1", "i32", [True, False], [1, 0]),
    ("arith.extsi", "i4", "i32", [-8, 7], [-8, 7]),
    ("arith.extui", "i4", "i8", [-8, 7], [8, 7]),
    ("arith.trunci", "i32", "i8", [255, 128, 256], [-1, -128, 0]),
    ("arith.trunci", "i32", "i4", [15, 8, 16, -9], [-1, -8, 0, 7]),
    ("arith.trunci", "i32", "i1", [3, 2], [True, False]),
    ("arith.sitofp", "i32", "f32", [-1, 2**24 + 1], [-1, 2**24]),
    ("arith.uitofp", "i32", "f32", [-1, 5], [2.0**32, 5]),
    ("arith.sitofp", "i4", "f32", [-8, 7], [-8, 7]),
    ("arith.uitofp", "i4", "f32", [-8, 7], [8, 7]),
    ("arith.fptosi", "f32", "i32", [2.9, -2.9, NAN, INF, -INF], [2, -2, 0, MAX, MIN]),
    ("arith.fptosi", "f32", "i8", [127.9, 300, -300], [127, 127, -128]),
    ("arith.fptosi", "f32", "i4", [7.9, 100, -100], [7, 7, -8]),
    ("arith.fptoui", "f32", "i32", [-1, 2.0**31, INF, NAN], [0, MIN, -1, 0]),
    ("arith.truncf", "f32", "bf16", [1 + 2**-8, 1 + 3 * 2**-8], [1, 1 + 2**-6]),
    ("arith.extf", "bf16", "f32", [1.5, -INF], [1.5, -INF]),
    ("arith.index_cast", "i32", "index", [-3], [-3]),
    ("arith.bitcast", "f32", "i32", [1.0, -0.0], [0x3F800000, MIN]),
]


def check_elementwise(
    name: str, types: Sequence[str], operands: Sequence[Any], to: str, expected: Any, **more: str
) -> None:
    """An operation on vectors, and on each element as a scalar."""
    arrays = [np.array(v, element(t).dtype) for v, t in zip(operands, types, strict=True)]
    want, n = np.array(expected, element(to).dtype), len(expected)
    vectors = [f"vector<{n}x{t}>" for t in types]
    with np.errstate(all="ignore"):
        assert_same(function(name, vectors, [f"vector<{n}x{to}>"], **more)(*arrays), want)
        on_scalars = function(name, types, [to], **more)
        for number in range(n):
            got = on_scalars(*(scalar(a[number], t) for a, t in zip(arrays, types, strict=True)))
            assert type(got) is type(scalar(want[number], to))
            assert_same(np.asarray(got).astype(want.dtype), want[number])


def scalar(value: Any, name: str) -> Any:
    """As the executor keeps it: a bool, an int, or a NumPy float."""
    if name == "i1":
        return bool(value)
    return value if element(name).is_float else int(value)


@pytest.mark.parametrize(("name", "of", "operands", "expected"), INTEGERS + FLOATS)
def test_arithmetic(name, of, operands, expected):
    check_elementwise(name, [of] * len(operands), operands, of, expected)


def test_zeros_of_either_sign_have_an_order():
    zeros = [[0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0]]
    check_elementwise("arith.maximumf", ["f32", "f32"], zeros, "f32", [0.0, 0.0, 0.0, -0.0])
    check_elementwise("arith.minimumf", ["f32", "f32"], zeros, "f32", [-0.0, -0.0, 0.0, -0.0])


@pytest.mark.parametrize(("name", "of", "to", "operand", "expected"), CASTS)
def test_casts(name, of, to, operand, expected):
    check_elementwise(name, [of], [operand], to, expected)


def test_casts_that_name_their_rounding():
    mode = {"rounding_mode": "#tpu.rounding_mode<to_nearest_even>"}
    check_elementwise("tpu.fptosi", ["f32"], [[2.5, -3.5, 3e9]], "i32", [2, -4, MAX], **mode)
    mode = {"rounding_mode": "#tpu.rounding_mode<towards_zero>"}
    check_elementwise("tpu.fptosi", ["f32"], [[2.5, -3.5]], "i32", [2, -3], **mode)
    with pytest.raises(Unknown, match=r"tpu\.truncf rounding towards_zero"):
        function("tpu.truncf", ["f32"], ["bf16"], **mode)


def test_both_halves_of_a_product():
    for name, high in (("arith.mulsi_extended", -1), ("arith.mului_extended", 1)):
        both = function(name, ["vector<1xi32>"] * 2, ["vector<1xi32>"] * 2)
        found = both(np.array([-2], np.int32), np.array([2], np.int32))
        assert [int(f[0]) for f in found] == [-4, high]


PREDICATES = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
# of (-1, 1), (1, -1) and (2, 2)
INTEGER_ORDER = ["001", "110", "100", "101", "010", "011", "010", "011", "100", "101"]


@pytest.mark.parametrize("of", ["i32", "i8", "i4"])
@pytest.mark.parametrize("number", range(10))
def test_integers_compare(number, of):
    a, b, want = [-1, 1, 2], [1, -1, 2], [c == "1" for c in INTEGER_ORDER[number]]
    predicate = {"predicate": f"{number} : i64"}
    check_elementwise("arith.cmpi", [of, of], [a, b], "i1", want, **predicate)


# of less, greater, equal and unordered. `one` follows libtpu, where NaN differs from everything.
FLOAT_ORDER = {
    "false": "0000", "oeq": "0010", "ogt": "0100", "oge": "0110", "olt": "1000", "ole": "1010",
    "one": "1101", "ord": "1110", "ueq": "0011", "ugt": "0101", "uge": "0111", "ult": "1001",
    "ule": "1011", "une": "1101", "uno": "0001", "true": "1111",
}  # fmt: skip


@pytest.mark.parametrize("of", ["f32", "bf16"])
@pytest.mark.parametrize("name", FLOAT_ORDER)
def test_floats_compare(name, of):
    number = list(FLOAT_ORDER).index(name)
    want = [c == "1" for c in FLOAT_ORDER[name]]
    operands = [[1, 2, 0.0, NAN], [2, 1, -0.0, NAN]]
    predicate = {"predicate": f"{number} : i64"}
    check_elementwise("arith.cmpf", [of, of], operands, "i1", want, **predicate)


def test_select_by_a_mask_and_by_a_flag():
    vector = "vector<2xf32>"
    a, b = np.array([1, 2], F32), np.array([3, 4], F32)
    masked = function("arith.select", ["vector<2xi1>", vector, vector], [vector])
    assert_same(masked(np.array([True, False]), a, b), np.array([1, 4], F32))
    flagged = function("arith.select", ["i1", vector, vector], [vector])
    assert flagged(True, a, b) is a and flagged(False, a, b) is b


# --------------------------------------------------------------------------- sums of products

DOT = "#tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>"
TRANSPOSED = "#tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>"


def test_a_matmul_rounds_float32_operands_to_bfloat16_unless_told_not_to():
    """1 + 2^-9 is 1 in bfloat16."""
    texts = ["vector<8x16xf32>", "vector<16x8xf32>", "vector<8x8xf32>"]
    x, y, c = np.full((8, 16), 1 + 2**-9, F32), np.ones((16, 8), F32), np.ones((8, 8), F32)
    coarse = function("tpu.matmul", texts, texts[2:], dimension_numbers=DOT)
    fine = {"precision": "#tpu.contract_precision<fp32>"}
    exact = function("tpu.matmul", texts, texts[2:], dimension_numbers=DOT, **fine)
    assert (coarse(x, y, c) == 17).all()
    assert (exact(x, y, c) == 17 + 2**-5).all()


def test_a_matmul_contracts_the_dimensions_that_it_names():
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 9, s).astype(np.int8) for s in ((8, 16), (24, 16)))
    texts = ["vector<8x16xi8>", "vector<24x16xi8>", "vector<8x24xi32>"]
    dot = function("tpu.matmul", texts, texts[2:], dimension_numbers=TRANSPOSED)
    found = dot(x, y, np.full((8, 24), 5, np.int32))
    assert_same(found, (x.astype(np.int64) @ y.T.astype(np.int64) + 5).astype(np.int32))


def test_reductions_start_from_what_they_are_given():
    kinds = {"add": 3 + 1 + 2, "mul": 3 * 1 * 2, "maxsi": 3, "minsi": 1}
    for kind, want in kinds.items():
        reduce = function(
            "vector.multi_reduction", ["vector<2x1xi32>", "vector<1xi32>"], ["vector<1xi32>"],
            kind=f"#vector.kind<{kind}>", reduction_dims="[0]",
        )  # fmt: skip
        assert reduce(np.array([[1], [2]], np.int32), np.array([3], np.int32)).tolist() == [want]
    with pytest.raises(Unknown, match="reduction kind minui"):
        function(
            "vector.multi_reduction", ["vector<2xi32>", "i32"], ["i32"],
            kind="#vector.kind<minui>", reduction_dims="[0]",
        )  # fmt: skip


def test_a_rotation_moves_towards_higher_indices():
    rotate = function(
        "tpu.dynamic_rotate", ["vector<4xi32>", "i32"], ["vector<4xi32>"], dimension="0 : si32"
    )
    assert rotate(np.arange(4, dtype=np.int32), 1).tolist() == [3, 0, 1, 2]
