"""Case matmul_transpose_rhs: x @ y.T for y stored (n, k).

Contract: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, "Fused right-hand-side transpose"
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Reference
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import dtype_of
from conformance.strategies import cdiv

DTYPES = ("float32", "bfloat16")
POINT = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128, "dtype": "float32"}


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (n, k)."""
    dtype = params["dtype"]
    x, y = dot.operands(kind, rng, params["m"], params["k"], params["n"], dtype, dtype)
    return x, np.ascontiguousarray(y.T)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, y = arrays
    dtype = dtype_of(params["dtype"])
    return (
        dot.reference(
            kind,
            x,
            y.T,
            k_blocks=cdiv(params["k"], params["bk"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
        ),
    )


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """dx = dz @ y and, as y is stored transposed, dy = (x.T @ dz).T."""
    (x, y), (dz,) = arrays, cotangents
    dx, dy = dot.gradient(params, kind, x, y.T, dz, arithmetic)
    return dx, transposed(dy)


def transposed(found: Reference) -> Reference:
    error = None if found.error is None else found.error.T
    return replace(found, value=found.value.T, error=error)


def baseline(params: Params, x: Any, y: Any) -> Any:
    product = jnp.dot(x, y.T, precision="highest", preferred_element_type=jnp.float32)
    return product.astype(x.dtype)


CASES = (
    Case(
        name="matmul_transpose_rhs",
        contract="x (m, k) @ y.T for y stored (n, k), accumulated in float32",
        spec="https://docs.jax.dev/en/latest/pallas/tpu/matmul.html",
        params=dot.BLOCK_PARAMS | dot.dtype_param(*DTYPES),
        domain=lambda: dot.domain(*DTYPES),
        check=dot.check_blocks,
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        gradient=gradient,
        split=dot.split_rows,
        work=dot.work,
        negatives=dot.negatives(POINT, transposed=True),
    ),
)
