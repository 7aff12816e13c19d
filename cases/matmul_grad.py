"""Case matmul_grad: x @ y and both its gradients.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, exercise on the backward pass
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Negative, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import dtype_of, total
from conformance.strategies import LANES, cdiv, operand, probe_limit, value_error

DTYPES = ("float32", "bfloat16")
POINT = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128, "dtype": "float32"}


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n), dz (m, n). Probes are exact in all three products."""
    m, k, n, dtype = params["m"], params["k"], params["n"], params["dtype"]
    limit = probe_limit(max(m, k, n), dtype, dtype)
    x, y = dot.operands(kind, rng, m, k, n, dtype, dtype, most=limit)
    other = "normal" if kind == "cancel" else kind
    return x, y, operand(other, (m, n), dtype, rng, axis=1, limit=limit)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, y, dz = arrays
    dtype = dtype_of(params["dtype"])

    def one(a: np.ndarray, b: np.ndarray, dim: str) -> Reference:
        return dot.reference(
            kind,
            a,
            b,
            k_blocks=cdiv(params[dim], params[f"b{dim}"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
        )

    return one(x, y, "k"), one(dz, y.T, "n"), one(x.T, dz, "m")


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """Of (z, dx, dy) for cotangents (cz, cx, cy): each array is an operand of two products, and
    its gradient the sum of what each gives.

    x    cz @ y.T + dz @ cy.T
    y    x.T @ cz + cx.T @ dz
    dz   cx @ y + x @ cy
    """
    (x, y, dz), (cz, cx, cy) = arrays, cotangents
    of_z = dot.gradient(params, kind, x, y, cz, arithmetic)
    of_dx = dot.gradient(params, kind, cx, cy, dz, arithmetic)
    dtype = dtype_of(params["dtype"])

    def forward(a: np.ndarray, b: np.ndarray) -> Reference:
        return dot.reference(
            kind,
            a,
            b,
            k_blocks=cdiv(params["k"], params["bk"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
        )

    return (
        total(of_z[0], of_dx[0]),
        total(of_z[1], of_dx[1]),
        total(forward(cx, y), forward(x, cy)),
    )


def baseline(params: Params, x: Any, y: Any, dz: Any) -> Any:
    def dot_highest(a: Any, b: Any) -> Any:
        product = jnp.dot(a, b, precision="highest", preferred_element_type=jnp.float32)
        return product.astype(x.dtype)

    return dot_highest(x, y), dot_highest(dz, y.T), dot_highest(x.T, dz)


def check(params: Params) -> None:
    """bm is the contraction block of x.T @ dz, so it follows the rule of a last dimension."""
    dot.check_blocks(params, rows=LANES)


def work(params: Params) -> Work:
    """Three products; x, y and dz read once, z, dx and dy written once."""
    m, k, n = params["m"], params["k"], params["n"]
    itemsize = dtype_of(params["dtype"]).itemsize
    return Work(flops=6 * m * k * n, bytes=2 * (m * k + k * n + m * n) * itemsize)


def refused(name: str, match: str, dz: np.ndarray) -> Negative:
    x, y = np.ones((16, 256), np.float32), np.ones((256, 128), np.float32)
    return value_error(name, match, POINT, x, y, dz)


NARROW = np.ones((16, 64), np.float32)
INTEGER = np.ones((16, 128), np.int32)
NEGATIVES = (
    refused("cotangent-shape", r"dz\.shape.*\(16, 128\).*\(16, 64\)", NARROW),
    refused("cotangent-dtype", r"dz\.dtype.*int32", INTEGER),
)

CASES = (
    Case(
        name="matmul_grad",
        contract="(x @ y, dz @ y.T, x.T @ dz): the value and both gradients",
        spec="https://docs.jax.dev/en/latest/pallas/tpu/matmul.html",
        params=dot.BLOCK_PARAMS | dot.dtype_param(*DTYPES),
        domain=lambda: dot.domain(*DTYPES, rows=LANES),
        check=check,
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        gradient=gradient,
        work=work,
        negatives=NEGATIVES,
    ),
)
