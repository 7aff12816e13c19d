"""Single operations of Mosaic as functions, and equality: what the tests of the executor share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conformance.emulator import Conditions
from conformance.emulator.grid import Core
from conformance.emulator.ops import NEEDS_CORE, Op, load_all
from conformance.emulator.types import parse

POISON = (0xDEADBEEF,)


def function(
    name: str, operands: Sequence[str], results: Sequence[str], **attributes: str
) -> Callable[..., Any]:
    """What an operation on these types does, as a function of its operands."""
    types = tuple(parse(t) for t in operands), tuple(parse(t) for t in results)
    built = load_all()[name](Op(name, *types, attributes))
    core = Core((), Conditions(poison=POISON))
    return functools.partial(built, core) if name in NEEDS_CORE else built


def assert_same(got: Any, want: Any) -> None:
    """Equal bits, any NaN being as good as another."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if "int" in got.dtype.name or got.dtype == np.bool_:
        np.testing.assert_array_equal(got.astype(np.int64), want.astype(np.int64))
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
