"""Predicted times: functions compiled for a chip that is not here, and what their kernels are
steered by.

The numbers that steer a kernel (scalar prefetch, bounds of a dynamic grid) are part of what is
predicted, so they are followed through the traced function as far as they depend on integers that
are known. Runs in the process that may load libtpu (`conformance.compiler`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from conformance import compiler, schedule, sweep
from conformance.chips import Chip
from conformance.compiler import process
from conformance.modes import Call, _compiling, _staging, _timing
from conformance.timing import Part
from conformance.verdict import Failure

# Elements of an array that may steer; larger ones do not fit into scalar memory.
_STEERING = 1 << 18

Predicted = schedule.Prediction | schedule.Unpredicted


def compile_and_predict(
    fn: Callable[..., Any], arrays: Sequence[Any], chip: Chip
) -> tuple[compiler.Compiled, Predicted] | tuple[compiler.Refused, None]:
    """Compiles a function of arrays for a chip and predicts it.

    Args:
      arrays: integers as arrays, which may steer a kernel; of the rest shape and dtype count.
    """
    found, _ = _compiling.compiled(fn, arrays, chip.name)
    if isinstance(found, compiler.Refused):
        return found, None
    scalars = steering(fn, arrays, chip) if found.kernels else None
    return found, schedule.predict(found, chip, scalars)


# --------------------------------------------------------------------------- calls


def predict_call(call: Call, part: Part, chip: Chip, *, xla: bool = False) -> Predicted | Failure:
    """The predicted time of a kernel's call, or of XLA's own code for the same contract."""
    try:
        program = (_timing.baseline if xla else _timing.kernel)(call, part)
        leaves, tree = jax.tree.flatten(_arguments(program, call, part, chip))
    except _staging.PhaseError as e:
        return e.failure()
    found, predicted = compile_and_predict(
        lambda *flat: program.function(*jax.tree.unflatten(tree, flat)), leaves, chip
    )
    if isinstance(found, compiler.Refused):
        return _compiling.refusal(found)
    assert predicted is not None
    return predicted


def _arguments(program: _timing.Program, call: Call, part: Part, chip: Chip) -> tuple[Any, ...]:
    """Concrete, since integers may steer a kernel; but what the forward pass leaves for a pullback
    cannot be computed here, and has shapes only."""
    if part.name != "vjp" or not part.pulls_back:
        return program.operands(call)
    with process.abstract_mesh(chip):
        shapes: tuple[Any, ...] = jax.eval_shape(lambda: program.operands(call))
    return shapes


# --------------------------------------------------------------------------- configurations


class Evaluator:
    """Answers with the fields of a `sweep.Result`, and with the shapes of the arguments."""

    def __init__(self) -> None:
        self._shapes: dict[Any, tuple[Any, ...]] = {}

    def shapes(self, key: Any, make: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The arrays of a point; only their shapes where no kernel can be steered by them.

        Args:
          key: of the point, blocks left out.
          make: makes the arrays.
        """
        if key in self._shapes:
            return self._shapes[key]
        made = make()
        if any(_steers(a) for a in made):
            return made
        shapes = tuple(SimpleNamespace(shape=a.shape, dtype=a.dtype) for a in made)
        self._shapes = {key: shapes}
        return shapes

    def evaluate(self, call: Call, chip: Chip) -> dict[str, Any]:
        """Compiles and predicts one call."""
        known: dict[str, Any] = {
            "arguments": sweep.described(call.arrays),
            "options": _contract(call),
        }
        try:
            arrays = call.arrays if call.kernel.prepare is None else _staging.prepared(call)
        except _staging.PhaseError as e:
            why = f"{e.status.value}: prepare: {type(e.cause).__name__}: {e.cause}"
            return known | {"dropped": why}
        fn = functools.partial(call.kernel.fn, **call.options)
        found, predicted = compile_and_predict(fn, arrays, chip)
        if isinstance(found, compiler.Refused):
            return known | {"dropped": f"{found.kind}: {found.clause}"}
        assert predicted is not None
        known |= {"vmem": found.vmem_bytes, "spilled": found.spilled_bytes}
        if isinstance(predicted, schedule.Unpredicted):
            return known | {"dropped": f"not predicted: {predicted.reason}"}
        return known | {"seconds": predicted.seconds, "limits": predicted.limits}


def _contract(call: Call) -> dict[str, Any]:
    """Options that are not blocks: an activation's name, a slice's size."""
    return {n: v for n, v in call.options.items() if call.case.params[n].kind != "block"}


def _steers(array: Any) -> bool:
    integers = np.issubdtype(array.dtype, np.integer) and array.dtype.itemsize == 4
    return integers and array.size <= _STEERING


# --------------------------------------------------------------------------- what steers


def steering(
    fn: Callable[..., Any], arrays: Sequence[Any], chip: Chip
) -> Mapping[int, np.ndarray] | None:
    """Numbers that steer the one pallas_call of a function, by position among its operands.

    Args:
      arrays: integers as arrays; of the rest only shape and dtype count.

    None where nothing steers, where something cannot be told, and where there are several
    pallas_calls, whose operands a position does not tell apart.
    """
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    with process.abstract_mesh(chip):
        closed = jax.make_jaxpr(lambda *a: fn(*a))(*avals)
    values = [np.asarray(a) if _known(a) and _steers(a) else None for a in arrays]
    calls: list[dict[int, np.ndarray]] = []
    _follow(closed.jaxpr, closed.consts, values, calls)
    return calls[0] if len(calls) == 1 and calls[0] else None


def _known(array: Any) -> bool:
    return isinstance(array, (np.ndarray, jax.Array))


def _follow(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], calls: list[dict[int, np.ndarray]]
) -> list[Any]:
    """Known results of a jaxpr, None for the others; `calls` gets what each kernel is given."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values.get(variable)

    for equation in jaxpr.eqns:
        operands = [read(v) for v in equation.invars]
        if equation.primitive.name == "pallas_call":
            calls.append(_scalars(equation.params, operands))
            continue
        values.update(zip(equation.outvars, _results(equation, operands, calls), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _results(equation: Any, operands: list[Any], calls: list[dict[int, np.ndarray]]) -> list[Any]:
    inner = list(_staging.inner_jaxprs(equation))
    if len(inner) == 1 and len(inner[0].invars) == len(operands):
        return _follow(inner[0], _consts(equation), operands, calls)
    unknown = [None] * len(equation.outvars)
    small = all(np.prod(v.aval.shape) <= _STEERING for v in equation.outvars)
    if inner or not small or any(o is None for o in operands):
        return unknown
    results = equation.primitive.bind(*operands, **equation.params)
    return list(results) if equation.primitive.multiple_results else [results]


def _consts(equation: Any) -> Sequence[Any]:
    return next((v.consts for v in equation.params.values() if hasattr(v, "consts")), ())


def _scalars(pallas_call: Mapping[str, Any], operands: list[Any]) -> dict[int, np.ndarray]:
    count = sum(_staging.steering(pallas_call))
    return {n: np.asarray(v) for n, v in enumerate(operands[:count]) if v is not None}
