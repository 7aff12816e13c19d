"""A function's predicted time, with concrete arguments: compiled for a chip that is not here.

Runs in the process that may load libtpu (`conformance.compiler`). The integers that steer a kernel,
its scalar-prefetch operands, are found in the trace and computed here from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from conformance import compiler, schedule
from conformance.chips import Chip
from conformance.compiler import process
from conformance.modes import Call, _compiling, _jaxprs, _staging, _timing
from conformance.timing import Part
from conformance.verdict import Failure


def predict_call(
    call: Call, part: Part, chip: Chip, *, xla: bool = False
) -> schedule.Prediction | schedule.Unpredicted | Failure:
    """The predicted time of a kernel's call, or of XLA's own code for the same contract."""
    try:
        program = (_timing.baseline if xla else _timing.kernel)(call, part)
        leaves, tree = jax.tree.flatten(_arguments(program, call, part, chip))
    except _staging.PhaseError as e:
        return e.failure()
    found = predict(lambda *flat: program.function(*jax.tree.unflatten(tree, flat)), leaves, chip)
    return _compiling.refusal(found) if isinstance(found, compiler.Refused) else found


def _arguments(program: _timing.Program, call: Call, part: Part, chip: Chip) -> tuple[Any, ...]:
    """Concrete, since integers may steer a kernel; but what the forward pass leaves for a pullback
    cannot be computed here, and has shapes only."""
    if part.name != "vjp" or not part.pulls_back:
        return program.operands(call)
    with process.abstract_mesh(chip):
        shapes: tuple[Any, ...] = jax.eval_shape(lambda: program.operands(call))
    return shapes


def predict(
    fn: Callable[..., Any], arguments: Sequence[Any], chip: Chip
) -> schedule.Prediction | schedule.Unpredicted | compiler.Refused:
    """The predicted time of `fn(*arguments)` on a chip, or why there is none.

    Args:
      fn: of arrays alone; options are bound.
      arguments: concrete where integers steer a kernel; elsewhere shapes and dtypes will do.
    """
    found, _ = _compiling.compiled(fn, arguments, chip.name)
    if isinstance(found, compiler.Refused):
        return found
    scalars = steering(fn, arguments, chip) if found.kernels else {}
    return schedule.predict(found, chip, scalars)


def steering(fn: Callable[..., Any], arguments: Sequence[Any], chip: Chip) -> dict[int, np.ndarray]:
    """What steers the first pallas_call of `fn`, by position among its operands.

    Bounds of a dynamic grid and scalar prefetch are integers, and decide which blocks a kernel
    loads and which regions it runs. Nothing is known of them when only shapes are given.
    """
    with process.abstract_mesh(chip):
        traced = _staging.trace_function(fn, tuple(arguments))
    if not traced.pallas_calls or not sum(_staging.steering(traced.pallas_calls[0])):
        return {}
    if any(isinstance(a, jax.ShapeDtypeStruct) for a in arguments):
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
