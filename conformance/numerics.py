"""The one numerical policy: which results are right, and how far from exact they may be.

No tolerance is written anywhere else. Every bound names its source:

* [H] N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, ch. 3.
* [HM] N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis,
  SIAM J. Sci. Comput. 41(5), 2019.
* [BHH] P. Blanchard, D. J. Higham and N. J. Higham, Accurately computing the log-sum-exp and
  softmax functions, IMA J. Numer. Anal. 41(4), 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import ml_dtypes
import numpy as np

# Above this n * u a dot bound says nothing useful (bf16 accumulation); only probes judge.
_MEANINGLESS = 1.0 / 16.0

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Arithmetic:
    """How a mode computes, where modes legitimately differ.

    Attributes:
      name: shown in messages.
      f32_operands_rounded: DEFAULT precision rounds f32 dot operands to bf16 (TPU hardware
        and its compiler); the interpreters do not.
    """

    name: str
    f32_operands_rounded: bool


INTERPRETED = Arithmetic("interpreted", f32_operands_rounded=False)
COMPILED = Arithmetic("compiled", f32_operands_rounded=True)


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype called `name`, ml_dtypes' types included; TypeError if there is none."""
    return np.dtype(getattr(ml_dtypes, name, name))


def is_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a floating-point type, ml_dtypes' types included."""
    try:
        ml_dtypes.finfo(dtype)
    except (ValueError, KeyError, TypeError):
        return False
    return True


def unit_roundoff(dtype: np.dtype) -> float:
    """u, half the distance from 1 to the next number: 2^-24 for float32, 2^-8 for bfloat16."""
    return float(2.0 ** -(ml_dtypes.finfo(dtype).nmant + 1)) if is_float(dtype) else 0.0


def smallest_normal(dtype: np.dtype) -> float:
    """The least positive normal number; what a backend that flushes may lose."""
    return float(ml_dtypes.finfo(dtype).smallest_normal) if is_float(dtype) else 0.0


def largest(dtype: np.dtype) -> float:
    """The largest finite number of a float or integer dtype."""
    if is_float(dtype):
        return float(ml_dtypes.finfo(dtype).max)
    return float(ml_dtypes.iinfo(dtype).max)


def largest_exact_integer(dtype: np.dtype) -> int:
    """The largest L such that every integer of magnitude <= L is exact in `dtype`."""
    if is_float(dtype):
        return 2 ** (ml_dtypes.finfo(dtype).nmant + 1)
    return int(ml_dtypes.iinfo(dtype).max)


def probe_operand_limit(dtype: np.dtype) -> int:
    """The largest integer probes may hold: exact in bf16 (256) and in their own dtype."""
    return min(largest_exact_integer(dtype), 256)


def round_to(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`value` (float64 or integer) rounded once to `dtype`.

    Casts through float32 on the way to narrower types, which is exact or innocuous: a value
    that float32 holds exactly is rounded once, and bit-for-bit references are only made of
    such values. Out-of-range floats become what ml_dtypes makes of them (inf, or NaN).
    """
    if not is_float(dtype):
        return value.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.itemsize >= 4:
            return value.astype(dtype)
        return value.astype(np.float32).astype(dtype)


class Judgement(Enum):
    """How a result is compared with its reference."""

    BITS = "bit for bit"
    EQUAL = "equal"
    BOUNDED = "within the bound"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one result must be. Use the three functions below to make one.

    Attributes:
      value: the exact answer: float64, or integers, or the result dtype for BITS.
      dtype: the dtype that the result must have.
      judgement: bit for bit, equal (0 == -0, NaN == NaN), or within `error`.
      error: element-wise bound before the output's own rounding (float64); BOUNDED only.
    """

    value: np.ndarray
    dtype: np.dtype
    judgement: Judgement
    error: np.ndarray | None = None

    def allowed(self) -> np.ndarray:
        """Element-wise |got - value| that a correct kernel may show.

        E + u_out * (|value| + E): the result is rounded once to its own dtype [H, 2.2].
        """
        if self.error is None:
            return np.zeros(self.value.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            u_out = unit_roundoff(self.dtype)
            return self.error + u_out * (np.abs(self.value) + self.error)


def bits(value: np.ndarray) -> Reference:
    """Data movement: the result is `value`, bit for bit, NaN payloads aside."""
    return Reference(value=value, dtype=value.dtype, judgement=Judgement.BITS)


def equal(value: np.ndarray, dtype: np.dtype) -> Reference:
    """Exact arithmetic: `value` rounded once to `dtype`, signs of zero aside."""
    return Reference(value=value, dtype=dtype, judgement=Judgement.EQUAL)


def bounded(value: np.ndarray, dtype: np.dtype, error: np.ndarray) -> Reference:
    """Rounded arithmetic: within `error` of `value`, plus the output's own rounding."""
    return Reference(value=value, dtype=dtype, judgement=Judgement.BOUNDED, error=error)


# --------------------------------------------------------------------------- bounds


def accumulation_factor(n: int, u: float) -> float:
    """The rounding of an n-term sum relative to its sum of magnitudes.

    min(8 sqrt(n), n / (1 - n u)) * u: the deterministic gamma_n of [H, lemma 3.1] and the
    probabilistic bound of [HM, theorem 2.4], whose lambda = 8 fails with probability below
    2 exp(-32) an element.
    """
    if n * u >= 1:
        return float("inf")
    return min(8.0 * float(np.sqrt(n)), n / (1 - n * u)) * u


def meaningful(n: int, accumulator: np.dtype) -> bool:
    """Whether the bound of an n-term sum in `accumulator` can condemn anything."""
    return n * unit_roundoff(accumulator) <= _MEANINGLESS


def dot_error(
    magnitude: np.ndarray,
    *,
    terms: int,
    blocks: int,
    operand: np.dtype,
    out: np.dtype,
    arithmetic: Arithmetic,
    operand_rounding: float = 0.0,
    accumulator: np.dtype = _FLOAT32,
) -> np.ndarray:
    """Element-wise forward error of a dot product or sum [H, eq. 3.5; HM].

    Args:
      magnitude: S = |A| |B|, element-wise, float64.
      terms: contraction length.
      blocks: number of blocks that the contraction is split into.
      operand, out, accumulator: dtypes.
      arithmetic: the mode's; decides whether f32 operands are rounded to bf16.
      operand_rounding: relative rounding of each operand before the dot (input fusion).

    Returns:
      E = accumulation(n) S + (2 u_in + u_in^2) S + (n + 1) eta_acc + eta_out, n = terms + blocks.
      eta is the smallest normal: backends may flush each product and sum, and the result once.
      (With the output's eta at every step, a bound for fp8 results would allow anything.)
    """
    n = terms + blocks
    u_in = operand_rounding
    if operand == _FLOAT32 and arithmetic.f32_operands_rounded:
        u_in += unit_roundoff(dtype_of("bfloat16"))
    flushed = (n + 1) * smallest_normal(accumulator) + smallest_normal(out)
    factor = accumulation_factor(n, unit_roundoff(accumulator)) + 2 * u_in + u_in**2
    with np.errstate(invalid="ignore"):
        return factor * magnitude + flushed


@dataclass(frozen=True, kw_only=True)
class Function:
    """A scalar function that kernels fuse into a dot.

    Attributes:
      exact: float64 -> float64.
      lipschitz: largest |f'|; inf where there is none (square), which forbids it as an epilogue.
      absolute: k such that float32 evaluation errs by at most k * u * max(|x|, |f(x)|).
      integral: maps integers to integers, so that exact probes stay exact.
      derivative: f', float64 -> float64; None where no contract asks for a gradient. At a kink
        it is jax's choice.
      curvature: largest |f''|; inf where f has a kink.
    """

    exact: Callable[[np.ndarray], np.ndarray]
    lipschitz: float
    absolute: float
    integral: bool
    derivative: Callable[[np.ndarray], np.ndarray] | None = None
    curvature: float = np.inf

    def evaluation_error(self, x: np.ndarray) -> np.ndarray:
        """Bound on float32 evaluation at `x`, absolute."""
        u = unit_roundoff(_FLOAT32)
        return self.absolute * u * np.maximum(np.abs(x), np.abs(self.exact(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks and Gimpel 2016), which `jax.nn.gelu` computes."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))
    inner = np.sqrt(2.0 / np.pi) * (1.0 + 3 * 0.044715 * x**2)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t**2) * inner


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _sigmoid_slope(x: np.ndarray) -> np.ndarray:
    return 0.25 * (1.0 - np.tanh(0.5 * x) ** 2)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _silu_slope(x: np.ndarray) -> np.ndarray:
    return _sigmoid(x) + x * _sigmoid_slope(x)


# Lipschitz constants: the maxima of the derivatives (1.1290 for GELU, 1.0999 for SiLU), rounded
# up; curvatures those of the second ones (sqrt(2 / pi) for GELU, 1/2 for SiLU and
# sqrt(3) / 18 for the logistic function). Evaluation: tanh and the logistic function within 8 ulp
# of 1, at most six roundings beside; 1 + tanh cancels for negative arguments, hence an error
# relative to |x| and not to |f(x)|.
FUNCTIONS: Mapping[str, Function] = {
    "identity": Function(
        exact=lambda x: x,
        lipschitz=1.0,
        absolute=0.0,
        integral=True,
        derivative=np.ones_like,
        curvature=0.0,
    ),
    "relu": Function(
        exact=lambda x: np.maximum(x, 0.0),
        lipschitz=1.0,
        absolute=0.0,
        integral=True,
        derivative=lambda x: np.where(x > 0, 1.0, np.where(np.isnan(x), x, 0.0)),
    ),
    "gelu": Function(
        exact=_gelu,
        lipschitz=1.13,
        absolute=14.0,
        integral=False,
        derivative=_gelu_slope,
        curvature=0.80,
    ),
    "silu": Function(
        exact=_silu,
        lipschitz=1.10,
        absolute=14.0,
        integral=False,
        derivative=_silu_slope,
        curvature=0.5,
    ),
    "sigmoid": Function(
        exact=_sigmoid,
        lipschitz=0.25,
        absolute=8.0,
        integral=False,
        derivative=_sigmoid_slope,
        curvature=0.0963,
    ),
    "square": Function(exact=np.square, lipschitz=np.inf, absolute=1.0, integral=True),
    "tanh": Function(exact=np.tanh, lipschitz=1.0, absolute=8.0, integral=False),
}


def function_reference(
    name: str, z: np.ndarray, error: np.ndarray | None, out: np.dtype
) -> Reference:
    """The reference of act(z) for an accumulator that holds z to within `error`.

    Args:
      error: the dot's bound; None when z is exact in the accumulator (probes).

    A function after the dot multiplies the error by its Lipschitz constant and adds its own.
    """
    function = FUNCTIONS[name]
    with np.errstate(invalid="ignore"):
        value = function.exact(z)
        if error is None and function.integral:
            return equal(value, out)
        total = smallest_normal(out) if error is None else function.lipschitz * error
        return bounded(value, out, total + function.evaluation_error(z))


# Evaluation of exp, in units of u, and the product with which a running sum is rescaled.
_EXP = 8.0


def logit_error(
    magnitude: np.ndarray,
    logits: np.ndarray,
    *,
    terms: int,
    scale: float,
    operand: np.dtype,
    arithmetic: Arithmetic,
) -> np.ndarray:
    """Element-wise error of scale * q.k, kept in float32.

    Args:
      magnitude: scale * |q| |k|, float64.
      logits: scale * q.k, float64.
      terms: contraction length.
      scale: of the logits. Kernels may apply it to q and round that to q's dtype, which is no
        rounding for a power of two.
      operand: dtype of q and k.
      arithmetic: the mode's.
    """
    u = unit_roundoff(_FLOAT32)
    u_q = 0.0 if np.frexp(scale)[0] == 0.5 else unit_roundoff(operand)
    dot = dot_error(
        (1 + u_q) * magnitude,
        terms=terms,
        blocks=1,
        operand=operand,
        out=_FLOAT32,
        arithmetic=arithmetic,
    )
    return dot + u_q * magnitude + 2 * u * np.abs(logits)


def weighted_mean_error(
    weights: np.ndarray,
    logits: np.ndarray,
    error: np.ndarray,
    values: np.ndarray,
    *,
    blocks: int,
    out: np.dtype,
    arithmetic: Arithmetic,
) -> np.ndarray:
    """Element-wise error of o = softmax(logits) @ values, computed in one pass or in several.

    Args:
      weights: softmax(logits), float64 (t, s); 0 where a logit is masked.
      logits: float64 (t, s).
      error: of the logits (see `logit_error`).
      values: (s, d) in the operands' dtype.
      blocks: how many blocks the keys are split into.
      out: dtype of the result.
      arithmetic: the mode's.

    Three parts, for weights w_j, deviations v_j - o and magnitudes P = sum_j w_j |v_j|:

    1. What distorts a weight in numerator and denominator alike: the error e_j of its logit, the
       rounding of the exponent and exp itself [BHH, section 4], and rescaling once a block, all
       together at most theta_j in the logarithm. Since the w_j (v_j - o) add up to 0, the mean
       moves by at most sum_j w_j expm1(theta_j) |v_j - o| / sum_j w_j exp(-theta_j): not at all
       where the values are equal, however large the error of the logits. By the inequality of
       Cauchy and Schwarz that sum is at most sqrt(sum_j c_j) sqrt(sum_j c_j (v_j - o)^2),
       c_j = w_j expm1(theta_j), which takes no array of t s d elements.
    2. The second product [H, eq. 3.5; HM], (accumulation + u_p + u_v) P. Kernels round weights to
       the dtype of the values; before or after they are added up, which is why the spread of the
       values counts where it is larger than P.
    3. The denominator, a sum and a division: (accumulation + 2 u) |o|.
    """
    u, u_p = unit_roundoff(_FLOAT32), 0.0
    n = logits.shape[1] + blocks
    if values.dtype != _FLOAT32:
        u_p = unit_roundoff(values.dtype)
    elif arithmetic.f32_operands_rounded:
        u_p = unit_roundoff(dtype_of("bfloat16"))
    v = values.astype(np.float64)
    mean = weights @ v
    kept = weights > 0
    size = np.where(kept, np.abs(logits), 0.0)
    largest_logit = size.max(axis=1, keepdims=True)
    theta = np.where(kept, error, 0.0) + u * (
        4 * (size + largest_logit) + (_EXP + 1) * (blocks + 1)
    )
    sums = (weights * np.exp(-theta)).sum(axis=1, keepdims=True)
    sums = np.where(sums > 0, sums, 1.0)
    distorted = weights * np.expm1(theta)
    moved = np.sqrt(distorted.sum(axis=1, keepdims=True) * _spread(distorted, v, mean))
    magnitude = (weights + distorted) @ np.abs(v)
    spread = np.sqrt(_spread(weights, v, mean))
    accumulated = accumulation_factor(n, u)
    u_v = 0.0 if values.dtype != _FLOAT32 else u_p
    product = accumulated * magnitude + (u_p + u_v + u_p * u_v) * np.maximum(magnitude, spread)
    flushed = smallest_normal(_FLOAT32) * np.abs(v).sum(axis=0) + smallest_normal(out)
    return (moved + product) / sums + (accumulated + 2 * u) * np.abs(mean) + 2 * flushed


def _spread(weights: np.ndarray, v: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """sum_j w_j (v_j - o)^2, at least 0."""
    total = weights.sum(axis=1, keepdims=True)
    squares = weights @ np.square(v) - 2 * mean * (weights @ v) + np.square(mean) * total
    return np.maximum(squares, 0.0)


# --------------------------------------------------------------------------- comparison


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How one result compares with its reference.

    Attributes:
      ok: right.
      why: first bad index, got, expected, allowed; "" when right.
      ratio: worst achieved/allowed; 0 when equal; None when nothing finite describes it.
      bad: number of wrong elements.
    """

    ok: bool
    why: str = ""
    ratio: float | None = 0.0
    bad: int = 0


def compare(got: np.ndarray, reference: Reference) -> Comparison:
    """Judges one result. Shapes and dtypes must agree exactly."""
    got = np.asarray(got)
    if got.shape != reference.value.shape:
        return _unlike(f"shape {got.shape}, expected {reference.value.shape}")
    if got.dtype != reference.dtype:
        return _unlike(f"dtype {got.dtype}, expected {reference.dtype}")
    if reference.judgement is Judgement.BOUNDED:
        return _compare_bounded(got, reference)
    return _compare_exact(got, reference)


def _unlike(why: str) -> Comparison:
    return Comparison(ok=False, why=f"the result has {why}", ratio=None, bad=1)


def _compare_exact(got: np.ndarray, reference: Reference) -> Comparison:
    expected = round_to(reference.value, reference.dtype)
    if reference.judgement is Judgement.BITS:
        same = _as_bits(got) == _as_bits(expected)
    else:
        same = got == expected
    if is_float(reference.dtype):
        same = same | (np.isnan(got) & np.isnan(expected))
    if same.all():
        return Comparison(ok=True)
    wrong = ~same
    index = _first(wrong)
    why = (
        f"{_count(wrong)}; first at {list(index)}: got {got[index]}, expected "
        f"{expected[index]} ({reference.judgement.value})"
    )
    return Comparison(ok=False, why=why, ratio=None, bad=int(wrong.sum()))


def _compare_bounded(got: np.ndarray, reference: Reference) -> Comparison:
    value, allowed = reference.value, reference.allowed()
    got64 = got.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got64 - value)
        ratio = np.where(error == 0, 0.0, error / allowed)
    # NaN and infinity must stand where the exact answer has them, and never match a number.
    special = ~np.isfinite(value)
    agrees = np.where(
        np.isnan(value), np.isnan(got64), np.where(special, got64 == value, ratio <= 1.0)
    )
    finite = ratio[~special & np.isfinite(ratio)]
    worst = float(finite.max()) if finite.size else 0.0
    if agrees.all():
        return Comparison(ok=True, ratio=worst)
    wrong = ~agrees
    index = _first(wrong)
    why = (
        f"{_count(wrong)}; first at {list(index)}: got {got64[index]:.9g}, expected "
        f"{value[index]:.9g} +- {allowed[index]:.3g}; error / allowed = {ratio[index]:.3g}"
    )
    return Comparison(ok=False, why=why, ratio=worst if worst > 1 else None, bad=int(wrong.sum()))


def _as_bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _count(wrong: np.ndarray) -> str:
    return f"{int(wrong.sum())} of {wrong.size} elements wrong"
