"""Cases matmul_activation, matmul_template and matmul_prologue: functions fused into a matmul.

Contract: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html, "Fused activation function" and
the exercise on input fusion.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Negative, Param, Reference
from conformance import contraction as dot
from conformance.case import Arrays, Params
from conformance.numerics import FUNCTIONS, dtype_of, unit_roundoff
from conformance.strategies import cdiv

SPEC = "https://docs.jax.dev/en/latest/pallas/tpu/matmul.html"
DTYPES = ("float32", "bfloat16")
ACTIVATIONS = ("relu", "gelu", "silu")
TEMPLATE_ACTIVATIONS = ("identity", *ACTIVATIONS)
INPUT_FUNCTIONS = ("identity", "relu", "square", "tanh")
JAX_FUNCTIONS = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "square": jnp.square,
    "tanh": jnp.tanh,
}
POINT = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128, "dtype": "float32"}


def dot_highest(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, precision="highest", preferred_element_type=jnp.float32)


# ------------------------------------------------------------------ a function after the dot


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n)."""
    dtype = params["dtype"]
    return dot.operands(kind, rng, params["m"], params["k"], params["n"], dtype, dtype)


def make_transposed(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (n, k)."""
    x, y = make(params, kind, rng)
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
            y,
            k_blocks=cdiv(params["k"], params["bk"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
            function=params["activation"],
        ),
    )


def reference_transposed(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, y = arrays
    return reference(params, kind, (x, y.T), arithmetic)


def baseline(params: Params, x: Any, y: Any) -> Any:
    return JAX_FUNCTIONS[params["activation"]](dot_highest(x, y)).astype(x.dtype)


def baseline_transposed(params: Params, x: Any, y: Any) -> Any:
    return baseline(params, x, y.T)


# ------------------------------------------------------------------ functions before the dot


def kinds_prologue(params: Params) -> tuple[str, ...]:
    """Probes only where both functions map integers to integers; "wide" would overflow tanh's
    purpose, not its range, and is left to the other cases."""
    both = (FUNCTIONS[params["f"]], FUNCTIONS[params["g"]])
    probes = dot.PROBES if all(f.integral for f in both) else ()
    return (*probes, "normal", "cancel")


def make_prologue(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), y (k, n). Squares of probes must be exact in bf16 too: |x| <= 16."""
    dtype = params["dtype"]
    squares = "square" in (params["f"], params["g"])
    most = None
    if squares:
        # k L^4 < 2^24 keeps sums of squared operands exact.
        most = min(16, int(((2**24 - 1) / params["k"]) ** 0.25))
    return dot.operands(kind, rng, params["m"], params["k"], params["n"], dtype, dtype, most=most)


def reference_prologue(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """f and g are computed in float32 and rounded to the operands' dtype before the dot."""
    dtype = dtype_of(params["dtype"])
    f, g = FUNCTIONS[params["f"]], FUNCTIONS[params["g"]]
    a, b = f.exact(arrays[0].astype(np.float64)), g.exact(arrays[1].astype(np.float64))
    return (
        dot.reference(
            kind,
            a,
            b,
            k_blocks=cdiv(params["k"], params["bk"]),
            operand_dtype=dtype,
            out=dtype,
            arithmetic=arithmetic,
            operand_rounding=0.0 if kind in dot.PROBES else prologue_rounding(f, g, dtype),
        ),
    )


def prologue_rounding(f: Any, g: Any, dtype: np.dtype) -> float:
    """Relative rounding of f(x): its evaluation in float32, then the cast (none for float32)."""
    evaluation = max(f.absolute, g.absolute) * unit_roundoff(np.dtype(np.float32))
    exact = all(h.absolute == 0.0 for h in (f, g))
    cast = 0.0 if exact or dtype == np.dtype(np.float32) else unit_roundoff(dtype)
    return evaluation + cast


def baseline_prologue(params: Params, x: Any, y: Any) -> Any:
    def fused(name: str, operand: Any) -> Any:
        return JAX_FUNCTIONS[name](operand.astype(jnp.float32)).astype(operand.dtype)

    return dot_highest(fused(params["f"], x), fused(params["g"], y)).astype(x.dtype)


# ------------------------------------------------------------------ the cases


def unknown(option: str, point: dict[str, Any]) -> Negative:
    return Negative(
        name=f"unknown-{option}",
        params={**point, option: "swishy"},
        phase="trace",
        error="ValueError",
        match=rf"\b{option}\b.*swishy",
    )


def case(name: str, contract: str, options: dict[str, tuple[str, ...]], **parts: Any) -> Case:
    point = POINT | {option: choices[0] for option, choices in options.items()}
    transposed = parts.pop("transposed", False)
    bad_options = tuple(unknown(option, point) for option in options)
    return Case(
        name=name,
        contract=contract,
        spec=SPEC,
        params=dot.BLOCK_PARAMS
        | dot.dtype_param(*DTYPES)
        | {o: Param(kind="choice", choices=c, passed=True) for o, c in options.items()},
        domain=lambda: dot.domain(*DTYPES, **options),
        check=dot.check_blocks,
        split=dot.split_rows,
        work=dot.work,
        negatives=dot.negatives(point, transposed=transposed) + bad_options,
        **parts,
    )


CASES = (
    case(
        "matmul_activation",
        "act(x @ y), act applied once to the float32 sum",
        {"activation": ACTIVATIONS},
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
    ),
    case(
        "matmul_template",
        "act(x @ y.T) for y stored (n, k): transpose and activation in one kernel",
        {"activation": TEMPLATE_ACTIVATIONS},
        transposed=True,
        inputs=dot.kinds,
        make=make_transposed,
        reference=reference_transposed,
        baseline=baseline_transposed,
    ),
    case(
        "matmul_prologue",
        "f(x) @ g(y), f and g computed in float32 and rounded to the operands' dtype",
        {"f": INPUT_FUNCTIONS, "g": INPUT_FUNCTIONS},
        inputs=kinds_prologue,
        make=make_prologue,
        reference=reference_prologue,
        baseline=baseline_prologue,
    ),
)
