"""Evaluating a traced function on this machine, with its pallas_calls left to somebody else."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from conformance.modes._staging import in_phase, inner_jaxprs

# (parameters of the equation, operands) -> results
PallasCall = Callable[[dict[str, Any], Sequence[Any]], Sequence[Any]]

# Kernels of other entry points (`pl.kernel`), which are not executed yet.
_OTHER_KERNELS = ("core_map", "mpmd_map")

# Primitives that only call their one jaxpr.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")


class NotEvaluated(Exception):
    """A primitive that cannot be run here around a kernel; the message names it."""


def evaluate(closed: Any, arguments: Sequence[Any], pallas_call: PallasCall) -> list[Any]:
    """The results of a closed jaxpr. XLA runs all equations but the pallas_calls."""
    return _evaluate(closed.jaxpr, closed.consts, arguments, pallas_call)


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], pallas_call: PallasCall
) -> list[Any]:
    values: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for step in _steps(jaxpr):
        operands = [read(v) for v in step.operands]
        if step.program is not None:
            results = in_phase("run", step.program, *operands)
        else:
            results = _with_kernel(step.equation, operands, pallas_call)
        values.update(zip(step.results, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


@dataclass(frozen=True)
class _Step:
    """A run of equations that XLA compiles together, or one equation that holds a kernel."""

    operands: Sequence[Any]
    results: Sequence[Any]
    program: Callable[..., Sequence[Any]] | None = None
    equation: Any = None


@functools.lru_cache(maxsize=64)
def _steps(jaxpr: Any) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for kernels, run in itertools.groupby(jaxpr.eqns, _holds_kernel):
        equations = list(run)
        if kernels:
            steps += [_Step(e.invars, e.outvars, equation=e) for e in equations]
        else:
            steps.append(_compiled(jaxpr, equations))
    return tuple(steps)


def _compiled(jaxpr: Any, equations: list[Any]) -> _Step:
    made = {v for e in equations for v in e.outvars}
    used = [v for e in equations for v in e.invars if not hasattr(v, "val") and v not in made]
    operands = list(dict.fromkeys(used))
    results = [v for v in made if type(v).__name__ != "DropVar"]
    part = jaxpr.replace(
        constvars=[],
        invars=operands,
        outvars=results,
        eqns=equations,
        effects=frozenset(),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return _Step(operands, results, program=_program(_Text(str(part), ClosedJaxpr(part, []))))


@dataclass(frozen=True)
class _Text:
    """A jaxpr that is equal to others of the same text; they differ in nothing else."""

    text: str
    jaxpr: Any = field(compare=False)


@functools.lru_cache(maxsize=256)
def _program(part: _Text) -> Callable[..., Sequence[Any]]:
    """XLA's program, compiled once for all chips, and quickly: it runs a few times."""
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(jaxpr_as_fun(part.jaxpr), compiler_options=options)


def _with_kernel(equation: Any, operands: list[Any], pallas_call: PallasCall) -> Sequence[Any]:
    name = equation.primitive.name
    if name == "pallas_call":
        return pallas_call(equation.params, operands)
    if name in _OTHER_KERNELS:
        raise NotEvaluated(f"{name}, a kernel that is not a pallas_call")
    if name in _CONTROL:
        return _CONTROL[name](equation.params, operands, pallas_call)
    for key in _CALLS:
        if key in equation.params:
            inner = equation.params[key]
            consts = getattr(inner, "consts", ())
            return _evaluate(getattr(inner, "jaxpr", inner), consts, operands, pallas_call)
    raise NotEvaluated(f"{name} around a pallas_call")


def _holds_kernel(equation: Any) -> bool:
    return equation.primitive.name in ("pallas_call", *_OTHER_KERNELS) or any(
        _holds_kernel(e) for inner in inner_jaxprs(equation) for e in inner.eqns
    )


def _cond(params: dict[str, Any], operands: list[Any], pallas_call: PallasCall) -> list[Any]:
    branches = params["branches"]
    chosen = min(max(int(operands[0]), 0), len(branches) - 1)
    return evaluate(branches[chosen], operands[1:], pallas_call)


def _while(params: dict[str, Any], operands: list[Any], pallas_call: PallasCall) -> list[Any]:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test, body = operands[:tests], operands[tests : tests + bodies]
    carry = operands[tests + bodies :]
    while bool(evaluate(params["cond_jaxpr"], [*test, *carry], pallas_call)[0]):
        carry = evaluate(params["body_jaxpr"], [*body, *carry], pallas_call)
    return carry


def _scan(params: dict[str, Any], operands: list[Any], pallas_call: PallasCall) -> list[Any]:
    (consts, carries), length = _scan_counts(params), params["length"]
    fixed, carry = operands[:consts], operands[consts : consts + carries]
    sequences = operands[consts + carries :]
    collected: dict[int, list[Any]] = {}
    order = range(length)
    for step in reversed(order) if params["reverse"] else order:
        inputs = [*fixed, *carry, *(s[step] for s in sequences)]
        results = evaluate(params["jaxpr"], inputs, pallas_call)
        carry, collected[step] = results[:carries], results[carries:]
    if not length:
        empty = params["jaxpr"].out_avals[carries:]
        return [*carry, *(jax.numpy.zeros((0, *a.shape), a.dtype) for a in empty)]
    stacked = [jax.numpy.stack(c) for c in zip(*(collected[n] for n in order), strict=True)]
    return [*carry, *stacked]


def _scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands are constants, and how many are carried; JAX 0.12 keeps them in a tree."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carries))


_CONTROL: dict[str, Callable[[dict[str, Any], list[Any], PallasCall], list[Any]]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
