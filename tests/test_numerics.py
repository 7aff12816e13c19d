"""The numerical policy: hand values, no false alarm on right kernels, no wrong kernel let by.

The kernels here are simulated in NumPy: blocked matmuls and sums whose order, accumulator and
mistakes are chosen. The matmul case's own inputs and references judge them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from conformance import contraction, numerics
from conformance.numerics import (
    COMPILED,
    FUNCTIONS,
    INTERPRETED,
    Arithmetic,
    Reference,
    bits,
    bounded,
    compare,
    dot_error,
    dtype_of,
    equal,
    round_to,
)
from conformance.strategies import rng_of

F32, BF16 = np.dtype(np.float32), dtype_of("bfloat16")
E4M3, E5M2 = dtype_of("float8_e4m3fn"), dtype_of("float8_e5m2")
NARROW = (BF16, E4M3, E5M2)

# --------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    "dtype, u, exact, most, normal",
    [
        (F32, 2**-24, 2**24, 3.4028234663852886e38, 2**-126),
        (BF16, 2**-8, 2**8, 3.3895313892515355e38, 2**-126),
        (E4M3, 2**-4, 2**4, 448.0, 2**-6),
        (E5M2, 2**-3, 2**3, 57344.0, 2**-14),
        (np.dtype(np.int8), 0.0, 127, 127.0, 0.0),
        (np.dtype(np.uint16), 0.0, 65535, 65535.0, 0.0),
    ],
    ids=lambda value: value.name if isinstance(value, np.dtype) else "",
)
def test_formats(dtype, u, exact, most, normal):
    assert numerics.unit_roundoff(dtype) == u
    assert numerics.largest_exact_integer(dtype) == exact
    assert numerics.largest(dtype) == most
    assert numerics.smallest_normal(dtype) == normal


@pytest.mark.parametrize("dtype", (F32, *NARROW), ids=str)
def test_unit_roundoff_is_half_the_distance_from_one(dtype):
    one = np.ones((), dtype)
    above = np.nextafter(one, np.asarray(2, dtype))
    assert float(above) - 1 == 2 * numerics.unit_roundoff(dtype)


@pytest.mark.parametrize("dtype, limit", [(F32, 256), (BF16, 256), (E4M3, 16), (E5M2, 8)], ids=str)
def test_probe_operands_are_exact_in_bf16_and_their_own_dtype(dtype, limit):
    assert numerics.probe_operand_limit(dtype) == limit
    every = np.arange(-limit, limit + 1)
    assert (every.astype(dtype).astype(int) == every).all()
    assert int(np.asarray(limit + 1, np.float32).astype(BF16 if limit == 256 else dtype)) == limit


def test_names():
    assert dtype_of("bfloat16") == ml_dtypes.bfloat16
    assert dtype_of("int16") == np.int16
    with pytest.raises(TypeError):
        dtype_of("float24")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_round_to_agrees_with_xla(dtype):
    """Every binade with full mantissas, ties, values out of range, NaN and infinities."""
    rng = rng_of(3)
    x = rng.standard_normal(20_000) * 2.0 ** rng.integers(-5, 17, 20_000)
    ties = np.arange(-300, 300) * 0.5
    x = np.concatenate([x, ties, [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30]]).astype(np.float32)
    xla, ours = np.asarray(jnp.asarray(x).astype(dtype)), round_to(x.astype(np.float64), dtype)
    same = (xla.view(f"u{dtype.itemsize}") == ours.view(f"u{dtype.itemsize}")) | np.isnan(x)
    assert same.all(), (x[~same][:5], xla[~same][:5], ours[~same][:5])
    assert np.isnan(xla[np.isnan(x)]).all() and np.isnan(ours[np.isnan(x)]).all()


# --------------------------------------------------------------------------- bounds


def test_accumulation_factor_by_hand():
    u = 2.0**-24
    # n / (1 - n u) is the smaller one up to n = 64, 8 sqrt(n) beyond.
    assert numerics.accumulation_factor(1, u) == u / (1 - u)
    assert numerics.accumulation_factor(16, u) == 16 * u / (1 - 16 * u)
    assert numerics.accumulation_factor(100, u) == 80 * u
    assert numerics.accumulation_factor(1024, u) == 256 * u
    assert numerics.accumulation_factor(256, 2.0**-8) == math.inf


def test_a_bound_for_bf16_accumulation_means_nothing_from_17_terms():
    assert numerics.meaningful(16, BF16)
    assert not numerics.meaningful(17, BF16)
    assert numerics.meaningful(10**5, F32)


def error(magnitude: float = 1.0, **changed) -> float:
    given = {"terms": 256, "blocks": 2, "operand": F32, "out": F32, "arithmetic": INTERPRETED}
    return float(dot_error(np.array(magnitude), **(given | changed)))


@pytest.mark.parametrize(
    "larger",
    [
        {"magnitude": 2.0},
        {"terms": 257},
        {"blocks": 3},
        {"arithmetic": COMPILED},
        {"operand_rounding": 2.0**-20},
        {"accumulator": BF16},
        {"out": E4M3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_dot_error_grows_with(larger):
    assert error(**larger) > error()


def test_dot_error_by_hand():
    n, u, tiny = 256 + 2, 2.0**-24, 2.0**-126
    flushed = (n + 1) * tiny + tiny
    assert error(3.0) == 8 * math.sqrt(n) * u * 3 + flushed
    rounded = 2 * 2.0**-8 + 2.0**-16
    assert error(3.0, arithmetic=COMPILED) == (8 * math.sqrt(n) * u + rounded) * 3 + flushed
    assert error(3.0, arithmetic=COMPILED, operand=BF16) == error(3.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lipschitz_constants_and_evaluation(name):
    """On a grid: no slope is steeper, and float32 evaluation in jax stays within its error."""
    function = FUNCTIONS[name]
    x = np.linspace(-30, 30, 60_001)
    y = function.exact(x)
    assert np.abs(np.diff(y) / np.diff(x)).max() <= function.lipschitz * (1 + 2.0**-30)
    in_jax = {"identity": lambda v: v, "square": jnp.square, "tanh": jnp.tanh}
    x = x.astype(np.float32)
    got = np.asarray(in_jax.get(name, getattr(jax.nn, name, None))(x)).astype(np.float64)
    x64 = x.astype(np.float64)
    assert (np.abs(got - function.exact(x64)) <= function.evaluation_error(x64)).all()


def test_allowed_adds_the_rounding_of_the_output():
    reference = bounded(np.array([-4.0]), BF16, np.array([0.5]))
    assert reference.allowed() == 0.5 + 2.0**-8 * 4.5
    assert (equal(np.ones(3), F32).allowed() == 0).all()


# --------------------------------------------------------------------------- right kernels

Order = Callable[[np.ndarray, np.ndarray], np.ndarray]


def blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def backwards(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return one_by_one(a[:, ::-1], b[::-1])


def halving(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As a tree, which is how a reduction over lanes adds."""
    terms = a.T[:, :, None] * b[:, None, :]
    while len(terms) > 1:
        if len(terms) % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[:1])])
        terms = terms[::2] + terms[1::2]
    return terms[0]


ORDERS = (blas, one_by_one, backwards, halving)


def kernel(
    a: np.ndarray, b: np.ndarray, bk: int, arithmetic: Arithmetic, order: Order = blas
) -> np.ndarray:
    """The float32 accumulator of a right kernel."""
    if a.dtype == F32 and arithmetic.f32_operands_rounded:
        a, b = a.astype(BF16), b.astype(BF16)
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], bk):
        total = total + order(a[:, start : start + bk], b[start : start + bk])
    return total


def reference_of(
    kind: str, a: np.ndarray, b: np.ndarray, bk: int, arithmetic: Arithmetic, function: str
) -> Reference:
    return contraction.reference(
        kind,
        a,
        b,
        k_blocks=-(-a.shape[1] // bk),
        operand_dtype=a.dtype,
        out=a.dtype,
        arithmetic=arithmetic,
        function=function,
    )


def examples(dtype: np.dtype, count: int) -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """(kind, a, b, bk) of `count` seeds under each distribution of the dtype."""
    for seed in range(count):
        rng = rng_of(seed)
        m, n = (int(i) for i in rng.integers(1, 24, 2))
        k = int(rng.choice([1, 2, 37, 128, 300]))
        bk = int(rng.choice([k, 32, 100]))
        for kind in contraction.kinds({"dtype": dtype.name}):
            yield kind, *contraction.operands(kind, rng, m, k, n, dtype.name, dtype.name), bk


def act(name: str, z: np.ndarray) -> np.ndarray:
    """The function in float32, as a kernel computes it."""
    if name == "silu":
        return z / (1 + np.exp(-z))
    if name == "gelu":
        inner = np.float32(math.sqrt(2 / math.pi)) * (z + np.float32(0.044715) * z * z * z)
        return np.float32(0.5) * z * (1 + np.tanh(inner))
    return np.maximum(z, 0) if name == "relu" else z


@pytest.mark.parametrize("arithmetic", (INTERPRETED, COMPILED), ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", (F32, *NARROW), ids=str)
def test_no_false_alarm_on_right_matmuls(dtype, arithmetic):
    judged = 0
    for number, (kind, a, b, bk) in enumerate(examples(dtype, 200)):
        order = ORDERS[number % len(ORDERS)]
        got = round_to(kernel(a, b, bk, arithmetic, order), dtype)
        decided = compare(got, reference_of(kind, a, b, bk, arithmetic, "identity"))
        assert decided.ok, (kind, a.shape, b.shape, bk, order.__name__, decided.why)
        judged += 1
    assert judged >= 800


@pytest.mark.parametrize("arithmetic", (INTERPRETED, COMPILED), ids=lambda a: a.name)
@pytest.mark.parametrize("function", ("relu", "gelu", "silu"))
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_no_false_alarm_on_right_activations(dtype, function, arithmetic):
    for kind, a, b, bk in examples(dtype, 24):
        got = round_to(act(function, kernel(a, b, bk, arithmetic)), dtype)
        decided = compare(got, reference_of(kind, a, b, bk, arithmetic, function))
        assert decided.ok, (kind, a.shape, b.shape, bk, decided.why)


@pytest.mark.parametrize("name", ("sum", "sum_narrow"))
def test_no_false_alarm_on_right_sums(cases, name):
    case = cases[name]
    point = {"m": 8, "n": 30, "bm": 8, "bn": 30}
    for seed in range(24):
        for dtype in case.params["dtype"].choices:
            params = {"b": 1 + seed % 9, **point, "dtype": dtype}
            for kind in case.inputs(params):
                (x,) = case.make(params, kind, rng_of(seed))
                (reference,) = case.reference(params, kind, (x,), INTERPRETED)
                decided = compare(summed(x, reference.dtype), reference)
                assert decided.ok, (params, kind, decided.why)


def summed(x: np.ndarray, out: np.dtype) -> np.ndarray:
    """The sum over the first axis, one after the other, in 32 bits."""
    wide = np.float32 if numerics.is_float(x.dtype) else out
    total = np.zeros(x.shape[1:], wide)
    with np.errstate(invalid="ignore"):
        for part in x:
            total = total + part.astype(wide)
    return round_to(total, out)


# --------------------------------------------------------------------------- softmax


def online(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    bk: int,
    arithmetic: Arithmetic,
    *,
    first_scaled: bool = False,
    sum_rounded: bool = False,
    grown: Callable[[np.ndarray], np.ndarray] = lambda factor: factor,
) -> np.ndarray:
    """softmax(scale * q @ k.T) @ v over blocks of keys, in float32 as a kernel computes it.

    Args:
      first_scaled: the scale is applied to q, in its dtype.
      sum_rounded: the denominator adds up weights that are rounded to the dtype of v.
      grown: what the sum of values is multiplied by when the largest logit grows.
    """
    dtype, low = q.dtype, BF16 if arithmetic.f32_operands_rounded else q.dtype
    if first_scaled:
        q, scale = (q.astype(np.float32) * np.float32(scale)).astype(dtype), 1.0
    q, k, v = (x.astype(low).astype(np.float32) for x in (q, k, v))
    top = np.full((len(q), 1), -np.float32(3e38))
    total, acc = np.zeros((len(q), 1), np.float32), np.zeros((len(q), v.shape[1]), np.float32)
    for start in range(0, len(k), bk):
        logits = np.float32(scale) * (q @ k[start : start + bk].T)
        new = np.maximum(top, logits.max(axis=1, keepdims=True))
        weights, factor = np.exp(logits - new), np.exp(top - new)
        rounded = weights.astype(low).astype(np.float32)
        added = rounded if sum_rounded else weights
        total = factor * total + added.sum(axis=1, keepdims=True)
        acc = grown(factor) * acc + rounded @ v[start : start + bk]
        top = new
    return round_to(acc / total, dtype)


def rows_of_attention(cases, dtype: np.dtype, count: int) -> Iterator[tuple]:
    """(kind, params, q, k, v) of one head, all keys allowed, under each real distribution."""
    for seed in range(count):
        rng = rng_of(seed)
        s = int(rng.choice([1, 37, 128, 300]))
        params = {"b": 1, "h": 1, "hkv": 1, "t": 16, "s": s, "d": int(rng.choice([8, 64, 128]))}
        params |= {"bq": 16, "bk": int(rng.choice([s, 32])), "dtype": dtype.name, "mask": "none"}
        params |= {"scale": float(rng.choice([0.125, 0.1, 1.0])), "window": 0}
        for kind in ("position", "normal", "cancel", "wide"):
            yield kind, params, *cases["attention"].make(params, kind, rng)


def judged_attention(cases, kind: str, params, arrays, arithmetic, **options):
    got = online(*(a[0, 0] for a in arrays), params["scale"], params["bk"], arithmetic, **options)
    (reference,) = cases["attention"].reference(params, kind, arrays, arithmetic)
    return compare(got[None, None], reference)


@pytest.mark.parametrize("arithmetic", (INTERPRETED, COMPILED), ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_no_false_alarm_on_right_attention(cases, dtype, arithmetic):
    worst = 0.0
    for number, (kind, params, *arrays) in enumerate(rows_of_attention(cases, dtype, 60)):
        options = {"first_scaled": number % 2 == 1, "sum_rounded": number % 3 == 1}
        decided = judged_attention(cases, kind, params, tuple(arrays), arithmetic, **options)
        assert decided.ok, (kind, params, options, decided.why)
        worst = max(worst, decided.ratio) if kind != "position" else worst
    assert worst > 0.02, "a bound that nothing comes near condemns nothing"


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_a_forgotten_rescaling_is_seen(cases, dtype):
    """Wherever there are several blocks of keys and their largest logits differ."""
    seen = [
        judged_attention(
            cases, kind, params, tuple(arrays), COMPILED, grown=lambda factor: np.sign(factor)
        ).ok
        for kind, params, *arrays in rows_of_attention(cases, dtype, 20)
        if params["s"] > 2 * params["bk"] and kind in ("normal", "wide")
    ]
    assert seen and not any(seen)


def test_equal_values_leave_no_error_of_logits():
    """The mean of equal values is their value, whatever the weights."""
    logits = np.linspace(-3, 3, 8)[None]
    weights = np.exp(logits) / np.exp(logits).sum()
    values = np.full((8, 4), 2.5, np.float32)

    def found(error: float) -> np.ndarray:
        return numerics.weighted_mean_error(
            weights,
            logits,
            np.full_like(logits, error),
            values,
            blocks=1,
            out=F32,
            arithmetic=INTERPRETED,
        )

    assert (found(0.5) < 1e-4).all()
    values[0] = -2.5
    assert (found(0.5) > 1e-2).all()


# --------------------------------------------------------------------------- wrong kernels


def bf16_accumulator(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), BF16)
    for k in range(0, a.shape[1], bk):
        product = a[:, k : k + bk].astype(np.float32) @ b[k : k + bk].astype(np.float32)
        total = (total.astype(np.float32) + product).astype(BF16)
    return total.astype(np.float32)


def product_rounded_at_every_step(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], bk):
        product = a[:, k : k + bk].astype(np.float32) @ b[k : k + bk].astype(np.float32)
        total += product.astype(BF16).astype(np.float32)
    return total


def last_block_missing(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    return kernel(a[:, :-bk], b[:-bk], bk, INTERPRETED)


def one_block_twice(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    return kernel(a, b, bk, INTERPRETED) + kernel(a[:, :bk], b[:bk], bk, INTERPRETED)


def rows_swapped(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    a = a.copy()
    a[[0, 1]] = a[[1, 0]]
    return kernel(a, b, bk, INTERPRETED)


def relu_at_every_step(a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], bk):
        total = np.maximum(total + kernel(a[:, k : k + bk], b[k : k + bk], bk, INTERPRETED), 0)
    return total


WRONG = {
    bf16_accumulator: "identity",
    product_rounded_at_every_step: "identity",
    last_block_missing: "identity",
    one_block_twice: "identity",
    rows_swapped: "identity",
    relu_at_every_step: "relu",
}


def alarms(dtype: np.dtype, wrong: Callable, function: str, shape=(8, 512, 24)) -> set[str]:
    """The distributions that condemn a wrong kernel."""
    found = set()
    m, k, n = shape
    for kind in contraction.kinds({"dtype": dtype.name}):
        a, b = contraction.operands(kind, rng_of(5), m, k, n, dtype.name, dtype.name)
        reference = reference_of(kind, a, b, 128, INTERPRETED, function)
        if not compare(round_to(wrong(a, b, 128), dtype), reference).ok:
            found.add(kind)
    return found


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
@pytest.mark.parametrize("wrong, function", WRONG.items(), ids=lambda w: getattr(w, "__name__", w))
def test_wrong_kernels_are_seen(dtype, wrong, function):
    """By the integer probes always; they need no tolerance."""
    assert "exact" in alarms(dtype, wrong, function)


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
@pytest.mark.parametrize("wrong", (last_block_missing, one_block_twice, rows_swapped))
def test_wrong_kernels_are_seen_in_fp8(dtype, wrong):
    """Its probes are too small for a bf16 accumulator, whose error its results cannot show."""
    assert {"exact", "normal"} <= alarms(dtype, wrong, "identity")


def test_bounds_alone_see_what_is_grossly_wrong():
    """A reason to have probes too: bf16 outputs hide one rounding of a product."""
    for wrong in (last_block_missing, one_block_twice, rows_swapped):
        assert {"normal", "wide"} <= alarms(BF16, wrong, "identity")
    assert "normal" in alarms(F32, bf16_accumulator, "identity")


@pytest.mark.parametrize("kind", ("exact", "normal"))
def test_one_wrong_element_in_a_hundred_thousand(kind):
    """No share of elements may be wrong."""
    a, b = contraction.operands(kind, rng_of(1), 320, 64, 320, "float32", "float32")
    reference = reference_of(kind, a, b, 64, INTERPRETED, "identity")
    got = kernel(a, b, 64, INTERPRETED)
    assert compare(got, reference).ok
    got[217, 11] += np.float32(1e-3 if kind == "normal" else 1)
    decided = compare(got, reference)
    assert not decided.ok and decided.bad == 1
    assert "1 of 102400 elements wrong; first at [217, 11]" in decided.why


# --------------------------------------------------------------------------- comparison


def judged(got: list, want: Reference) -> bool:
    return compare(np.array(got, want.dtype), want).ok


@pytest.mark.parametrize("special", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("judgement", ("bits", "equal", "bounded"))
def test_nan_and_infinities_match_only_themselves(special, judgement):
    value = np.array([1.0, special])
    want = {
        "bits": bits(value.astype(np.float32)),
        "equal": equal(value, F32),
        "bounded": bounded(value, F32, np.array([0.5, np.inf])),
    }[judgement]
    assert judged([1.0, special], want)
    for wrong in {np.nan, np.inf, -np.inf, 7.0} - {special}:
        if not (math.isnan(wrong) and math.isnan(special)):
            assert not judged([1.0, wrong], want), wrong
        assert not judged([wrong, special], want), wrong


def test_payloads_of_nan_do_not_matter():
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert compare(np.array([other]), bits(np.array([quiet]))).ok


def test_the_sign_of_zero_matters_for_data_movement_only():
    assert not judged([-0.0], bits(np.zeros(1, np.float32)))
    assert judged([-0.0], equal(np.zeros(1), F32))
    assert judged([-0.0], bounded(np.zeros(1), F32, np.zeros(1)))


def test_the_bound_is_where_it_says():
    """In integers above 2^24, so that float32 can stand just inside and just outside of it."""
    want = bounded(np.array([2.0**25]), F32, np.array([100.0]))
    allowed = float(want.allowed()[0])
    assert 102 < allowed < 103  # 100 and half a unit in the last place, which is 4
    assert judged([2**25 + 100], want) and judged([2**25 - 100], want)
    assert not judged([2**25 + 104], want) and not judged([2**25 - 104], want)


def test_nothing_is_allowed_where_the_error_is_zero():
    want = bounded(np.array([0.0, 1.0]), F32, np.array([0.0, 0.5]))
    decided = compare(np.array([1e-30, 1.0], np.float32), want)
    assert not decided.ok and decided.bad == 1


@pytest.mark.parametrize(
    "got, why",
    [
        (np.zeros((2, 3), np.float32), "shape (2, 3), expected (3, 2)"),
        (np.zeros((3, 2), BF16), "dtype bfloat16, expected float32"),
        (np.zeros((3, 2), np.int32), "dtype int32, expected float32"),
        (np.zeros((), np.float32), "shape (), expected (3, 2)"),
    ],
    ids=("transposed", "narrower", "integer", "scalar"),
)
def test_shapes_and_dtypes_must_agree(got, why):
    for want in (equal(np.zeros((3, 2)), F32), bounded(np.zeros((3, 2)), F32, np.ones((3, 2)))):
        decided = compare(got, want)
        assert not decided.ok
        assert decided.why == f"the result has {why}"


def test_equal_compares_after_one_rounding():
    third = np.array([1 / 3])
    assert compare(third.astype(np.float32).astype(BF16), equal(third, BF16)).ok
    assert not compare(np.nextafter(third.astype(BF16), BF16.type(1)), equal(third, BF16)).ok


def test_messages_say_where_and_how_far():
    want = bounded(np.array([[1.0, 2.0], [3.0, 4.0]]), F32, np.full((2, 2), 0.25))
    decided = compare(np.array([[1.0, 2.0], [4.0, 9.0]], np.float32), want)
    assert decided.why == (
        "2 of 4 elements wrong; first at [1, 0]: got 4, expected 3 +- 0.25; error / allowed = 4"
    )
    assert 19.9 < decided.ratio <= 20.0
    assert decided.bad == 2
    exact = compare(np.array([5, 7], np.int32), equal(np.array([5, 6]), np.dtype(np.int32)))
    assert exact.why == "1 of 2 elements wrong; first at [1]: got 7, expected 6 (equal)"


def test_the_ratio_of_a_right_result_is_its_worst_element():
    want = bounded(np.zeros(3), F32, np.array([1.0, 1.0, 4.0]))
    ratio = compare(np.array([0.0, -0.5, 1.0], np.float32), want).ratio
    assert ratio == 0.5 / (1 + 2.0**-24)
