"""Cases layer_norm and rms_norm: each row of x (m, n) normalised, scaled and, with offset, moved.

Contract: `layer_norm` of Tokamax with its default epsilon; rms_norm is its `subtract_mean=False`
without an offset. x, scale and offset have one dtype.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from conformance import Arithmetic, Case, Negative, Reference, Work
from conformance.case import Arrays, Axes, Params
from conformance.numerics import dtype_of
from conformance.rows import (
    ROW_PARAMS,
    Normalized,
    check_rows,
    normalization_gradient,
    normalized,
    row_domain,
    scaled,
)
from conformance.strategies import integers, value_error

SPEC = "https://github.com/openxla/tokamax/blob/main/tokamax/_src/ops/normalization/api.py"
KINDS = ("exact", "normal", "cancel", "wide", "special")
EPSILON = 1e-6
POINT = {"m": 16, "n": 256, "bm": 8, "dtype": "float32"}


# --------------------------------------------------------------------------- arrays


def probes(m: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Integer rows whose means are integers and whose sums, of squares too, are exact.

    A row is an integer up to 8 plus deviations that come in pairs of opposite sign, in any order:
    at most 100, so that all are exact in bf16, and n (limit + 8)^2 < 2^24.
    """
    limit = min(100, int(np.sqrt((2**24 - 1) / n)) - 8)
    half = integers(rng, (m, n // 2), limit)
    odd = np.zeros((m, n % 2), np.int64)
    deviations = rng.permuted(np.concatenate([half, -half, odd], axis=1), axis=1)
    return deviations + integers(rng, (m, 1), 8)


def rows(kind: str, m: int, n: int, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """x of one distribution, float64.

    "cancel": means far from zero, on which the difference of the mean square and the squared
    mean loses what it is after. "wide": rows from where epsilon outweighs the variance upwards.
    "special": a NaN in one row of four and an infinity in another.
    """
    if kind == "exact":
        return probes(m, n, rng)
    x = rng.standard_normal((m, n))
    if kind == "cancel":
        # The mean leaves the deviations 13 bits in float32, 4 in bfloat16.
        x += (2.0**11 if dtype == "float32" else 2.0**4) * rng.choice([-1, 1], size=(m, 1))
    if kind == "wide":
        x *= 2.0 ** rng.integers(-12, 8, size=(m, 1), endpoint=True)
    if kind == "special":
        for row in range(m):
            x[row, rng.integers(n)] = {0: np.nan, 2: np.inf}.get(row % 4, 1.0)
    return x


def make(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, n), scale (n,), offset (n,)."""
    m, n, dtype = params["m"], params["n"], params["dtype"]
    x = rows(kind, m, n, dtype, rng)
    if kind == "exact":
        scale, offset = rng.choice([-4, -3, -2, -1, 1, 2, 3, 4], size=n), integers(rng, (n,), 64)
    else:
        scale, offset = 1 + rng.standard_normal(n) / 2, rng.standard_normal(n)
    first, second, third = (
        a.astype(np.float32).astype(dtype_of(dtype)) for a in (x, scale, offset)
    )
    return first, second, third


def make_rms(params: Params, kind: str, rng: np.random.Generator) -> Arrays:
    """x (m, n), scale (n,); an infinite x is left out, since code for it differs (0 or NaN)."""
    x, scale, _ = make(params, kind, rng)
    return np.where(np.isinf(x), x.dtype.type(1), x), scale


# --------------------------------------------------------------------------- what is right


def statistics(x: np.ndarray, kind: str, centred: bool) -> Normalized:
    return normalized(x, epsilon=EPSILON, centred=centred, exact=kind == "exact")


def reference(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    """No product meets the matrix unit, so all modes are judged alike."""
    x, scale, offset = arrays
    return (scaled(statistics(x, kind, True), scale, offset, x.dtype),)


def reference_rms(
    params: Params, kind: str, arrays: Arrays, arithmetic: Arithmetic
) -> tuple[Reference, ...]:
    x, scale = arrays
    return (scaled(statistics(x, kind, False), scale, None, x.dtype),)


def gradient(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference | None, ...]:
    """Of x, scale and offset."""
    x, scale, _ = arrays
    return normalization_gradient(
        statistics(x, kind, True), scale, cotangents[0], centred=True, exact=False, out=x.dtype
    )


def gradient_rms(
    params: Params, kind: str, arrays: Arrays, cotangents: Arrays, arithmetic: Arithmetic
) -> tuple[Reference | None, ...]:
    """Of x and scale."""
    x, scale = arrays
    d_x, d_scale, _ = normalization_gradient(
        statistics(x, kind, False), scale, cotangents[0], centred=False, exact=False, out=x.dtype
    )
    return d_x, d_scale


def baseline(params: Params, x: Any, scale: Any, offset: Any) -> Any:
    wide = x.astype(jnp.float32)
    d = wide - jnp.mean(wide, axis=1, keepdims=True)
    return (standardized(d) * scale.astype(jnp.float32) + offset.astype(jnp.float32)).astype(
        x.dtype
    )


def baseline_rms(params: Params, x: Any, scale: Any) -> Any:
    return (standardized(x.astype(jnp.float32)) * scale.astype(jnp.float32)).astype(x.dtype)


def standardized(d: Any) -> Any:
    return d / jnp.sqrt(jnp.mean(jnp.square(d), axis=1, keepdims=True) + EPSILON)


def split(params: Params) -> tuple[Axes, Axes]:
    """Rows are independent."""
    return (0, None, None), (0,)


def split_rms(params: Params) -> tuple[Axes, Axes]:
    return (0, None), (0,)


def work(params: Params) -> Work:
    """An element is summed, centred, squared, summed, divided, scaled and moved."""
    return Work(flops=7 * params["m"] * params["n"], bytes=moved(params, vectors=2))


def work_rms(params: Params) -> Work:
    """An element is squared, summed, divided and scaled."""
    return Work(flops=4 * params["m"] * params["n"], bytes=moved(params, vectors=1))


def moved(params: Params, vectors: int) -> int:
    m, n = params["m"], params["n"]
    return (2 * m * n + vectors * n) * dtype_of(params["dtype"]).itemsize


# --------------------------------------------------------------------------- bad input


def negatives(vectors: tuple[str, ...]) -> tuple[Negative, ...]:
    """Bad arrays and blocks; `vectors` are the names of what has the length of a row."""
    m, n, last = POINT["m"], POINT["n"], vectors[-1]
    x, row = np.ones((m, n), np.float32), np.ones(n, np.float32)

    def refused(name: str, match: str, *arrays: np.ndarray, **changed: Any) -> Negative:
        given = arrays + (row,) * (1 + len(vectors) - len(arrays))
        return value_error(name, match, {**POINT, **changed}, *given)

    def with_last(bad: np.ndarray) -> tuple[np.ndarray, ...]:
        return (x, *(row,) * (len(vectors) - 1), bad)

    narrow = row.astype(dtype_of("bfloat16"))
    return (
        refused("rank", r"\bx\b.*rank 2.*\(2, 16, 256\)", np.stack([x, x])),
        refused("integer", r"x\.dtype.*int32", x.astype(np.int32)),
        refused("length", rf"{last}\.shape.*\(256,\).*\(255,\)", *with_last(row[1:])),
        refused("column", rf"\b{last}\b.*rank 1.*\(256, 1\)", *with_last(row[:, None])),
        refused("mixed-dtypes", rf"{last}\.dtype.*bfloat16", *with_last(narrow)),
        refused("block-zero", r"\bbm\b.*\b0\b", x, bm=0),
        refused("block-misaligned", r"\bbm\b.*\b12\b", x, bm=12),
        refused("block-too-large", r"\bbm\b.*\b24\b", x, bm=24),
    )


# --------------------------------------------------------------------------- the cases

CASES = (
    Case(
        name="layer_norm",
        contract="(x - mean) / sqrt(var + 1e-6) * scale + offset for each row of x, mean and "
        "var = mean((x - mean)^2) in float32, rounded once to x's dtype",
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
        negatives=negatives(("scale", "offset")),
    ),
    Case(
        name="rms_norm",
        contract="x / sqrt(mean(x^2) + 1e-6) * scale for each row of x, the mean in float32, "
        "rounded once to x's dtype",
        spec=SPEC,
        params=ROW_PARAMS,
        domain=row_domain,
        check=check_rows,
        inputs=lambda params: KINDS,
        make=make_rms,
        reference=reference_rms,
        baseline=baseline_rms,
        work=work_rms,
        gradient=gradient_rms,
        split=split_rms,
        negatives=negatives(("scale",)),
    ),
)
