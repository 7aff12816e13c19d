"""A function's predicted time, with concrete arguments: compiled for a chip that is not here.

Runs in the process that may load libtpu (`conformance.compiler`). The integers that steer a kernel,
its scalar-prefetch operands, are found in the trace and computed here from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance import compiler, schedule
from conformance.chips import Chip
from conformance.compiler import process
from conformance.modes import _compiling, _jaxprs, _staging


def predict(
    fn: Callable[..., Any], arguments: Sequence[Any], chip: Chip
) -> schedule.Prediction | schedule.Unpredicted | compiler.Refused:
    """The predicted time of `fn(*arguments)` on a chip, or why there is none.

    Args:
      fn: of arrays alone; options are bound.
      arguments: concrete where integers steer a kernel; elsewhere shapes and dtypes do.
    """
    found, _ = _compiling.compiled(fn, arguments, chip.name)
    if isinstance(found, compiler.Refused):
        return found
    scalars = steering(fn, arguments, chip) if found.kernels else {}
    return schedule.predict(found, chip, scalars)


def steering(fn: Callable[..., Any], arguments: Sequence[Any], chip: Chip) -> dict[int, np.ndarray]:
    """What steers the first pallas_call of `fn`, by position among its operands.

    Bounds of a dynamic grid and scalar prefetch are integers, and decide which blocks a kernel
    loads and which regions it runs.
    """
    with process.abstract_mesh(chip):
        traced = _staging.trace_function(fn, tuple(arguments))
    if not traced.pallas_calls or not sum(_staging.steering(traced.pallas_calls[0])):
        return {}
    operands = _operands(traced, arguments)
    return {n: np.asarray(operand) for n, operand in enumerate(operands)}


class _Found(Exception):
    """The operands of the first pallas_call: what comes after it is not of interest."""

    def __init__(self, operands: Sequence[Any]) -> None:
        super().__init__()
        self.operands = operands


def _operands(traced: _staging.Traced, arguments: Sequence[Any]) -> Sequence[Any]:
    """The steering operands; `fn` may compute them before the call."""

    def stop(params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
        raise _Found(operands[: sum(_staging.steering(params))])

    try:
        _jaxprs.evaluate(traced.stage.jaxpr, arguments, stop)
    except _Found as found:
        return found.operands
    return ()
