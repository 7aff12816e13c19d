"""Property `donation`: results are right when arguments are donated; otherwise nobody writes to
them, and nobody gives them away.

An output that aliases an input is written into the caller's array where that is donated, and
into a copy where it is not. A function that donates by itself (`jax.jit` with `donate_argnums`
inside `fn`) deletes the caller's array as soon as it is called without an outer `jit`.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from conformance.case import Case, Example
from conformance.modes import Call, _staging
from conformance.properties import References
from conformance.properties._interpreted import (
    Broken,
    Interpreted,
    called,
    device_stage,
    expected,
    jit,
)
from conformance.verdict import Use

_EAGER = "called without jit"
_KEPT = "jitted, nothing donated"
_DONATED = "jitted, all arguments donated"


class Donation(Interpreted):
    name = "donation"
    data = False

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        fn = device_stage(call)
        kept = self.jitted(call, _KEPT, lambda: jit(fn))
        everything = tuple(range(len(args)))
        donated = self.jitted(call, _DONATED, lambda: jit(fn, donate_argnums=everything))
        return (
            _with_arguments_unchanged(call, _EAGER, fn, args),
            _with_arguments_unchanged(call, _KEPT, kept, args),
            _part(call, _DONATED, donated, _copies(args)),
        )

    def references(self, case: Case, example: Example) -> References:
        return dict.fromkeys((_EAGER, _KEPT, _DONATED), expected(case, example))


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(jax.numpy.array(a, copy=True) for a in args)


def _part(call: Call, name: str, fn: Any, args: tuple[Any, ...]) -> Use:
    with warnings.catch_warnings():
        # An argument that no result resembles cannot be made use of; that is no fault.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        result = called(call, name, fn, *args)
    with _staging.part(name):
        return Use(name=name, values=_staging.finished(call, result))


def _with_arguments_unchanged(call: Call, name: str, fn: Any, args: tuple[Any, ...]) -> Use:
    own = _copies(args)
    before = [np.array(a, copy=True) for a in own]
    found = _part(call, name, fn, own)
    for number, (array, old) in enumerate(zip(own, before, strict=True)):
        if array.is_deleted():
            raise Broken(f"fn donated its argument {number}, which is deleted now", name)
        if np.asarray(array).tobytes() != old.tobytes():
            raise Broken(f"fn wrote to its argument {number}, which is not donated", name)
    return found


PROPERTY = Donation()
