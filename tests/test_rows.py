"""Bounds for rows and for gradients: no false alarm on right code, none of the wrong let by.

Kernels are simulated in NumPy and float32, with algorithms unlike those of the reference kernels;
gradients are checked against differences in float64 and against JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from conformance.case import Arrays, Case, Params
from conformance.numerics import COMPILED, INTERPRETED, compare, dtype_of, round_to
from conformance.strategies import rng_of

F32 = np.float32
EPSILON = F32(1e-6)
DTYPES = ("float32", "bfloat16")

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")


def points(case: Case, seeds: int = 6) -> Iterator[tuple[Params, str, Arrays]]:
    """Points of the row cases, and of the others with the blocks of one step."""
    for seed in range(seeds):
        for dtype in DTYPES:
            size = (1, 2, 37, 128, 300, 640)[seed % 6]
            params: dict[str, Any] = {"dtype": dtype}
            lengths = {"m": 11, "k": 24, "b": 9, "h": 40} | {"n": size, "v": size}
            for name, param in case.params.items():
                if param.kind in ("size", "block"):
                    params[name] = lengths[name[-1]]
                elif param.kind == "choice":
                    params[name] = param.choices[seed % len(param.choices)]
            for kind in case.inputs(params):
                yield params, kind, case.make(params, kind, rng_of(seed))


def judged(case: Case, kernel: Callable[..., np.ndarray], *kinds: str) -> list[tuple[str, str]]:
    """(kind, why) of every point on which `kernel` of float32 arrays is condemned."""
    found = []
    for params, kind, arrays in points(case):
        if kinds and kind not in kinds:
            continue
        wide = (a.astype(F32) if a.dtype != np.int32 else a for a in arrays)
        (reference,) = case.reference(params, kind, arrays, INTERPRETED)
        with np.errstate(all="ignore"):
            got = round_to(np.asarray(kernel(*wide)).astype(F32), reference.dtype)
        decided = compare(got, reference)
        if not decided.ok:
            found.append((kind, f"{dict(params)}: {decided.why}"))
    return found


# --------------------------------------------------------------------------- normalisation


def one_by_one(x: np.ndarray) -> np.ndarray:
    """The sums of rows, (m, 1), from left to right."""
    total = np.zeros((x.shape[0], 1), F32)
    for column in x.T:
        total = total + column[:, None]
    return total


def mean(x: np.ndarray) -> np.ndarray:
    return one_by_one(x) * (F32(1) / F32(x.shape[1]))


def two_passes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    middle = mean(x)
    return middle, mean(np.square(x - middle))


def welford(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A running mean and a running sum of squares over eight columns at a time."""
    middle, squares, count = np.zeros((x.shape[0], 1), F32), np.zeros((x.shape[0], 1), F32), 0
    for start in range(0, x.shape[1], 8):
        part = x[:, start : start + 8]
        width = part.shape[1]
        delta = mean(part) - middle
        own = one_by_one(np.square(part - mean(part)))
        squares = squares + own + np.square(delta) * F32(count * width / (count + width))
        count += width
        middle = middle + delta * F32(width / count)
    return middle, squares / F32(count)


def difference_of_squares(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return mean(x), mean(np.square(x)) - np.square(mean(x))


def layer_norm(statistics: Callable[..., Any], *, folded: bool) -> Callable[..., np.ndarray]:
    def kernel(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
        middle, variance = statistics(x)
        rstd = F32(1) / np.sqrt(variance + EPSILON)
        if folded:
            return x * (rstd * scale) + (offset - middle * (rstd * scale))
        return (x - middle) * rstd * scale + offset

    return kernel


def rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(mean(np.square(x)) + EPSILON) * scale


@pytest.mark.parametrize("folded", (False, True))
@pytest.mark.parametrize("statistics", (two_passes, welford))
def test_no_false_alarm_on_right_layer_norms(cases, statistics, folded):
    assert judged(cases["layer_norm"], layer_norm(statistics, folded=folded)) == []


def test_no_false_alarm_on_a_right_rms_norm(cases):
    assert judged(cases["rms_norm"], rms_norm) == []


def test_a_difference_of_squares_is_seen_where_it_cancels(cases):
    wrong = layer_norm(difference_of_squares, folded=False)
    assert judged(cases["layer_norm"], wrong, "cancel")
    assert not judged(cases["layer_norm"], wrong, "normal"), "it is right where nothing cancels"


# --------------------------------------------------------------------------- softmax


def largest(x: np.ndarray) -> np.ndarray:
    return np.max(x, axis=1, keepdims=True)


def in_powers_of_two(x: np.ndarray) -> np.ndarray:
    scaled = x * F32(np.log2(np.e))
    e = np.exp2(scaled - largest(scaled))
    return e * (F32(1) / one_by_one(e))


def running(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and sum, sixteen columns at a time."""
    top, total = np.full((x.shape[0], 1), -np.inf, F32), np.zeros((x.shape[0], 1), F32)
    for start in range(0, x.shape[1], 16):
        part = x[:, start : start + 16]
        new = np.maximum(top, largest(part))
        base = np.where(np.isneginf(new), F32(0), new)
        total = total * np.exp(top - base) + one_by_one(np.exp(part - base))
        top = new
    return top, total


def online(x: np.ndarray) -> np.ndarray:
    top, total = running(x)
    return np.exp(x - top) / total


def not_stable(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / one_by_one(np.exp(x))


@pytest.mark.parametrize("kernel", (online, in_powers_of_two))
def test_no_false_alarm_on_right_softmaxes(cases, kernel):
    # The product with log2(e) is rounded before the maximum is subtracted: only for small logits.
    kinds = ("normal", "special") if kernel is in_powers_of_two else ()
    assert judged(cases["softmax"], kernel, *kinds) == []


def test_an_unstable_softmax_is_seen(cases):
    assert {kind for kind, _ in judged(cases["softmax"], not_stable)} >= {"exact", "wide"}


def test_no_false_alarm_on_a_right_loss(cases):
    case = cases["linear_softmax_cross_entropy"]

    def kernel(x: np.ndarray, labels: np.ndarray, w: np.ndarray) -> np.ndarray:
        z = np.zeros((x.shape[0], w.shape[1]), F32)
        for k in range(x.shape[1]):
            z = z + x[:, k : k + 1] * w[k]
        top, total = running(z)
        return one_by_one((top + np.log(total) - z[np.arange(len(z)), labels][:, None]).T)[0, 0]

    for params, kind, arrays in points(case):
        (reference,) = case.reference(params, kind, arrays, INTERPRETED)
        x, labels, w = arrays
        got = kernel(x.astype(F32), labels, w.astype(F32))
        divided = got / F32(params["b"]) if params["reduction"] == "mean" else got
        decided = compare(np.asarray(divided, F32), reference)
        assert decided.ok, (params, kind, decided.why)


# --------------------------------------------------------------------------- gradients

DIFFERENTIABLE = ("layer_norm", "rms_norm", "softmax", "gated_linear_unit")
STEP = 2.0**-20


def exact_function(case: Case, params: Params) -> Callable[[Arrays], np.ndarray]:
    """The contract in float64: the value of the case's own reference."""

    def function(arrays: Arrays) -> np.ndarray:
        return case.reference(params, "normal", arrays, INTERPRETED)[0].value

    return function


def cotangent(case: Case, params: Params, arrays: Arrays) -> np.ndarray:
    shape = case.reference(params, "normal", arrays, INTERPRETED)[0].value.shape
    return rng_of(99).standard_normal(shape).astype(F32).astype(dtype_of(params["dtype"]))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_agree_with_differences(cases, name):
    """Along a random direction, in float64: a central difference errs by the step squared."""
    case = cases[name]
    for params, kind, arrays in points(case):
        if kind != "normal" or params["dtype"] != "float32" or params.get("activation") == "relu":
            continue
        wide = tuple(a.astype(np.float64) for a in arrays)
        dz = cotangent(case, params, arrays)
        found = case.gradient(params, kind, arrays, (dz,), INTERPRETED)
        for place, reference in enumerate(found):
            direction = rng_of(place).standard_normal(arrays[place].shape)
            ends = [
                exact_function(case, params)(
                    (*wide[:place], wide[place] + step * direction, *wide[place + 1 :])
                )
                for step in (STEP, -STEP)
            ]
            difference = ((ends[0] - ends[1]) * dz).sum() / (2 * STEP)
            terms = np.abs(reference.value * direction).sum() + np.abs(dz).sum()
            off = abs((reference.value * direction).sum() - difference)
            assert off <= terms * STEP, (params, place, off / terms)


def gradient_of(case: Case, params: Params) -> Callable[..., Any]:
    """(dz, *arrays) -> the gradients of the baseline's arrays."""
    return lambda dz, *arrays: jax.vjp(lambda *a: case.baseline(params, *a), *arrays)[1](dz)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_no_false_alarm_on_the_gradient_of_the_baseline(cases, name):
    case = cases[name]
    judged, compiled = 0, {}
    for params, kind, arrays in points(case):
        if kind == "special":
            continue
        dz = cotangent(case, params, arrays)
        vjp = compiled.setdefault(repr(params), jax.jit(gradient_of(case, params)))
        for arithmetic in (INTERPRETED, COMPILED):
            found = case.gradient(params, kind, arrays, (dz,), arithmetic)
            for place, (got, reference) in enumerate(zip(vjp(dz, *arrays), found, strict=True)):
                decided = compare(np.asarray(got), reference)
                assert decided.ok, (params, kind, place, decided.why)
                judged += 1
    assert judged > 40


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_wrong_gradient_is_seen(cases, name):
    """That of rows moved by one: every term of it is there, in the wrong place."""
    case = cases[name]
    for params, kind, arrays in points(case):
        if kind != "normal" or params.get("n") == 1:
            continue
        dz = cotangent(case, params, arrays)
        reference = case.gradient(params, kind, arrays, (dz,), COMPILED)[0]
        moved = round_to(np.roll(reference.value, 1, axis=0), reference.dtype)
        assert not compare(moved, reference).ok, params
