"""Case gated_linear_unit: activation(x @ gate) * (x @ up), gate and up stored as one array.

Contract: `gated_linear_unit` of Tokamax with fused weights (k, 2, n): weights[:, 0] is the gate,
weights[:, 1] what it opens for. Its activations are jax functions; here they are their names.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Negative, Param, Reference, Work
from conformance import contraction as dot
from conformance.case import Arrays, Axes, Params
from conformance.numerics import dtype_of
from conformance.strategies import cdiv, value_error

SPEC = "https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/gated_linear_unit/api.py"
DTYPES = ("float32", "bfloat16")
ACTIVATIONS = ("silu", "gelu", "relu", "sigmoid", "identity")
JAX_FUNCTIONS = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}
POINT = {"m": 16, "k": 256, "n": 128, "bm": 16, "bk": 256, "bn": 128}
POINT |= {"dtype": "float32", "activation": "silu"}


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, k), weights (k, 2, n): the columns of gate and up are drawn as one matrix."""
    m, k, n, dtype = params["m"], params["k"], params["n"], params["dtype"]
    x, both = dot.operands(kind, rng, m, k, 2 * n, dtype, dtype)
    return x, both.reshape(k, 2, n)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, weights = arrays
    return (
        dot.gated_reference(
            kind,
            x,
            weights[:, 0],
            weights[:, 1],
            k_blocks=cdiv(params["k"], params["bk"]),
            function=params["activation"],
            arithmetic=arithmetic,
        ),
    )


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference | None, ...]:
    """Of x and weights."""
    x, weights = arrays
    d_x, d_gate, d_up = dot.gated_gradient(
        x,
        weights[:, 0],
        weights[:, 1],
        cotangents[0],
        blocks={d: cdiv(params[d], params[f"b{d}"]) for d in "mkn"},
        function=params["activation"],
        arithmetic=arithmetic,
    )
    return d_x, dot.stacked(d_gate, d_up, axis=1)


def baseline(params: Params, x: Any, weights: Any) -> Any:
    def dot_highest(w: Any) -> Any:
        return jnp.dot(x, w, precision="highest", preferred_element_type=jnp.float32)

    gate = JAX_FUNCTIONS[params["activation"]](dot_highest(weights[:, 0]))
    return (gate * dot_highest(weights[:, 1])).astype(x.dtype)


def split(params: Params) -> tuple[Axes, Axes]:
    """Rows of x are independent."""
    return (0, None), (0,)


def work(params: Params) -> Work:
    """Two products; x and both halves of the weights read once, the result written once."""
    m, k, n = params["m"], params["k"], params["n"]
    elements = m * k + 2 * k * n + m * n
    return Work(flops=4 * m * k * n, bytes=elements * dtype_of(params["dtype"]).itemsize)


# --------------------------------------------------------------------------- bad input


def refused(name: str, match: str, x: np.ndarray | None = None, **changed: Any) -> Negative:
    weights = changed.pop("weights", np.ones((256, 2, 128), np.float32))
    left = np.ones((16, 256), np.float32) if x is None else x
    return value_error(name, match, {**POINT, **changed}, left, weights)


ONES = np.ones((256, 2, 128), np.float32)
NEGATIVES = (
    refused("rank", r"\bx\b.*rank 2.*\(2, 16, 256\)", np.ones((2, 16, 256), np.float32)),
    refused("weights-rank", r"weights.*rank 3.*\(256, 256\)", weights=ONES.reshape(256, 256)),
    refused("one-weight", r"weights\.shape\[1\].*2.*\b1\b", weights=ONES[:, :1]),
    refused("inner-dimension", r"weights\.shape\[0\].*256.*128", weights=ONES[:128]),
    refused("mixed-dtypes", r"weights\.dtype.*bfloat16", weights=ONES.astype(dtype_of("bfloat16"))),
    refused("unknown-activation", r"\bactivation\b.*swishy", activation="swishy"),
    refused("block-zero", r"\bbm\b.*\b0\b", bm=0),
    refused("block-misaligned", r"\bbk\b.*100", bk=100),
    refused("block-too-large", r"\bbn\b.*256", bn=256),
)


CASES = (
    Case(
        name="gated_linear_unit",
        contract="activation(x @ weights[:, 0]) * (x @ weights[:, 1]), activation and product "
        "once, on the float32 sums, rounded once to x's dtype; gelu is the tanh form",
        spec=SPEC,
        params=dot.BLOCK_PARAMS
        | dot.dtype_param(*DTYPES)
        | {"activation": Param(kind="choice", choices=ACTIVATIONS, passed=True)},
        domain=lambda: dot.domain(*DTYPES, activation=ACTIVATIONS),
        check=dot.check_blocks,
        inputs=dot.kinds,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        gradient=gradient,
        split=split,
        negatives=NEGATIVES,
    ),
)
