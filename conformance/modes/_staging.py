"""From a call to a compiled XLA program and its results, phase by phase.

Shared by the modes that execute a kernel through `jax.jit`. What the kernel raises becomes a
Failure that names the phase.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src.state.types import WriteEffect

from conformance.modes import Call
from conformance.verdict import Failure, Outcome, Status

Context = Callable[[], AbstractContextManager[Any]]


class PhaseError(Exception):
    """Something the kernel raised, with the phase it happened in."""

    def __init__(self, phase: str, cause: BaseException, status: Status = Status.REJECTED) -> None:
        super().__init__(str(cause))
        self.phase = phase
        self.cause = cause
        self.status = status
        self.part = ""

    def failure(self, status: Status | None = None) -> Failure:
        """The failure that the judge sees; messages are kept whole."""
        name = type(self.cause).__name__
        return Failure(
            status=status or self.status,
            phase=self.phase,
            error=name,
            message=str(self.cause),
            part=self.part,
        )


def in_phase(phase: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls code of the kernel; PhaseError for anything it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as e:
        raise PhaseError(phase, e) from e


@contextmanager
def part(name: str) -> Iterator[None]:
    """Whatever fails inside belongs to this part of what a property tries."""
    try:
        yield
    except PhaseError as e:
        e.part = name
        raise


def prepared(call: Call) -> tuple[jax.Array, ...]:
    """`fn`'s arguments on the device, after the host stage."""
    if call.kernel.prepare is None:
        return _on_device(call.arrays)
    arrays = in_phase("prepare", call.kernel.prepare, *call.arrays, **call.options)
    if not isinstance(arrays, (tuple, list)):
        got = type(arrays).__name__
        raise PhaseError("prepare", TypeError(f"prepare must return a tuple of arrays, got {got}"))
    return in_phase("prepare", _on_device, arrays)


def _on_device(arrays: Iterable[Any]) -> tuple[jax.Array, ...]:
    return tuple(jax.numpy.asarray(a) for a in arrays)


@dataclass(frozen=True)
class Traced:
    """A kernel traced for some shapes.

    Attributes:
      stage: `jax.stages.Traced`.
      pallas_calls: parameters of every pallas_call equation, in order.
      prefetched: for the first call, the position among `fn`'s arguments of each
        scalar-prefetch operand; None when one is computed on the way.
    """

    stage: Any
    pallas_calls: tuple[dict[str, Any], ...]
    prefetched: tuple[int, ...] | None

    @property
    def parallel(self) -> bool:
        """Whether any grid axis of any call is `parallel`."""
        return any("parallel" in _semantics(c) for c in self.pallas_calls)


def _semantics(pallas_call: dict[str, Any]) -> tuple[str, ...]:
    params = pallas_call["compiler_params"]
    semantics = getattr(params, "dimension_semantics", None) or ()
    return tuple(str(getattr(s, "value", s)).lower() for s in semantics)


def trace(call: Call, args: tuple[Any, ...]) -> Traced:
    """Traces `fn`; a PhaseError of phase "trace" when it raises."""
    return trace_function(functools.partial(call.kernel.fn, **call.options), args)


def trace_function(fn: Callable[..., Any], args: tuple[Any, ...]) -> Traced:
    """Traces a function of arrays alone; a PhaseError of phase "trace" when it raises."""
    stage = in_phase("trace", jax.jit(lambda *a: fn(*a)).trace, *args)
    calls = tuple(_pallas_calls(stage.jaxpr.jaxpr))
    params = tuple(equation.params for equation in calls)
    prefetched = _prefetched(stage.jaxpr.jaxpr, calls[0]) if calls else None
    return Traced(stage, params, prefetched)


def _prefetched(jaxpr: Any, call: Any) -> tuple[int, ...] | None:
    bounds, scalars = steering(call.params)
    operands = call.invars[bounds : bounds + scalars]
    arguments = {variable: n for n, variable in enumerate(jaxpr.invars)}
    positions = [None if hasattr(v, "val") else arguments.get(v) for v in operands]  # no literals
    return None if None in positions else tuple(p for p in positions if p is not None)


def steering(pallas_call: Mapping[str, Any]) -> tuple[int, int]:
    """How many of the first operands of a call are bounds of its grid, and how many of the next
    are prefetched scalars: integers that steer it."""
    grid = pallas_call["grid_mapping"]
    return grid.num_dynamic_grid_bounds, grid.num_index_operands


def require_interpreted(traced: Traced) -> None:
    """PhaseError when a call was built outside `fn` and so ignores the interpreter's context."""
    if any(not c["interpret"] for c in traced.pallas_calls):
        raise PhaseError(
            "trace",
            TypeError(
                "a pallas_call was built before fn ran (at import time?) and ignores the "
                "interpreter: call pl.pallas_call inside fn"
            ),
        )


def require_inputs_unwritten(traced: Traced) -> None:
    """PhaseError for a kernel that writes to an operand in HBM which no output aliases.

    On a TPU that changes the caller's array; the interpreters work on a copy and do not notice.
    """
    for call in traced.pallas_calls:
        grid = call["grid_mapping"]
        aliased = {number for number, _ in call["input_output_aliases"]}
        effects = [e for e in call["jaxpr"].effects if isinstance(e, WriteEffect)]
        written = [e.input for e in effects]
        for number in range(grid.num_inputs):
            operand = number + grid.num_index_operands
            space = str(grid.block_mappings[number].block_aval.memory_space)
            if space not in ("any", "hbm") or operand in aliased:
                continue
            if call["jaxpr"].invars[operand] in written:
                why = f"the kernel writes to its input {number}, which no output aliases"
                raise PhaseError("trace", TypeError(why), Status.WRONG)


def _pallas_calls(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for inner in inner_jaxprs(equation):
            yield from _pallas_calls(inner)


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner


class Programs:
    """Compiled programs by call key; the oldest go first, with JAX's own caches."""

    def __init__(self, capacity: int = 16) -> None:
        self._capacity = capacity
        self._programs: dict[Any, Any] = {}

    def get(self, key: Any, build: Callable[[], Any]) -> Any:
        """The program of `key`, built when it is not there."""
        if key not in self._programs:
            if len(self._programs) >= self._capacity:
                self._programs.clear()
                jax.clear_caches()
            self._programs[key] = build()
        return self._programs[key]


def compile_traced(traced: Traced) -> Any:
    """Lowers and compiles for the default backend."""
    lowered = in_phase("lower", traced.stage.lower)
    return in_phase("compile", lowered.compile)


def execute(call: Call, program: Any, args: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Runs a program and the host stage after it; results as NumPy arrays."""
    return finished(call, in_phase("run", lambda: jax.block_until_ready(program(*args))))


def finished(call: Call, result: Any) -> tuple[np.ndarray, ...]:
    """What `fn` returned, after the host stage, as NumPy arrays."""
    if call.kernel.finish is not None:
        result = in_phase("finish", call.kernel.finish, result)
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(result))


def failed(failure: Failure) -> Outcome:
    """An outcome without values."""
    return Outcome(failure=failure)
