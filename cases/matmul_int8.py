"""Case matmul_int8: int8 x int8 -> int32, exact.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, exercise on int8
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import equal

POINT = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128, "dtype": "int8"}


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n). Sums stay below 2^24, which is also exact where the compiler turns
    the product into a bf16 matmul with float32 accumulation (tpu7x)."""
    return dot.operands(kind, rng, params["m"], params["k"], params["n"], "int8", "int32")


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, y = arrays
    return (equal(dot.product(x, y).astype(np.int64), np.dtype(np.int32)),)


def baseline(params: Params, x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=jnp.int32)


def work(params: Params) -> Work:
    return dot.work(params, out_itemsize=4)


CASES = (
    Case(
        name="matmul_int8",
        contract="x @ y for int8 operands, int32 out, exact",
        spec="https://docs.jax.dev/en/latest/pallas/tpu/matmul.html",
        params=dot.BLOCK_PARAMS | dot.dtype_param("int8"),
        domain=lambda: dot.domain("int8"),
        check=dot.check_blocks,
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        split=dot.split_rows,
        work=work,
        negatives=(*dot.negatives(POINT), dot.unsupported_type(POINT, "v2", "v3", "v4")),
    ),
)
