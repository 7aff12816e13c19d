"""Cases matmul_f32 and matmul: x @ y with float32 accumulation.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, DomainError, Reference
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import dtype_of
from conformance.strategies import cdiv

SPEC = "https://docs.jax.dev/en/latest/pallas/tpu/matmul.html"
DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SQUARE = {"m": 128, "k": 128, "n": 128, "bm": 128, "bk": 128, "bn": 128}


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n)."""
    dtype = params["dtype"]
    return dot.operands(kind, rng, params["m"], params["k"], params["n"], dtype, dtype)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    dtype = dtype_of(params["dtype"])
    return (
        dot.reference(
            kind,
            *arrays,
            k_blocks=cdiv(params["k"], params["bk"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
        ),
    )


def baseline(params: Params, x: Any, y: Any) -> Any:
    product = jnp.dot(x, y, precision="highest", preferred_element_type=jnp.float32)
    return product.astype(x.dtype)


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    return dot.gradient(params, kind, *arrays, *cotangents, arithmetic)


def check_divided(params: Params) -> None:
    """The guide's first kernel has no tail in k: bk must divide it."""
    dot.check_blocks(params)
    if params["k"] % params["bk"]:
        raise DomainError(f"bk must divide k = {params['k']}, got {params['bk']}")


def case(name: str, contract: str, dtypes: tuple[str, ...], **parts: Any) -> Case:
    point = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128, "dtype": dtypes[0]}
    return Case(
        name=name,
        contract=contract,
        spec=SPEC,
        params=dot.BLOCK_PARAMS | dot.dtype_param(*dtypes),
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        gradient=gradient,
        split=dot.split_rows,
        work=dot.work,
        negatives=dot.negatives(point) + parts.pop("further_negatives", ()),
        **parts,
    )


CASES = (
    case(
        "matmul_f32",
        "x @ y, float32 in and out; blocks divide k",
        ("float32",),
        domain=lambda: dot.domain("float32", whole_k=True),
        check=check_divided,
    ),
    case(
        "matmul",
        "x @ y accumulated in float32, rounded once to the operands' dtype",
        DTYPES,
        domain=lambda: dot.domain(*DTYPES),
        check=dot.check_blocks,
        further_negatives=(
            dot.unsupported_type({**SQUARE, "dtype": "bfloat16"}, "v2", "v3"),
            dot.unsupported_type({**SQUARE, "dtype": "float8_e5m2"}, "v2", "v3", "v4"),
        ),
    ),
)
