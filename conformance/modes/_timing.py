"""Programs to be timed: a kernel, the parts of its gradient, and XLA's own code for the same.

What is timed is the function alone, compiled once. Operands are on the device before, in the
layout in which the contract has them; `prepare` and `finish` run outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from conformance.modes import Call, _staging
from conformance.timing import WHOLE, Clock, ClockError, Part, Sample, cotangents

Function = Callable[..., Any]
Values = tuple[np.ndarray, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function and where its arguments come from.

    Attributes:
      function: what is timed.
      operands: its arguments, on the device, for a call of the same kernel and shapes.
      finish: host stage for its results.
    """

    function: Function
    operands: Callable[[Call], tuple[Any, ...]]
    finish: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A program and what it was compiled to."""

    program: Program
    compiled: Any

    def warm_up(self, call: Call) -> None:
        """One call that is not timed."""
        operands = self.program.operands(call)
        _staging.in_phase("run", lambda: jax.block_until_ready(self.compiled(*operands)))

    def sample(self, call: Call, clock: Clock) -> tuple[Sample, Values]:
        """One timed call and its values, as the contract has them."""
        operands = jax.block_until_ready(self.program.operands(call))
        sample = _staging.in_phase("run", _unless_the_clock, clock, self.compiled, operands)
        if isinstance(sample, ClockError):
            raise sample
        results = sample.results
        if self.program.finish is not None:
            results = _staging.in_phase("finish", self.program.finish, results)
        return sample, tuple(np.asarray(leaf) for leaf in jax.tree.leaves(results))


def _unless_the_clock(clock: Clock, program: Any, operands: tuple[Any, ...]) -> Any:
    """A sample, or the clock's error, which is not the kernel's."""
    try:
        return clock.sample(program, operands)
    except ClockError as e:
        return e


def samples(
    calls: Iterable[Call], part: Part, clock: Clock, xla: bool
) -> Iterator[tuple[Sample, Values]]:
    """Times and values of all calls but the first, which warms up; of equal shapes.

    Raises:
      ClockError: no device time can be told.
      PhaseError: the kernel, or XLA, did not compile or run.
    """
    timed = None
    for call in calls:
        if timed is None:
            timed = _compiled(baseline(call, part) if xla else kernel(call, part), call)
            timed.warm_up(call)
        else:
            yield timed.sample(call, clock)


def _compiled(program: Program, call: Call) -> Timed:
    traced = _staging.trace_function(program.function, program.operands(call))
    return Timed(program=program, compiled=_staging.compile_traced(traced))


def kernel(call: Call, part: Part) -> Program:
    """The program of a kernel."""
    function = functools.partial(call.kernel.fn, **call.options)
    finish = call.kernel.finish if part == WHOLE else None
    return _part(function, part, _staging.prepared, finish)


def baseline(call: Call, part: Part) -> Program:
    """XLA's own code for the case, at the precision that XLA uses when it is not told any.

    The case's baseline asks for HIGHEST, which multiplies float32 operands in six passes; kernels
    take one. For bfloat16 operands the two are the same.
    """
    arrays = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in call.arrays)
    traced = jax.jit(functools.partial(call.case.baseline, call.example.params)).trace(*arrays)
    closed = traced.jaxpr
    relaxed = jaxpr_as_fun(ClosedJaxpr(at_default_precision(closed.jaxpr), closed.consts))
    return _part(relaxed, part, _on_device)


def _on_device(call: Call) -> tuple[Any, ...]:
    return tuple(jax.numpy.asarray(a) for a in call.arrays)


def at_default_precision(jaxpr: Any) -> Any:
    """A jaxpr whose products ask for no precision."""
    equations = []
    for equation in jaxpr.eqns:
        params = {name: _relaxed(name, value) for name, value in equation.params.items()}
        equations.append(equation.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _relaxed(name: str, value: Any) -> Any:
    if name == "precision":
        return None
    if isinstance(value, (tuple, list)):
        return type(value)(_relaxed("", v) for v in value) if _holds_jaxprs(value) else value
    if hasattr(value, "jaxpr") and hasattr(value, "consts"):
        return ClosedJaxpr(at_default_precision(value.jaxpr), value.consts)
    return at_default_precision(value) if hasattr(value, "eqns") else value


def _holds_jaxprs(values: Sequence[Any]) -> bool:
    return any(hasattr(getattr(v, "jaxpr", v), "eqns") for v in values)


# --------------------------------------------------------------------------- parts


def _part(
    function: Function,
    part: Part,
    arrays: Callable[[Call], tuple[Any, ...]],
    finish: Callable[[Any], Any] | None = None,
) -> Program:
    if not part.pulls_back:
        selected = _selected(function, part.results)
        return Program(function=selected, operands=arrays, finish=finish)
    if part.name == "vjp":
        return Program(function=_pull_back, operands=_residuals(function, arrays))
    both = functools.partial(_both, function)
    return Program(function=both, operands=_with_cotangents(function, arrays))


def _selected(function: Function, results: tuple[int, ...]) -> Function:
    """The function, or some of its results; XLA drops what only the others need."""
    if not results:
        return function
    return lambda *a: tuple(jax.tree.leaves(function(*a))[n] for n in results)


def _pull_back(pullback: Any, cotangents: Any) -> Any:
    return pullback(cotangents)


def _both(function: Function, arrays: tuple[Any, ...], cotangents: Any) -> Any:
    results, pullback = jax.vjp(function, *arrays)
    return results, pullback(cotangents)


def _residuals(function: Function, arrays: Function) -> Callable[[Call], tuple[Any, ...]]:
    """The pullback with all that the forward pass left for it, which is thereby not timed."""

    @jax.jit
    def forward(*operands: Any) -> Any:
        return jax.vjp(function, *operands)

    def operands(call: Call) -> tuple[Any, ...]:
        given = arrays(call)
        _, pullback = _staging.in_phase("trace", forward, *given)
        return pullback, _drawn(function, given, call.example.seed)

    return operands


def _with_cotangents(function: Function, arrays: Function) -> Callable[[Call], tuple[Any, ...]]:
    def operands(call: Call) -> tuple[Any, ...]:
        given = arrays(call)
        return given, _drawn(function, given, call.example.seed)

    return operands


def _drawn(function: Function, arrays: tuple[Any, ...], seed: int) -> Any:
    """Cotangents of a function's results, on the device."""
    shapes = _staging.in_phase("trace", jax.eval_shape, function, *arrays)
    leaves, tree = jax.tree.flatten(shapes)
    drawn = cotangents([(leaf.shape, leaf.dtype) for leaf in leaves], seed)
    return jax.tree.unflatten(tree, [jax.numpy.asarray(a) for a in drawn])
