"""Bounds for functions of rows: normalisation, softmax and the log of a softmax's denominator.

Each rounding that float32 code cannot avoid is counted, whatever the order of its sums; what
passes is therefore not one algorithm but any that is backward stable in its statistics: two
passes, merged blocks, a running mean or maximum. Sources:

* [H] N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, ch. 1
  and 3.
* [CGL] T. F. Chan, G. H. Golub and R. J. LeVeque, Algorithms for Computing the Sample Variance,
  The American Statistician 37(3), 1983.
* [BHH] P. Blanchard, D. J. Higham and N. J. Higham, Accurately Computing the Log-Sum-Exp and
  Softmax Functions, IMA J. Numer. Anal. 41(4), 2021.
* [MG] M. Milakov and N. Gimelshein, Online Normalizer Calculation for Softmax, 2018.
* [CL] The OpenCL C Specification 3.0, section 7.4: ulp limits of single-precision functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.case import Param, Params
from conformance.numerics import (
    Reference,
    accumulation_factor,
    bounded,
    smallest_normal,
    unit_roundoff,
)
from conformance.strategies import LANES, SUBLANES, blocks, cdiv, check_tiles, names, sizes

_DTYPES = ("float32", "bfloat16")
# Of a function of each row of an array (m, n), which is cut into blocks of bm whole rows.
ROW_PARAMS = {
    "m": Param(kind="size"),
    "n": Param(kind="size"),
    "bm": Param(kind="block"),
    "dtype": Param(kind="dtype", choices=_DTYPES),
}
# The simulator pays for every grid step.
_MOST_STEPS = 12

_FLOAT32 = np.dtype(np.float32)
_U = unit_roundoff(_FLOAT32)
_ETA = smallest_normal(_FLOAT32)

# The limits of [CL], in ulps; one ulp is at most 2 u of the result. A reciprocal square root may
# be a square root (3 ulp) and a division (2.5 ulp).
ULPS = {"divide": 2.5, "exp": 3.0, "log": 3.0, "rsqrt": 5.5}

# Products, sums and casts of one element between its statistics and the result, each within u:
# no formula in use has more.
_ROUNDINGS = 8


# --------------------------------------------------------------------------- domains


def check_rows(params: Params) -> None:
    """bm is the whole of m or a multiple of 8; a row is never cut."""
    check_tiles(params, m=SUBLANES)


@st.composite
def _points(draw: st.DrawFn) -> dict[str, Any]:
    m = draw(sizes(16, 1, 8, 20, 100, 136))
    n = draw(sizes(256, 1, 100, 128, 384, 640))
    return {"m": m, "n": n, "bm": draw(blocks(m, SUBLANES)), "dtype": draw(names(*_DTYPES))}


def row_domain() -> st.SearchStrategy[dict[str, Any]]:
    """Points of a function of rows."""
    return _points().filter(lambda p: cdiv(p["m"], p["bm"]) <= _MOST_STEPS)


# --------------------------------------------------------------------------- errors


def function_error(name: str) -> float:
    """The relative error that float32 evaluation of a function may have [CL]."""
    return 2 * _U * ULPS[name]


def sum_error(terms: int, *, exact: bool) -> float:
    """The relative rounding of a row's sum of `terms` elements.

    Args:
      exact: the inputs are probes, whose partial sums are all exact; only the handful of
        roundings remains that merging the statistics of blocks costs.
    """
    return _ROUNDINGS * _U if exact else accumulation_factor(terms, _U)


# --------------------------------------------------------------------------- normalisation


@dataclass(frozen=True, kw_only=True)
class Normalized:
    """(x - mean) / sqrt(var + epsilon) of each row and what float32 may make of it.

    Attributes:
      value, error: (m, n), exact and bound.
      rstd: (m, 1), exact 1 / sqrt(var + epsilon).
      rstd_error: (m, 1), relative bound.
    """

    value: np.ndarray
    error: np.ndarray
    rstd: np.ndarray
    rstd_error: np.ndarray


def normalized(x: np.ndarray, *, epsilon: float, centred: bool, exact: bool) -> Normalized:
    """Each row of `x` (m, n) normalised; `centred` subtracts the mean, else it is taken to be 0.

    With a = the rounding of an n-term sum, q = sqrt(mean(x^2)), v the variance and d = x - mean:

      the mean       errs by  e = (a + divide) q                       [H, eq. 3.5]; |mean| <= q
      the variance   errs by  (a + 8 u + divide) v + 2 sqrt(v) e + e^2
      rstd           errs by  (1 - t)^(-1/2) - 1 + rsqrt, t = variance error / (v + epsilon) + u
      the result     errs by  rstd (|d| (rstd error + 8 u) + (1 + rstd error) (e + 8 u q))

    The second line is what [CGL] show for running and pairwise means, relative error n u kappa
    with kappa = q / sqrt(v); two passes do better, since the deviations' sum is zero [H, 1.9].
    The difference mean(x^2) - mean^2 errs by n u kappa^2 and does not pass where kappa is large.
    The last line has u q for code that folds the mean into the offset.
    """
    n = x.shape[1]
    a, divide = sum_error(n, exact=exact), function_error("divide")
    with np.errstate(invalid="ignore", over="ignore"):
        x = x.astype(np.float64)
        mean = x.mean(axis=1, keepdims=True) if centred else np.zeros((x.shape[0], 1))
        d = x - mean
        q = np.sqrt(np.square(x).mean(axis=1, keepdims=True))
        v = np.square(d).mean(axis=1, keepdims=True)
        e = (a + divide) * q + _ETA if centred else np.zeros_like(q)
        v_error = (a + _ROUNDINGS * _U + divide) * v + 2 * np.sqrt(v) * e + e**2 + n * _ETA
        rstd = (v + epsilon) ** -0.5
        t = v_error / (v + epsilon) + _U
        # No bound where the statistics may vanish in their own error; cases stay far from it.
        relative = np.where(t < 1, np.abs(1 - t) ** -0.5 - 1, np.inf) + function_error("rsqrt")
        shift = e + _ROUNDINGS * _U * q if centred else np.zeros_like(q)
        error = rstd * (np.abs(d) * (relative + _ROUNDINGS * _U) + (1 + relative) * shift)
        return Normalized(value=d * rstd, error=error + _ETA, rstd=rstd, rstd_error=relative)


def scaled(y: Normalized, scale: np.ndarray, offset: np.ndarray | None, out: np.dtype) -> Reference:
    """The reference of y * scale + offset, in float32 and rounded once to `out`."""
    s = scale.astype(np.float64)
    o = np.zeros_like(s) if offset is None else offset.astype(np.float64)
    with np.errstate(invalid="ignore"):
        value = y.value * s + o
        rounded = 2 * _U * (np.abs(y.value * s) + np.abs(o))
        return bounded(value, out, np.abs(s) * y.error + rounded + smallest_normal(out))


def normalization_gradient(
    y: Normalized, scale: np.ndarray, dz: np.ndarray, *, centred: bool, exact: bool, out: np.dtype
) -> tuple[Reference, Reference, Reference]:
    """References of the gradients of x, scale and offset for the cotangent `dz` (m, n).

      d offset = sum over rows of dz
      d scale  = sum over rows of dz y
      d x      = rstd (g - mean(g) - y mean(g y)), g = dz scale; no mean(g) if not centred

    Errors: products and sums as above, and every occurrence of y with its own error. With
    autodiff's intermediates, which have the same magnitudes, the roundings at most double.
    """
    (m, n), s = dz.shape, scale.astype(np.float64)
    rows, columns = sum_error(m, exact=exact), sum_error(n, exact=exact)
    dz = dz.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        d_offset = bounded(dz.sum(axis=0), out, (rows + _U) * np.abs(dz).sum(axis=0) + _ETA)
        share = dz * y.value
        share_error = np.abs(dz) * y.error + (rows + 2 * _U) * np.abs(share)
        d_scale = bounded(share.sum(axis=0), out, share_error.sum(axis=0) + m * _ETA)
        g = dz * s
        mean = columns + function_error("divide") + 2 * _ROUNDINGS * _U
        common = (g * y.value).mean(axis=1, keepdims=True)
        common_error = (
            np.abs(g) * y.error + mean * np.abs(g * y.value) + mean * np.abs(g) * y.error
        ).mean(axis=1, keepdims=True)
        level = g.mean(axis=1, keepdims=True) if centred else np.zeros((m, 1))
        level_error = mean * np.abs(g).mean(axis=1, keepdims=True) if centred else level
        inner = g - level - y.value * common
        magnitude = np.abs(g) + np.abs(level) + np.abs(y.value * common)
        inner_error = (
            2 * _ROUNDINGS * _U * magnitude
            + level_error
            + np.abs(y.value) * common_error
            + np.abs(common) * y.error
            + common_error * y.error
        )
        relative = y.rstd_error + _U
        error = y.rstd * (inner_error * (1 + relative) + relative * magnitude)
        d_x = bounded(y.rstd * inner, out, error + smallest_normal(out))
    return d_x, d_scale, d_offset


# --------------------------------------------------------------------------- softmax


@dataclass(frozen=True, kw_only=True)
class Exponentials:
    """exp(x - max) of each row of `x`, relative to their sum.

    Attributes:
      largest: (m, 1), the row's maximum.
      share: (m, n), the softmax.
      share_error: (m, n), relative bound of the share's numerator.
      total: (m, 1), the sum.
      total_error: (m, 1), relative bound.
    """

    largest: np.ndarray
    share: np.ndarray
    share_error: np.ndarray
    total: np.ndarray
    total_error: np.ndarray


def exponentials(x: np.ndarray, *, exact: bool) -> Exponentials:
    """Numerators and denominator of each row's softmax, shifted by the maximum [BHH, sec. 4].

    With w = x - max: rounding w, log2(e) and their product changes exp(w) by a factor within
    1 + 3 |w| u, its evaluation by exp's limit. The sum inherits the weighted mean of these and
    the rounding of its terms [BHH, eq. 4.9 with n u in place of theirs]. A running maximum [MG]
    multiplies by exp of a difference whenever a block raises it: the differences of a term add up
    to its |w|, and each costs exp's limit and a rounding, at most once for 128 elements.
    """
    n = x.shape[1]
    rescalings = cdiv(n, LANES) * (function_error("exp") + _U)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        x = x.astype(np.float64)
        largest = x.max(axis=1, keepdims=True)
        w = x - largest
        e = np.exp(w)
        total = e.sum(axis=1, keepdims=True)
        share = e / total
        # -inf is a mask: exact, whatever its distance.
        distance = np.where(np.isneginf(w), 0.0, np.abs(w))
        share_error = 3 * _U * distance + function_error("exp") + rescalings
        total_error = (share * share_error).sum(axis=1, keepdims=True) + sum_error(n, exact=exact)
    return Exponentials(
        largest=largest,
        share=share,
        share_error=share_error,
        total=total,
        total_error=total_error,
    )


def softmax(x: np.ndarray, *, exact: bool, out: np.dtype) -> Reference:
    """The reference of softmax over the last axis: a share within the errors of both its parts.

    r = numerator's + denominator's + divide's relative error, r / (1 - r) with second orders.
    Shares below the smallest normal number may be flushed, once as numerator and once as result.
    """
    e = exponentials(x, exact=exact)
    r = e.share_error + e.total_error + function_error("divide") + _U
    with np.errstate(invalid="ignore"):
        error = e.share * r / (1 - r) + 2 * _ETA + smallest_normal(out)
    return bounded(e.share, out, error)


def softmax_gradient(x: np.ndarray, dz: np.ndarray, *, exact: bool, out: np.dtype) -> Reference:
    """The reference of y (dz - sum(y dz)), y = softmax(x), for the cotangent `dz` (m, n).

    y may have been kept in `out` between the two passes, which rounds it once more.
    """
    y = softmax(x, exact=exact, out=_FLOAT32)
    assert y.error is not None
    y_error, dz = y.error + unit_roundoff(out) * y.value, dz.astype(np.float64)
    with np.errstate(invalid="ignore"):
        common = (y.value * dz).sum(axis=1, keepdims=True)
        a = sum_error(x.shape[1], exact=False) + 2 * _U
        common_error = ((y_error + a * y.value) * np.abs(dz)).sum(axis=1, keepdims=True)
        magnitude = np.abs(dz) + np.abs(common)
        inner_error = common_error + 2 * _U * magnitude
        error = y_error * (magnitude + inner_error) + y.value * (inner_error + _U * magnitude)
    return bounded(y.value * (dz - common), out, error + smallest_normal(out))


def log_sum_exp(z: np.ndarray, error: np.ndarray, *, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """log(sum(exp(z))) of each row, and its bound for logits within `error` of z; both (m,).

    The errors of the logits move it by at most log(sum(share exp(error))), by convexity in both
    directions; the sum's relative error r by at most r / (1 - r); then come the logarithm's own
    error, relative to it [CL], and the addition of the maximum [BHH, eq. 4.5].
    """
    e = exponentials(z, exact=exact)
    total = np.log(e.total[:, 0])
    value = e.largest[:, 0] + total
    widest = error.max(axis=1)
    moved = np.log((e.share * np.exp(error - widest[:, None])).sum(axis=1)) + widest
    r = e.total_error[:, 0]
    own = r / (1 - r) + function_error("log") * total + _U * (total + np.abs(value))
    return value, moved + own + _ETA


def total_loss(
    z: np.ndarray, error: np.ndarray, labels: np.ndarray, *, exact: bool
) -> tuple[np.float64, np.float64]:
    """The sum over rows of log(sum(exp(z))) - z[label], and its bound.

    Args:
      z, error: (b, v), logits and how far float32 ones may be from them.
      labels: (b,), columns.
      exact: the logits are those of probes.

    The two logits' errors add up, though most kernels make both from the same sum; a mean is one
    division more.
    """
    rows = np.arange(len(labels))
    lse, lse_error = log_sum_exp(z, error, exact=exact)
    loss = lse - z[rows, labels]
    each = lse_error + error[rows, labels] + _U * np.abs(loss)
    adding = sum_error(len(labels), exact=False) + function_error("divide")
    return loss.sum(), (each + adding * (np.abs(loss) + each)).sum()
