"""Which parameters the shapes and dtypes of a case's arrays and results are, learnt by example.

A case says how to make arrays, not how their shapes follow from its parameters. Over a few dozen
points of its domain no two parameters stay equal by chance, so a dimension that equals one
parameter at each of them is that parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.case import Case, Example, Params
from conformance.examples import generated, pinned
from conformance.numerics import INTERPRETED, dtype_of
from conformance.strategies import make_arrays

_POINTS = 24


@dataclass(frozen=True, kw_only=True)
class Form:
    """One array or result.

    Attributes:
      name: what the case's XLA baseline calls an array; "o", "o1", ... for results.
      dims: for each dimension the parameter that it is, or its number where it is always the
        same, or None where it depends on the parameters in another way.
      dtype: the parameter that the dtype is, or None.
      fixed_dtype: the dtype where it is always the same, or None.
      shape, example_dtype: in the example that shows them.
    """

    name: str
    dims: tuple[str | int | None, ...]
    dtype: str | None
    fixed_dtype: str | None
    shape: tuple[int, ...]
    example_dtype: str

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.dims)
        comma = "," if len(self.dims) == 1 else ""
        return f"{self.name} ({dims}{comma}) {self.dtype or self.fixed_dtype or '?'}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The arrays and results of a case, and the example that shows them."""

    example: Example
    arrays: tuple[Form, ...]
    results: tuple[Form, ...]


def layout(case: Case) -> Layout:
    """What the arrays and results are; from points of the domain with as many dimensions as the
    first pinned example has."""
    example = _points(case)[0]
    made = [(e, *_made(case, e)) for e in _points(case)]
    ranks = _ranks(made[0][1]), _ranks(made[0][2])
    alike = [m for m in made if (_ranks(m[1]), _ranks(m[2])) == ranks]
    params = [e.params for e, _, _ in alike]
    names = argument_names(case, len(ranks[0]))
    outs = ["o"] if len(ranks[1]) == 1 else [f"o{n}" for n in range(1, len(ranks[1]) + 1)]
    arrays = [_form(case, n, params, [a[i] for _, a, _ in alike]) for i, n in enumerate(names)]
    results = [_form(case, n, params, [r[i] for _, _, r in alike]) for i, n in enumerate(outs)]
    return Layout(example=example, arrays=tuple(arrays), results=tuple(results))


def arrays_like(case: Case, ranks: Sequence[int]) -> tuple[Form, ...]:
    """The arrays of a case, at points where they have these numbers of dimensions.

    Raises:
      ValueError: nowhere.
    """
    made = [(e.params, _arrays(case, e)) for e in _points(case)]
    alike = [(p, a) for p, a in made if _ranks(a) == tuple(ranks)]
    if not alike:
        legal = " or ".join(sorted({str(_ranks(a)) for _, a in made}))
        raise ValueError(
            f"{case.name} takes arrays with {legal} dimensions, got {tuple(ranks)} dimensions"
        )
    params = [p for p, _ in alike]
    names = argument_names(case, len(ranks))
    return tuple(_form(case, n, params, [a[i] for _, a in alike]) for i, n in enumerate(names))


def argument_names(case: Case, count: int) -> list[str]:
    """What the XLA baseline calls its arrays, or `x0`, `x1`, ... where it has no names."""
    parameters = list(inspect.signature(case.baseline).parameters.values())[1:]
    plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    if plain and len(parameters) >= count:
        return [p.name for p in parameters[:count]]
    return [f"x{n}" for n in range(count)]


Seen = tuple[tuple[int, ...], str]


def _points(case: Case) -> list[Example]:
    """The first pinned example, then others of different parameters that are cheap to make."""
    found = (*pinned(case, "smoke"), *generated(case, _POINTS, "ci"))
    return list({repr(e.params): e for e in reversed(found)}.values())[::-1]


def _arrays(case: Case, example: Example) -> list[Seen]:
    return [_seen(a.shape, a.dtype) for a in make_arrays(case, example)]


def _made(case: Case, example: Example) -> tuple[list[Seen], list[Seen]]:
    arrays = make_arrays(case, example)
    results = case.reference(example.params, example.inputs, arrays, INTERPRETED)
    return (
        [_seen(a.shape, a.dtype) for a in arrays],
        [_seen(np.shape(r.value), r.dtype) for r in results],
    )


def _seen(shape: Iterable[int], dtype: Any) -> Seen:
    return tuple(shape), np.dtype(dtype).name


def _ranks(seen: list[Seen]) -> tuple[int, ...]:
    return tuple(len(shape) for shape, _ in seen)


def _form(case: Case, name: str, params: list[Params], seen: list[Seen]) -> Form:
    dtypes = [dtype for _, dtype in seen]
    dtype = _parameter(case, ("dtype", "choice"), params, dtypes)
    fixed = dtypes[0] if len(set(dtypes)) == 1 else None
    dims = zip(*(shape for shape, _ in seen), strict=True)
    shape, first = seen[0]
    return Form(
        name=name,
        dims=tuple(_dimension(case, params, list(d)) for d in dims),
        dtype=dtype,
        fixed_dtype=None if dtype else fixed,
        shape=shape,
        example_dtype=first,
    )


def _dimension(case: Case, params: list[Params], values: list[int]) -> str | int | None:
    found = _parameter(case, ("size", "count", "block"), params, values)
    return found or (values[0] if len(set(values)) == 1 else None)


def _parameter(
    case: Case, kinds: tuple[str, ...], params: list[Params], values: Sequence[Any]
) -> str | None:
    """The parameter that has these values at these points; a length before a block."""
    for kind in kinds:
        for name, param in case.params.items():
            if param.kind == kind and [p[name] for p in params] == list(values):
                return name
    return None


def dtype_exists(name: str) -> bool:
    """Whether NumPy or ml_dtypes has a dtype of this name."""
    try:
        return dtype_of(name).name == name
    except TypeError:
        return False
