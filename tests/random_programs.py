"""Random Pallas programs: a kernel of one to four operations, executed as compiler IR for a chip.

python tests/random_programs.py [--count N] [--seed S] [--chip CHIP] [--replay JSON]

Every program is compared with the HLO interpreter, as those of tests/programs are. Floats hold
integers that stay exact, so that any order of summation gives the same bits; only a function such
as `exp` makes a result inexact, and after one nothing but data movement is drawn.

A program is described by a `Plan`, which is drawn by hypothesis and printed as JSON. Programs that
the compiler refuses are counted. What disagrees is made smaller before it is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance.strategies import rng_of
from tests.ir_mutants import in_compiling_process
from tests.programs import Program
from tests.programs._build import (
    BF16_FUNCTION,
    DTYPES,
    F32_FUNCTION,
    FLOATS,
    UNSIGNED,
    integers,
    limits,
)

_BYTES = 1024  # for each draw, more than any plan uses
_MOST = 2**16  # elements of a value
_LONGEST = 1024  # of a dimension
# A program that neither compiles nor runs in this time ends its process.
SECONDS = 60
# Largest integer up to which a float type holds all of them.
_EXACT = {"f32": 2**24, "bf16": 2**8}


class IllegalStep(ValueError):
    """A step that cannot follow what comes before it."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What is known of a value: its type, the integers it lies between, and whether it is exact."""

    shape: tuple[int, ...]
    dtype: str
    low: int
    high: int
    exact: bool = True

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def rank(self) -> int:
        return len(self.shape)


Step = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A program: lists and numbers only, so that JSON can hold it.

    Attributes:
      inputs: for each, shape, dtype, and the least and greatest integer in it.
      rows: of a grid's row blocks; 0 without a grid.
      ragged: the last block is not whole; then only steps within rows are legal.
      load: for each dimension of the first input, (start, size, stride); None: all of it.
      steps: names and parameters of operations.
      loop: how often a loop does them; 0: once, without a loop.
      store: for each dimension of the result, how much of it lies before and after what is
        stored; None: the result is what is stored.
    """

    inputs: tuple[tuple[tuple[int, ...], str, int, int], ...]
    rows: int = 0
    ragged: bool = False
    load: tuple[tuple[int, int, int], ...] | None = None
    steps: tuple[Step, ...] = ()
    loop: int = 0
    store: tuple[tuple[int, int], ...] | None = None

    def text(self) -> str:
        """JSON without what is as usual."""
        fields = dataclasses.asdict(self)
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        return json.dumps({k: v for k, v in fields.items() if v != usual[k]})


def parsed(text: str) -> Plan:
    """The plan of a text."""
    return Plan(**{name: _frozen(value) for name, value in json.loads(text).items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


# --------------------------------------------------------------------------- operations


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One kind of step.

    Attributes:
      params: strategy of its parameters for a state.
      apply: (value, other operands, *parameters) -> value.
      interval: (state, other states, *parameters) -> least and greatest integer of the result.
      moves: changes no number, so that it may follow what is inexact.
      within_rows: its rows depend on the same rows only; "axis": unless its axis is 0.
    """

    params: Callable[[State], st.SearchStrategy[tuple[Any, ...]]]
    apply: Callable[..., Any]
    interval: Callable[..., tuple[int, int]]
    moves: bool = False
    within_rows: bool | str = True


Interval = tuple[int, int]


def _spanned(*ends: int) -> Interval:
    return min(ends), max(ends)


_BINARY: dict[str, tuple[Callable[..., Any], Callable[[State, State], Interval]]] = {
    "add": (jnp.add, lambda a, b: (a.low + b.low, a.high + b.high)),
    "sub": (jnp.subtract, lambda a, b: (a.low - b.high, a.high - b.low)),
    "mul": (
        jnp.multiply,
        lambda a, b: _spanned(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high),
    ),
    "max": (jnp.maximum, lambda a, b: (max(a.low, b.low), max(a.high, b.high))),
    "min": (jnp.minimum, lambda a, b: (min(a.low, b.low), min(a.high, b.high))),
    "and": (jnp.bitwise_and, lambda a, b: _bits(a)),
    "or": (jnp.bitwise_or, lambda a, b: _bits(a)),
    "xor": (jnp.bitwise_xor, lambda a, b: _bits(a)),
}
_UNARY: dict[str, tuple[Callable[..., Any], Callable[[State], Interval]]] = {
    "abs": (jnp.abs, lambda a: (0, max(-a.low, a.high))),
    "square": (jnp.square, lambda a: (0, max(a.low**2, a.high**2))),
    "relu": (lambda x: jnp.maximum(x, jnp.zeros_like(x)), lambda a: (0, max(a.high, 0))),
    "sign": (jnp.sign, lambda a: (-1, 1)),
    "not": (jnp.invert, lambda a: _bits(a)),
    # JAX lowers the negation of a float to 0 - x, which is +0 for x = 0: integers only.
    "negative": (lambda x: -_whole(x), lambda a: (-a.high, -a.low)),
    "floor": (lambda x: jnp.floor(x), lambda a: _of_float(a)),
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
}
_REDUCE: dict[str, tuple[Callable[..., Any], Callable[[State, int], Interval]]] = {
    "sum": (jnp.sum, lambda a, n: (min(a.low * n, a.low), max(a.high * n, a.high))),
    "max": (jnp.max, lambda a, n: (a.low, a.high)),
    "min": (jnp.min, lambda a, n: (a.low, a.high)),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": lambda x: jnp.exp(-jnp.abs(x)),
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "reciprocal": lambda x: 1.0 / (jnp.abs(x) + 1.0),
    "log1p": lambda x: jnp.log(jnp.abs(x) + 1.0),
}


def _bits(of: State) -> Interval:
    if of.is_float:
        raise IllegalStep("bits of a float")
    return limits(of.dtype)


def _whole(x: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise IllegalStep("negation of a float")
    return x


def _of_float(of: State) -> Interval:
    if not of.is_float:
        raise IllegalStep("rounding of an integer")
    return of.low, of.high


def _filled(x: Any, number: int) -> Any:
    return jnp.full(x.shape, number, x.dtype)


def _like(of: State, number: int) -> State:
    return dataclasses.replace(of, low=number, high=number)


def _axis(of: State) -> st.SearchStrategy[int]:
    return st.integers(0, of.rank - 1)


def _with_axis(
    inner: Callable[[State, int], st.SearchStrategy[tuple[Any, ...]]],
) -> Callable[[State], st.SearchStrategy[tuple[Any, ...]]]:
    """Parameters that begin with an axis and depend on it."""

    def params(of: State) -> st.SearchStrategy[tuple[Any, ...]]:
        return _axis(of).flatmap(lambda a: inner(of, a).map(lambda rest: (a, *rest)))

    return params


def _names(table: Any) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(table))


def _small(of: State) -> st.SearchStrategy[int]:
    return st.integers(0 if of.dtype in UNSIGNED else -5, 5)


def _same(of: State, others: Any, *_: Any) -> Interval:
    return of.low, of.high


def _with_zero(of: State, others: Any, *_: Any) -> Interval:
    return min(of.low, 0), max(of.high, 0)


def _other(of: State, others: Sequence[State], which: int) -> State:
    """Another operand that broadcasts to the value: 0 the first input, 1 the second."""
    if which >= len(others) or others[which].dtype != of.dtype:
        raise IllegalStep("no such operand")
    other = others[which]
    pairs = zip(other.shape, of.shape, strict=False)
    if other.rank != of.rank or any(n not in (1, m) for n, m in pairs):
        raise IllegalStep("an operand of another shape")
    return other


def _binary(x: Any, others: Any, kind: str, which: int) -> Any:
    return _BINARY[kind][0](x, others[which])


def _selected(x: Any, others: Any, kind: str, which: int, number: int) -> Any:
    """Compares with another operand and takes a number where that fails."""
    return jnp.where(_COMPARE[kind](x, others[which]), x, _filled(x, number))


def _masked(x: Any, others: Any, axis: int, kind: str, bound: int, number: int) -> Any:
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(_COMPARE[kind](index, bound), x, _filled(x, number))


def _joined(of: State, other: State) -> Interval:
    return min(of.low, other.low), max(of.high, other.high)


def _cast(of: State, others: Any, dtype: str) -> Interval:
    """Floats that fit; integers wrap into integers."""
    if dtype == of.dtype:
        raise IllegalStep("no cast")
    if dtype in FLOATS:
        return of.low, of.high
    low, high = limits(dtype)
    if low <= of.low and of.high <= high:
        return of.low, of.high
    if of.is_float:
        raise IllegalStep("a float out of an integer's range")
    return low, high


def _reduced(of: State, others: Any, axis: int, kind: str) -> Interval:
    return _REDUCE[kind][1](of, of.shape[axis])


def _less_reduction(of: State, others: Any, axis: int, kind: str) -> Interval:
    low, high = _reduced(of, others, axis, kind)
    return of.low - high, of.high - low


def _sliced(x: Any, others: Any, axis: int, start: int, size: int, stride: int) -> Any:
    box = [slice(None)] * x.ndim
    box[axis] = slice(start, start + (size - 1) * stride + 1, stride)
    return x[tuple(box)]


def _slices(of: State, axis: int) -> st.SearchStrategy[tuple[int, int, int]]:
    length = of.shape[axis]

    def sized(start: int) -> st.SearchStrategy[tuple[int, int, int]]:
        left = length - start
        sizes = sorted({1, left, *(n for n in (7, 8, 16, 128) if n <= left)})
        plain = st.sampled_from(sizes).map(lambda size: (start, size, 1))
        return plain if left < 4 else plain | st.just((start, left // 2, 2))

    starts = sorted({0, *(n for n in (1, 5, 8, 16, 100, 128) if n < length)})
    return st.sampled_from(starts).flatmap(sized)


def _concatenated(x: Any, others: Any, axis: int, what: int) -> Any:
    parts = {0: (x, others[0]), 1: (x, others[-1]), 2: (x, x), 3: (x, x, x)}[what]
    return jnp.concatenate(parts, axis)


def _concatenation(of: State, others: Sequence[State], axis: int, what: int) -> Interval:
    if what > 1:
        return of.low, of.high
    other = others[-what]
    pairs = enumerate(zip(of.shape, other.shape, strict=False))
    same = [n == m for d, (n, m) in pairs if d != axis]
    if other.dtype != of.dtype or other.rank != of.rank or not all(same):
        raise IllegalStep("no such operand")
    return _joined(of, other)


def _broadcast(x: Any, others: Any, axis: int, length: int) -> Any:
    if x.shape[axis] != 1:
        raise IllegalStep("broadcast of more than one element")
    return jnp.broadcast_to(x, (*x.shape[:axis], length, *x.shape[axis + 1 :]))


def _rolled(x: Any, others: Any, axis: int, shift: int, which: str) -> Any:
    return pltpu.roll(x, shift, axis) if which == "tpu" else jnp.roll(x, shift, axis)


def _reshapes(of: State) -> st.SearchStrategy[tuple[Any, ...]]:
    count = int(np.prod(of.shape))
    *lead, rows, lanes = (1, *of.shape)
    shapes = [
        (count // lanes, lanes),
        (1, *of.shape),
        (*of.shape[:-1], 1, lanes),
        (*of.shape, 1),
        *((*lead[1:], rows // n, n, lanes) for n in (2, 8, 16) if rows % n == 0),
        *((*lead[1:], rows * n, lanes // n) for n in (2, 4) if lanes % n == 0),
        *((*lead[1:], rows // n, lanes * n) for n in (2, 4) if rows % n == 0),
        *([(1, count)] if count <= 4096 else []),
    ]
    return st.sampled_from([s for s in shapes if len(s) <= 4]).map(lambda s: (s,))


def _padded(x: Any, others: Any, axis: int, before: int, after: int) -> Any:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jnp.pad(x, widths)


def _plus_iota(x: Any, others: Any, axis: int) -> Any:
    return x + jax.lax.broadcasted_iota(jnp.int32, x.shape, axis).astype(x.dtype)


def _dot(x: Any, others: Any, how: str) -> Any:
    y = x if how == "self" else others[-1]
    contract = ((x.ndim - 1,), (0 if how == "nn" else y.ndim - 1,))
    out = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
    return jax.lax.dot_general(x, y, (contract, ((), ())), preferred_element_type=out)


def _dotted(of: State, others: Sequence[State], how: str) -> Interval:
    """Operands exact in bf16, into which a dot of f32 rounds them.

    One product alone may be -0, to which the chip adds an accumulator of +0 and XLA nothing.
    """
    y = of if how == "self" else others[-1]
    if of.rank != 2 or y.rank != 2 or y.dtype != of.dtype or of.dtype in ("i32", "i16"):
        raise IllegalStep("no operands for a dot")
    if of.shape[1] == 1:
        raise IllegalStep("no operands for a dot")
    most = max(abs(of.low), abs(of.high)), max(abs(y.low), abs(y.high))
    if max(most) > _EXACT["bf16"]:
        raise IllegalStep("operands that are not exact")
    bound = most[0] * most[1] * of.shape[1]
    return -bound, bound


def _function(of: State, others: Any, kind: str) -> Interval:
    return _of_float(of)


KINDS: dict[str, _Kind] = {
    "unary": _Kind(
        params=lambda of: st.tuples(_names(_UNARY)),
        apply=lambda x, others, kind: _UNARY[kind][0](x),
        interval=lambda of, others, kind: _UNARY[kind][1](of),
    ),
    "constant": _Kind(
        params=lambda of: st.tuples(_names(_BINARY), _small(of)),
        apply=lambda x, others, kind, c: _BINARY[kind][0](x, _filled(x, c)),
        interval=lambda of, others, kind, c: _BINARY[kind][1](of, _like(of, c)),
    ),
    "binary": _Kind(
        params=lambda of: st.tuples(_names(_BINARY), st.integers(0, 1)),
        apply=_binary,
        interval=lambda of, others, kind, n: _BINARY[kind][1](of, _other(of, others, n)),
    ),
    "select": _Kind(
        params=lambda of: st.tuples(_names(_COMPARE), st.integers(0, 1), _small(of)),
        apply=_selected,
        interval=lambda of, others, kind, n, c: _joined(_like(_other(of, others, n), c), of),
    ),
    "mask": _Kind(
        params=_with_axis(
            lambda of, a: st.tuples(_names(_COMPARE), st.integers(0, of.shape[a]), _small(of))
        ),
        apply=_masked,
        interval=lambda of, others, axis, kind, bound, c: _joined(of, _like(of, c)),
        moves=True,
    ),
    "compare": _Kind(
        params=lambda of: st.tuples(_names(_COMPARE), _small(of)),
        apply=lambda x, others, kind, c: _COMPARE[kind](x, _filled(x, c)).astype(jnp.int32),
        interval=lambda of, others, kind, c: (0, 1),
    ),
    "cast": _Kind(
        params=lambda of: st.tuples(st.sampled_from(("f32", "i32", "bf16", "i8", "i16", "u8"))),
        apply=lambda x, others, dtype: x.astype(DTYPES[dtype]),
        interval=_cast,
    ),
    "reduce": _Kind(
        params=_with_axis(lambda of, a: st.tuples(_names(_REDUCE))),
        apply=lambda x, others, axis, kind: _REDUCE[kind][0](x, axis, keepdims=True),
        interval=_reduced,
        within_rows="axis",
    ),
    "less_reduction": _Kind(
        params=_with_axis(lambda of, a: st.tuples(_names(_REDUCE))),
        apply=lambda x, others, axis, kind: x - _REDUCE[kind][0](x, axis, keepdims=True),
        interval=_less_reduction,
        within_rows="axis",
    ),
    "transpose": _Kind(
        params=lambda of: st.permutations(range(of.rank)).map(lambda p: (tuple(p),)),
        apply=lambda x, others, order: jnp.transpose(x, order),
        interval=_same,
        moves=True,
        within_rows=False,
    ),
    "concatenate": _Kind(
        params=_with_axis(lambda of, a: st.tuples(st.integers(0, 3))),
        apply=_concatenated,
        interval=_concatenation,
        moves=True,
        within_rows="axis",
    ),
    "broadcast": _Kind(
        params=_with_axis(lambda of, a: st.tuples(st.sampled_from((2, 5, 8, 16, 128)))),
        apply=_broadcast,
        interval=_same,
        moves=True,
        within_rows="axis",
    ),
    "lead": _Kind(
        params=lambda of: st.tuples(st.integers(1, 3)),
        apply=lambda x, others, n: jnp.broadcast_to(x, (n, *x.shape)),
        interval=_same,
        moves=True,
        within_rows=False,
    ),
    "roll": _Kind(
        params=_with_axis(
            lambda of, a: st.tuples(
                st.integers(0, of.shape[a] - 1), st.sampled_from(("tpu", "jnp"))
            )
        ),
        apply=_rolled,
        interval=_same,
        moves=True,
        within_rows="axis",
    ),
    "slice": _Kind(
        params=_with_axis(_slices),
        apply=_sliced,
        interval=_same,
        moves=True,
        within_rows="axis",
    ),
    "reshape": _Kind(
        params=_reshapes,
        apply=lambda x, others, shape: x.reshape(shape),
        interval=_same,
        moves=True,
        within_rows=False,
    ),
    "take": _Kind(
        params=lambda of: st.tuples(st.integers(0, of.shape[0] - 1)),
        apply=lambda x, others, index: x[index],
        interval=_same,
        moves=True,
        within_rows=False,
    ),
    "pad": _Kind(
        params=_with_axis(lambda of, a: st.tuples(st.integers(0, 9), st.integers(0, 9))),
        apply=_padded,
        interval=_with_zero,
        moves=True,
        within_rows="axis",
    ),
    "plus_iota": _Kind(
        params=_with_axis(lambda of, a: st.just(())),
        apply=_plus_iota,
        interval=lambda of, others, axis: (of.low, of.high + of.shape[axis] - 1),
    ),
    "dot": _Kind(
        params=lambda of: st.tuples(st.sampled_from(("nn", "nt", "self"))),
        apply=_dot,
        interval=_dotted,
        within_rows=False,
    ),
    "function": _Kind(
        params=lambda of: st.tuples(_names(_FUNCTIONS)),
        apply=lambda x, others, kind: _FUNCTIONS[kind](x),
        interval=_function,
    ),
    # A loop that is interpreted does not know `program_id`: the kernel asks for it before.
    "plus_step": _Kind(
        params=lambda of: st.just(()),
        apply=lambda x, others, step: x + step.astype(x.dtype),
        interval=lambda of, others: (of.low, of.high + 3),
    ),
}


# --------------------------------------------------------------------------- types of plans


def after(plan: Plan, step: Step, of: State, others: Sequence[State]) -> State:
    """What a step makes of a value; IllegalStep when it must not stand there."""
    name, *params = step
    kind = KINDS[name]
    if plan.ragged and not (kind.within_rows is True or (kind.within_rows and params[0] != 0)):
        raise IllegalStep("mixes rows that are there with others")
    if name == "plus_step" and not plan.rows:
        raise IllegalStep("no grid")
    if not (of.exact or kind.moves or (name, *params) == ("cast", "bf16")):
        raise IllegalStep("computes with what is inexact")
    low, high = kind.interval(of, others, *params)
    shape, dtype = _applied(step, of, others)
    if not 1 <= len(shape) <= 4 or max(shape) > _LONGEST or np.prod(shape) > _MOST:
        raise IllegalStep("a shape that is not drawn")
    low, high = _held(dtype, low, high)
    exact = of.exact and name != "function"
    return State(shape=shape, dtype=dtype, low=low, high=high, exact=exact)


def _applied(step: Step, of: State, others: Sequence[State]) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the result."""
    name, *params = step
    if name == "plus_step":  # a grid index exists in a kernel only
        return of.shape, of.dtype
    avals = [jax.ShapeDtypeStruct(s.shape, DTYPES[s.dtype]) for s in (of, *others)]
    try:
        found = jax.eval_shape(lambda x, *ys: KINDS[name].apply(x, ys, *params), *avals)
    except (TypeError, ValueError, IndexError, KeyError) as e:
        raise IllegalStep(str(e)) from e
    known = {d: short for short, d in DTYPES.items()}
    if 0 in found.shape or found.dtype not in known:
        raise IllegalStep("an empty value")
    return tuple(found.shape), known[found.dtype]


def _held(dtype: str, low: int, high: int) -> Interval:
    """Integers wrap; floats must be exact."""
    if dtype in _EXACT:
        if max(abs(low), abs(high)) > _EXACT[dtype]:
            raise IllegalStep("no longer exact")
        return low, high
    least, greatest = limits(dtype)
    return (low, high) if least <= low and high <= greatest else (least, greatest)


def start(plan: Plan) -> tuple[State, tuple[State, ...]]:
    """The value before the first step, and the operands that steps can take."""
    states = []
    for shape, dtype, low, high in plan.inputs:
        block = (plan.rows, *shape[1:]) if plan.rows and shape[0] > 1 else shape
        states.append(State(shape=block, dtype=dtype, low=low, high=high))
    first = states[0]
    if plan.load is not None:
        first = dataclasses.replace(first, shape=tuple(size for _, size, _ in plan.load))
    return first, (first, *states[1:])


def checked(plan: Plan) -> State:
    """The state after the last step; IllegalStep when the plan is not legal."""
    of, others = start(plan)
    before = of
    for _ in range(max(plan.loop, 1)):
        for step in plan.steps:
            of = after(plan, step, of, others)
        if plan.loop and (of.shape, of.dtype, of.exact) != (before.shape, before.dtype, True):
            raise IllegalStep("a loop that changes the type")
    if plan.ragged and of.shape[0] != plan.rows:
        raise IllegalStep("other rows than there were")
    return of


# --------------------------------------------------------------------------- drawing


_SHAPES = ((8, 128), (16, 256), (5, 130), (32, 128), (24, 384), (1, 128), (8, 1), (16, 64), (3, 7))
_DEEP = ((2, 8, 128), (3, 5, 130), (2, 16, 256), (2, 3, 8, 128), (4, 1, 128))
_INPUT_DTYPES = ("f32", "f32", "i32", "i32", "bf16", "bf16", "i8", "i16", "u8")


# Those that can seldom follow are drawn more often.
_DRAWN = (*sorted(KINDS), "binary", "binary", "select", "broadcast", "dot", "dot", "dot", "cast")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Legal plans of one to four steps."""
    plan = draw(_beginnings())
    of, others = start(plan)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(4):  # some of what is drawn cannot follow
            name = draw(st.sampled_from(_DRAWN))
            step = (name, *draw(KINDS[name].params(of)))
            try:
                of = after(plan, step, of, others)
            except IllegalStep:
                continue
            steps.append(step)
            break
    assume(steps)
    return draw(_endings(dataclasses.replace(plan, steps=tuple(steps))))


@st.composite
def _beginnings(draw: st.DrawFn) -> Plan:
    gridded = draw(st.integers(0, 3)) == 0
    dtype = draw(st.sampled_from(_INPUT_DTYPES))
    if gridded:
        rows, shape, ragged = draw(_row_blocks(dtype))
    else:
        rows, ragged = 0, False
        shape = draw(st.sampled_from((*_SHAPES, *_DEEP)))
    inputs = [(shape, dtype, *draw(_ranges(dtype)))]
    if draw(st.booleans()):
        second = draw(st.sampled_from((shape, (*([1] * (len(shape) - 1)), shape[-1]))))
        if len(shape) == 2 and not gridded and draw(st.booleans()):
            second = (shape[1], draw(st.sampled_from((128, 7, 64))))  # for a dot
        inputs.append((second, dtype, *draw(_ranges(dtype))))
    plan = Plan(inputs=tuple(inputs), rows=rows, ragged=ragged)
    if not gridded and draw(st.integers(0, 3)) == 0:
        whole = State(shape=shape, dtype=dtype, low=0, high=0)
        boxes = tuple(draw(_slices(whole, d)) for d in range(len(shape)))
        plan = dataclasses.replace(plan, load=boxes)
    return plan


def _row_blocks(dtype: str) -> st.SearchStrategy[tuple[int, tuple[int, int], bool]]:
    """Rows of a block, the array's shape, and whether the last block is ragged."""
    unit = 8 * 4 // DTYPES[dtype].itemsize

    def shaped(rows: int, blocks: int, lanes: int, missing: int) -> Any:
        return rows, (rows * blocks - missing, lanes), missing > 0

    return st.builds(
        shaped,
        st.sampled_from((unit, 2 * unit)),
        st.integers(2, 3),
        st.sampled_from((128, 256, 130, 64)),
        st.sampled_from((0, 0, 3, 1)),
    )


def _ranges(dtype: str) -> st.SearchStrategy[Interval]:
    """Small integers, or all that the dtype has."""
    if dtype in FLOATS:
        return st.sampled_from(((-8, 8), (0, 3), (-100, 100)))
    small = (0, 8) if dtype in UNSIGNED else (-8, 8)
    return st.sampled_from((small, limits(dtype)))


@st.composite
def _endings(draw: st.DrawFn, plan: Plan) -> Plan:
    """Perhaps with a loop around the steps, or a store into a part of the result."""
    if draw(st.booleans()):
        looped = dataclasses.replace(plan, loop=draw(st.integers(1, 3)))
        try:
            checked(looped)
            plan = looped
        except IllegalStep:
            pass
    try:
        of = checked(plan)
    except IllegalStep:
        assume(False)
    if not plan.rows and draw(st.integers(0, 3)) == 0:
        part = st.sampled_from(((0, 0), (8, 0), (0, 5), (1, 2)))
        plan = dataclasses.replace(plan, store=tuple(draw(part) for _ in of.shape))
    return plan


def drawn(seed: int) -> Iterator[Plan]:
    """Distinct plans without end, the same ones for a seed (see `conformance.examples`)."""
    found: list[Plan] = []

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(plans())
    def collect(plan: Plan) -> None:
        found.append(plan)

    rng, test, seen = rng_of(seed), cast(Any, collect), set()
    while True:
        test.hypothesis.fuzz_one_input(rng.bytes(_BYTES))
        while found:
            plan = found.pop()
            if plan.text() not in seen:
                seen.add(plan.text())
                yield plan


# --------------------------------------------------------------------------- programs


def program(plan: Plan) -> Program:
    """The program of a plan, as those of the corpus are."""
    of = checked(plan)
    tolerance = 0.0
    if not of.exact:
        narrow = of.dtype == "bf16" or plan.inputs[0][1] == "bf16"
        # The function's own error; one more rounding where it is evaluated in f32, then rounded.
        tolerance = BF16_FUNCTION if narrow else F32_FUNCTION
    makers = [integers(d, *shape, low=low, high=high) for shape, d, low, high in plan.inputs]
    return Program(
        name=plan.text(),
        fn=_function_of(plan, of),
        make=lambda rng: tuple(make(rng) for make in makers),
        exact=of.exact,
        tolerance=tolerance,
    )


def _function_of(plan: Plan, of: State) -> Callable[..., Any]:
    margins = plan.store or ((0, 0),) * of.rank
    shape = tuple(n + low + high for n, (low, high) in zip(of.shape, margins, strict=True))
    out = DTYPES[of.dtype]
    box = tuple(pl.ds(low, n) for n, (low, _) in zip(of.shape, margins, strict=True))

    def kernel(*refs: Any) -> None:
        *ins, o_ref = refs
        first = ins[0][...] if plan.load is None else ins[0][_boxes(plan.load)]
        value = _computed(plan, first, (first, *(ref[...] for ref in ins[1:])))
        if plan.store is None:
            o_ref[...] = value
        else:
            o_ref[...] = jnp.zeros(shape, out)
            o_ref[box] = value

    if not plan.rows:
        result = jax.ShapeDtypeStruct(shape, out)
        return lambda *arrays: pl.pallas_call(kernel, out_shape=result)(*arrays)
    return _in_row_blocks(plan, kernel, shape, out)


def _boxes(load: Sequence[tuple[int, int, int]]) -> tuple[Any, ...]:
    return tuple(pl.ds(*part) if part[2] > 1 else pl.ds(*part[:2]) for part in load)


def _computed(plan: Plan, value: Any, others: Sequence[Any]) -> Any:
    step = pl.program_id(0) if plan.rows else 0

    def steps(value: Any) -> Any:
        for name, *params in plan.steps:
            extra = (step,) if name == "plus_step" else ()
            value = KINDS[name].apply(value, others, *params, *extra)
        return value

    if not plan.loop:
        return steps(value)
    return jax.lax.fori_loop(0, plan.loop, lambda i, carry: steps(carry), value)


def _in_row_blocks(
    plan: Plan, kernel: Callable[..., None], block: tuple[int, ...], dtype: np.dtype
) -> Callable[..., Any]:
    """Ragged: the result has the rows of the input. Else a leading axis counts the blocks."""
    total = plan.inputs[0][0][0]
    blocks = -(-total // plan.rows)
    specs = [_row_spec(plan.rows, shape) for shape, *_ in plan.inputs]
    zeros = (0,) * (len(block) - 1)
    if plan.ragged:
        result = jax.ShapeDtypeStruct((total, *block[1:]), dtype)
        out = pl.BlockSpec(block, lambda i: (i, *zeros))
    else:
        result = jax.ShapeDtypeStruct((blocks, *block), dtype)
        out = pl.BlockSpec((None, *block), lambda i: (i, 0, *zeros))
    options: Any = {"grid": (blocks,), "in_specs": specs, "out_specs": out}
    return lambda *arrays: pl.pallas_call(kernel, out_shape=result, **options)(*arrays)


def _row_spec(rows: int, shape: tuple[int, ...]) -> pl.BlockSpec:
    if shape[0] == 1:
        return pl.BlockSpec(shape, lambda i: (0, 0))
    return pl.BlockSpec((rows, shape[1]), lambda i: (i, 0))


# --------------------------------------------------------------------------- running


def smaller(plan: Plan) -> Iterator[Plan]:
    """Legal plans with one thing less."""
    candidates = [
        dataclasses.replace(plan, steps=plan.steps[:n] + plan.steps[n + 1 :])
        for n in range(len(plan.steps))
    ]
    candidates += [dataclasses.replace(plan, loop=0)] if plan.loop else []
    candidates += [dataclasses.replace(plan, store=None)] if plan.store else []
    candidates += [dataclasses.replace(plan, load=None)] if plan.load else []
    if plan.rows:
        blocks = tuple(((plan.rows, *s[1:]) if s[0] > 1 else s, *rest) for s, *rest in plan.inputs)
        candidates.append(dataclasses.replace(plan, inputs=blocks, rows=0, ragged=False))
    candidates += [dataclasses.replace(plan, inputs=plan.inputs[:1])] if plan.inputs[1:] else []
    for candidate in candidates:
        try:
            checked(candidate)
        except (IllegalStep, ValueError, IndexError):
            continue
        yield candidate


def judged(plan: Plan, chip: str) -> dict[str, str]:
    """Status of a plan's program, as tests/programs/execute.py reports it."""
    from conformance.modes._emulation import Executor
    from tests.programs.execute import report

    signal.alarm(SECONDS)  # its default action ends the process, even inside the compiler
    try:
        return report(program(plan), Executor(), chip)
    finally:
        signal.alarm(0)


def minimised(plan: Plan, row: dict[str, str], chip: str) -> tuple[Plan, dict[str, str]]:
    """The smallest plan found that fails likewise."""
    for candidate in smaller(plan):
        found = _attempted(candidate, chip)
        if found["status"] == row["status"]:
            return minimised(candidate, found, chip)
    return plan, row


def _attempted(plan: Plan, chip: str) -> dict[str, str]:
    try:
        return judged(plan, chip)
    except Exception as e:  # of the reference or of the executor: to be seen, not to end the run
        return {"status": "ENGINE_ERROR", "why": f"{type(e).__name__}: {e}"[:600]}


# What is wrong with the executor, with Mosaic or with JAX.
FAILURES = ("DIFFERS", "WRONG", "ENGINE_ERROR", "CRASH", "TIMEOUT")


def child_main(chip: str, seed: int, first: int, count: int) -> None:
    """Prints a line of JSON for each plan before and after it is judged."""
    for number, plan in enumerate(drawn(seed)):
        if number >= first + count:
            return
        if number < first:
            continue
        print(json.dumps({"begins": number, "plan": plan.text()}), flush=True)
        row = _attempted(plan, chip)
        if row["status"] in FAILURES:
            plan, row = minimised(plan, row, chip)
        line = {"number": number, "plan": plan.text(), "steps": [s[0] for s in plan.steps]}
        print(json.dumps(line | {k: row[k] for k in ("status", "why")}), flush=True)
        if number % 50 == 49:
            jax.clear_caches()


def run(count: int, seed: int, chip: str, chunk: int = 100) -> list[dict[str, Any]]:
    """Judges so many random programs, in processes that may die."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        first, size = len(rows), min(chunk, count - len(rows))
        arguments = ("--child", str(seed), str(first), str(size), "--chip", chip)
        child = in_compiling_process(__file__, *arguments, timeout=SECONDS * (size + 1))
        lines = [json.loads(line) for line in child.stdout.splitlines() if line[:1] == "{"]
        rows += [line for line in lines if "status" in line]
        if lines and "begins" in lines[-1]:
            rows.append(
                {"number": lines[-1]["begins"], "plan": lines[-1]["plan"], "steps": []}
                | {"status": "CRASH", "why": "the process died or took too long"}
            )
        elif len(rows) < first + size:
            raise RuntimeError(f"ended after {len(rows)} of {count}: {child.stderr[-3000:]}")
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many of each status, what is unsupported, and every failure with how to repeat it."""
    counts = Counter(row["status"] for row in rows)
    lines = [", ".join(f"{status} {n}" for status, n in sorted(counts.items()))]
    unsupported = Counter(row["why"] for row in rows if row["status"] == "UNSUPPORTED")
    lines += [f"  UNSUPPORTED {n}: {why}" for why, n in unsupported.most_common()]
    for row in failures(rows):
        lines.append(f"{row['status']}: {row['why']}")
        lines.append(f"  replay: python tests/random_programs.py --replay '{row['plan']}'")
    return "\n".join(lines)


def failures(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must not happen."""
    return [row for row in rows if row["status"] in FAILURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chip", default="v5e")
    parser.add_argument("--replay", metavar="JSON", help="judge one program again")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child and options.child[0] == "replay":
        print(json.dumps(_attempted(parsed(options.child[1]), options.chip)))
    elif options.child:
        child_main(options.chip, *(int(n) for n in options.child))
    elif options.replay:
        arguments = ("--child", "replay", options.replay, "--chip", options.chip)
        print(in_compiling_process(__file__, *arguments, timeout=2 * SECONDS).stdout, end="")
    else:
        began = time.monotonic()
        rows = run(options.count, options.seed, options.chip)
        print(summary(rows))
        print(f"{len(rows)} programs in {time.monotonic() - began:.0f} s")
        sys.exit(bool(failures(rows)))


if __name__ == "__main__":
    main()
