"""Matrix products: transposed operands, batches, dtypes, precisions, odd sizes.

Inputs are small integers: they are exact in bf16, so a pass that rounds operands of f32 changes
nothing, and every order of adding gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ._build import DTYPES, Maker, folder, normal, on_values, small
from ._record import Program

_program = folder(__name__)

SIZES = (
    # m, k, n
    (8, 128, 128),
    (16, 256, 128),
    (128, 128, 128),
    (5, 130, 7),
    (24, 384, 256),
    (1, 128, 256),
    (8, 8, 8),
    (9, 40, 200),
    (128, 16, 128),
)
# Which axis of each operand is contracted.
FORMS = {"nn": (1, 0), "nt": (1, 1), "tn": (0, 0), "tt": (0, 1)}
PRECISIONS = {"default": lax.Precision.DEFAULT, "highest": lax.Precision.HIGHEST}
# Dtypes of operands, and of the result that the MXU accumulates.
DTYPE_PAIRS = (("bf16", "f32"), ("i8", "i32"), ("e4m3fn", "f32"), ("e5m2", "f32"), ("i4", "i32"))
_LIMITS = {"e5m2": 4, "i4": 7, "i8": 100}


def _shapes(form: str, m: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    lhs, rhs = FORMS[form]
    return ((m, k) if lhs == 1 else (k, m)), ((k, n) if rhs == 0 else (n, k))


def _dot(form: str, out: str, precision: str = "default") -> Callable[..., Any]:
    lhs, rhs = FORMS[form]
    return on_values(
        lambda x, y: lax.dot_general(
            x,
            y,
            (((lhs,), (rhs,)), ((), ())),
            precision=PRECISIONS[precision],
            preferred_element_type=DTYPES[out],
        )
    )


def _operands(form: str, dtype: str, m: int, k: int, n: int) -> Iterator[Maker]:
    for shape in _shapes(form, m, k, n):
        yield small(dtype, *shape, limit=_LIMITS.get(dtype, 8))


def _oracle(form: str) -> Callable[..., np.ndarray]:
    """For int4, of which XLA on CPU compiles no product."""
    lhs, rhs = FORMS[form]
    return lambda x, y: np.tensordot(x.astype(np.int32), y.astype(np.int32), ((lhs,), (rhs,)))


def _f32() -> Iterator[Program]:
    for size in SIZES:
        for form in FORMS:
            if form == "tt" and size != SIZES[0]:
                continue
            for precision in PRECISIONS:
                yield _program(
                    f"{form}_f32_{precision}_{'x'.join(map(str, size))}",
                    _dot(form, "f32", precision),
                    *_operands(form, "f32", *size),
                )


def _dtypes() -> Iterator[Program]:
    for dtype, out in DTYPE_PAIRS:
        for size in ((32, 128, 128), (64, 256, 128), (5, 130, 7), (32, 384, 256)):
            for form in ("nn", "nt", "tn"):
                yield _program(
                    f"{form}_{dtype}_{'x'.join(map(str, size))}",
                    _dot(form, out),
                    *_operands(form, dtype, *size),
                    expected=_oracle(form) if dtype == "i4" else None,
                )
    for dtypes in (("bf16", "f32"), ("f32", "bf16"), ("i8", "bf16"), ("bf16", "e4m3fn")):
        yield _program(
            f"mixed_{dtypes[0]}_{dtypes[1]}",
            _dot("nn", "f32"),
            small(dtypes[0], 32, 128, limit=4),
            small(dtypes[1], 128, 128, limit=4),
        )


def _results() -> Iterator[Program]:
    """The accumulator is f32 (or i32); what is stored may be narrower."""
    yield _program(
        "bf16_result",
        on_values(lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32).astype(x.dtype)),
        small("bf16", 16, 128),
        small("bf16", 128, 128),
    )
    yield _program(
        "accumulates",
        on_values(lambda a, x, y: a + jnp.dot(x, y, preferred_element_type=jnp.float32)),
        small("f32", 16, 128),
        small("f32", 16, 256),
        small("f32", 256, 128),
    )
    yield _program(
        "accumulates_i32",
        on_values(lambda a, x, y: a + jnp.dot(x, y, preferred_element_type=jnp.int32)),
        small("i32", 32, 128, limit=10**9),
        small("i8", 32, 128, limit=127),
        small("i8", 128, 128, limit=127),
    )
    yield _program(
        "two_products",
        on_values(lambda x, y, z: (x @ y) @ z),
        small("f32", 16, 128, limit=1),
        small("f32", 128, 128, limit=1),
        small("f32", 128, 256, limit=1),
    )
    yield _program(
        "transposed_by_hand",
        on_values(lambda x, y: x @ y.T),
        small("f32", 16, 128),
        small("f32", 32, 128),
    )
    # Sums of bf16 products, added in f32 in any order: n terms differ by at most n ulp of 1.
    yield _program(
        "bf16_full_mantissa",
        on_values(lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32)),
        normal("bf16", 16, 128),
        normal("bf16", 128, 128),
        tolerance=128 * 2.0**-22,
    )
    yield _program(
        "f32_highest_full_mantissa",
        _dot("nn", "f32", "highest"),
        normal("f32", 16, 128),
        normal("f32", 128, 128),
        tolerance=128 * 2.0**-22,
    )


def _batches() -> Iterator[Program]:
    numbers = (((2,), (1,)), ((0,), (0,)))
    for dtype, out in (("f32", "f32"), ("bf16", "f32"), ("i8", "i32")):
        yield _program(
            f"batch_nn_{dtype}",
            on_values(
                lambda x, y, o=out: lax.dot_general(x, y, numbers, preferred_element_type=DTYPES[o])
            ),
            small(dtype, 3, 32, 128),
            small(dtype, 3, 128, 128),
        )
        yield _program(
            f"batch_nt_{dtype}",
            on_values(
                lambda x, y, o=out: lax.dot_general(
                    x, y, (((2,), (2,)), ((0,), (0,))), preferred_element_type=DTYPES[o]
                )
            ),
            small(dtype, 2, 32, 128),
            small(dtype, 2, 64, 128),
        )
    yield _program(
        "einsum_bqd_bkd_f32",
        on_values(lambda q, k: jnp.einsum("bqd,bkd->bqk", q, k)),
        small("f32", 2, 16, 128),
        small("f32", 2, 128, 128),
    )
    yield _program(
        "vector_matrix_f32",
        on_values(lambda x, y: x[0] @ y),
        small("f32", 1, 128),
        small("f32", 128, 128),
    )
    yield _program(
        "matrix_vector_f32",
        on_values(lambda x, y: jnp.dot(x, y[:, :1])),
        small("f32", 16, 128),
        small("f32", 128, 128),
    )


PROGRAMS: tuple[Program, ...] = (*_f32(), *_dtypes(), *_results(), *_batches())
