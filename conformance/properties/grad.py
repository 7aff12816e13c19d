"""Property `grad`: what `jax.vjp` makes of the kernel agrees with the contract's gradient.

JAX does not differentiate a `pallas_call` in reverse; a kernel that promises this brings a
`jax.custom_vjp`. XLA's gradient of the baseline must satisfy the same bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from conformance.case import Arrays, Case, Example, Kernel
from conformance.modes import Call, _staging
from conformance.numerics import INTERPRETED, Reference, is_float
from conformance.properties import References
from conformance.properties._interpreted import (
    Interpreted,
    called,
    device_stage,
    expected,
    jit,
    positions,
)
from conformance.strategies import integers, make_arrays, rng_of
from conformance.verdict import Status, Use

_VALUE = "the value that vjp returns"
_PROBES = ("exact", "position")
# Small enough to keep products with probes and their sums exact (see `strategies.probe_limit`).
_PROBE_LIMIT = 4
# Far from the seeds of a run, so that cotangents are not the arrays once more.
_SEED = 500_000


class Grad(Interpreted):
    name = "grad"

    def lacks(self, case: Case, kernel: Kernel) -> str | None:
        if case.gradient is None:
            return f"case {case.name} has no gradient"
        return "finish cannot be differentiated" if kernel.finish is not None else None

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        arrays, places = _differentiable(call.arrays), positions(call, args)
        chosen = [place for n in arrays if (place := places[n]) is not None]
        if not chosen or len(chosen) < len(arrays):
            why = TypeError("an array is not among fn's arguments, or none has a derivative")
            raise _staging.PhaseError("prepare", why, Status.UNSUPPORTED)
        fn = self.jitted(call, "vjp", lambda: jit(_pullback(device_stage(call), chosen)))
        cotangents = _floats(make_cotangents(call.case, call.example))
        return _parts(arrays, *called(call, "vjp", fn, args, cotangents))

    def references(self, case: Case, example: Example) -> References:
        assert case.gradient is not None
        arrays, cotangents = make_arrays(case, example), make_cotangents(case, example)
        found = case.gradient(example.params, example.inputs, arrays, cotangents, INTERPRETED)
        gradients = {_gradient(n): _alone(found[n]) for n in _differentiable(arrays)}
        values = tuple(r for r in expected(case, example) if is_float(r.dtype))
        return {_VALUE: values, **gradients}

    def baseline(self, case: Case, example: Example) -> tuple[Use, ...]:
        arrays = make_arrays(case, example)
        chosen = _differentiable(arrays)
        fn = jit(_pullback(lambda *a: case.baseline(example.params, *a), chosen))
        return _parts(chosen, *fn(arrays, _floats(make_cotangents(case, example))))


def make_cotangents(case: Case, example: Example) -> Arrays:
    """One for each result, of its shape and dtype, as `Case.gradient` describes them."""
    rng = rng_of(example.seed + _SEED)
    return tuple(_cotangent(r, example.inputs, rng) for r in expected(case, example))


def _cotangent(result: Reference, inputs: str, rng: np.random.Generator) -> np.ndarray:
    shape = result.value.shape
    if not is_float(result.dtype):
        return np.zeros(shape, jax.dtypes.float0)
    if inputs in _PROBES:
        return integers(rng, shape, _PROBE_LIMIT).astype(result.dtype)
    return rng.standard_normal(shape).astype(np.float32).astype(result.dtype)


def _pullback(fn: Callable[..., Any], chosen: Sequence[int]) -> Callable[..., Any]:
    """(arguments, cotangents) -> (results, gradients of the chosen arguments); floats alone."""

    def pull(arguments: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def of_chosen(*given: Any) -> Any:
            everything = list(arguments)
            for place, value in zip(chosen, given, strict=True):
                everything[place] = value
            return _floats(jax.tree.leaves(fn(*everything)))

        results, vjp = jax.vjp(of_chosen, *(arguments[place] for place in chosen))
        return results, vjp(cotangents)

    return pull


def _floats(arrays: Sequence[Any]) -> list[Any]:
    return [a for a in arrays if is_float(np.dtype(a.dtype))]


def _differentiable(arrays: Arrays) -> list[int]:
    return [n for n, a in enumerate(arrays) if is_float(a.dtype)]


def _gradient(array: int) -> str:
    return f"gradient of array {array}"


def _alone(reference: Reference | None) -> tuple[Reference, ...] | None:
    return None if reference is None else (reference,)


def _parts(arrays: list[int], results: Any, gradients: Any) -> tuple[Use, ...]:
    values = tuple(np.asarray(r) for r in results)
    parts = [Use(name=_VALUE, values=values)]
    for array, gradient in zip(arrays, gradients, strict=True):
        parts.append(Use(name=_gradient(array), values=(np.asarray(gradient),)))
    return tuple(parts)


PROPERTY = Grad()
