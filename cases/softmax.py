"""Case softmax: over the last axis of x (m, n), for masks and for numbers whose exp overflows.

Contract: `jax.nn.softmax`, computed in float32 and rounded once to x's dtype. -inf is a mask: its
share is 0. A row of nothing but masks is outside of the domain: jax gives NaN, kernels of
attention give 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Negative, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.numerics import dtype_of
from conformance.rows import ROW_PARAMS, check_rows, row_domain, softmax, softmax_gradient
from conformance.strategies import value_error

SPEC = "https://docs.jax.dev/en/latest/_autosummary/jax.nn.softmax.html"
KINDS = ("exact", "normal", "wide", "special")
POINT = {"m": 16, "n": 256, "bm": 8, "dtype": "float32"}


def probes(m: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Rows with a maximum of -128 to 256 in several places, all else at least 120 below it.

    exp of the difference is 1 or vanishes in float32, so that a row has equal shares and zeros;
    without the subtraction it overflows, or every exp of the row vanishes.
    """
    top = rng.integers(-128, 256, size=(m, 1), endpoint=True)
    below = top - rng.integers(120, 376, size=(m, n), endpoint=True)
    among = rng.random((m, n)) < rng.choice([0.02, 0.25, 0.75], size=(m, 1))
    among[np.arange(m), rng.integers(n, size=m)] = True
    return np.where(among, top, np.maximum(below, -256))


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, n). "wide": rows of spread 2^-4 to 2^6 around levels far from zero. "special": masks,
    one row of eight with a NaN, one with a single number left."""
    m, n = params["m"], params["n"]
    x = probes(m, n, rng) if kind == "exact" else 2 * rng.standard_normal((m, n))
    if kind == "wide":
        x *= 2.0 ** rng.integers(-4, 6, size=(m, 1), endpoint=True)
        x += rng.choice([-200.0, 0.0, 200.0], size=(m, 1))
    if kind == "special":
        kept = rng.integers(n, size=m)
        masked = rng.random((m, n)) < np.where(np.arange(m) % 8 == 1, 1.0, 0.4)[:, None]
        masked[np.arange(m), kept] = False
        x = np.where(masked, -np.inf, x)
        spoilt = np.arange(m) % 8 == 5
        x[spoilt, kept[spoilt]] = np.nan
    return (x.astype(np.float32).astype(dtype_of(params["dtype"])),)


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """No product meets the matrix unit, so all modes are judged alike."""
    (x,) = arrays
    return (softmax(x, exact=kind == "exact", out=x.dtype),)


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference | None, ...]:
    (x,) = arrays
    return (softmax_gradient(x, cotangents[0], exact=kind == "exact", out=x.dtype),)


def baseline(params: Params, x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def split(params: Params) -> tuple[Axes, Axes]:
    """Rows are independent."""
    return (0,), (0,)


def work(params: Params) -> Work:
    """An element is compared, shifted, raised, summed and divided."""
    elements = params["m"] * params["n"]
    return Work(flops=5 * elements, bytes=2 * elements * dtype_of(params["dtype"]).itemsize)


def refused(name: str, match: str, x: np.ndarray, **changed: Any) -> Negative:
    return value_error(name, match, {**POINT, **changed}, x)


ONES = np.ones((16, 256), np.float32)
NEGATIVES = (
    refused("rank", r"\bx\b.*rank 2.*\(256,\)", ONES[0]),
    refused("integer", r"x\.dtype.*int32", ONES.astype(np.int32)),
    refused("block-zero", r"\bbm\b.*\b0\b", ONES, bm=0),
    refused("block-misaligned", r"\bbm\b.*\b12\b", ONES, bm=12),
    refused("block-too-large", r"\bbm\b.*\b24\b", ONES, bm=24),
)

CASES = (
    Case(
        name="softmax",
        contract="exp(x - max) / sum(exp(x - max)) over the last axis, in float32, rounded once "
        "to x's dtype; -inf has share 0",
        spec=SPEC,
        params=ROW_PARAMS,
        domain=row_domain,
        check=check_rows,
        inputs=lambda params: KINDS,
        make=make,
        reference=reference,
        baseline=baseline,
        work=work,
        gradient=gradient,
        split=split,
        negatives=NEGATIVES,
    ),
)
