"""Batches of a case's arrays: which are mapped, and what is in their slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from conformance.case import Arrays, Case, Example, Params
from conformance.loading import check_params
from conformance.modes import Call, _staging
from conformance.numerics import is_float
from conformance.strategies import make_arrays

Slice = tuple[Example, Arrays]

# Two would not tell a batch that is reversed from one whose slices are swapped.
SLICES = 3

# Between the seeds of the slices; more than the seeds of a run.
_SEED_STRIDE = 1_000_000


def mappings(arrays: Arrays) -> Mapping[str, tuple[int, ...]]:
    """Which arrays are mapped together: all of them, and each kind on its own.

    Integer arrays beside others are indices, masks and sizes, which a kernel may be handed by
    scalar prefetch: those and the data make two kinds. Otherwise each array is a kind.
    """
    everything = tuple(range(len(arrays)))
    integers = tuple(n for n in everything if not is_float(arrays[n].dtype))
    data = tuple(n for n in everything if n not in integers)
    kinds = [integers, data] if integers and data else [(n,) for n in everything]
    found = {"all arrays mapped": everything}
    if len(kinds) > 1:
        found |= {f"only {_named(kind)} mapped": kind for kind in kinds}
    return found


def _named(kind: Sequence[int]) -> str:
    return f"array {kind[0]}" if len(kind) == 1 else f"arrays {', '.join(map(str, kind))}"


def slices(case: Case, example: Example) -> tuple[Example, ...]:
    """What is in each slice of a batch: the example itself, and the same of other seeds.

    Counts that the kernel is told by an array alone (the start of a slice) are 0 in every second
    one, where that is legal: an array that is the same in all slices would not show whether it
    is mapped.
    """
    found = [example]
    for number in range(1, SLICES):
        params = _without_counts(case, example) if number % 2 else example.params
        seed = example.seed + number * _SEED_STRIDE
        found.append(replace(example, params=params, seed=seed))
    return tuple(found)


def _without_counts(case: Case, example: Example) -> Params:
    counts = [n for n, p in case.params.items() if p.kind == "count" and not p.passed]
    changed = {**example.params, **dict.fromkeys(counts, 0)}
    try:
        check_params(case, changed)
    except ValueError:
        return example.params
    same = [
        _shapes(make_arrays(case, replace(example, params=params)))
        for params in (changed, example.params)
    ]
    return changed if same[0] == same[1] else example.params


def _shapes(arrays: Arrays) -> list[Any]:
    return [(a.shape, a.dtype) for a in arrays]


def mixed(case: Case, batch: Sequence[Example], mapped: Sequence[int]) -> list[Slice]:
    """The slices as the kernel sees them: arrays that are not mapped are those of the first.

    So are the parameters, unless integer arrays are mapped, which are all that counts show in.
    """
    everything = [make_arrays(case, example) for example in batch]
    counted = any(not is_float(everything[0][n].dtype) for n in mapped)
    found = []
    for example, arrays in zip(batch, everything, strict=True):
        own = tuple(a if n in mapped else everything[0][n] for n, a in enumerate(arrays))
        found.append((example if counted else batch[0], own))
    return found


def batched(
    call: Call, mapped: Sequence[int]
) -> tuple[tuple[jax.Array, ...], tuple[int | None, ...]] | None:
    """`fn`'s arguments for a batch, and their mapped axes.

    Where `prepare` makes the arguments, those are mapped that differ from slice to slice, or
    all of them when all arrays are mapped. None when no argument would be mapped.
    """
    batch = mixed(call.case, slices(call.case, call.example), mapped)
    prepared = [_staging.prepared(replace(call, arrays=arrays)) for _, arrays in batch]
    arguments = list(zip(*prepared, strict=True))
    if call.kernel.prepare is None:
        chosen = [n in mapped for n in range(len(arguments))]
    else:
        everything = len(mapped) == len(call.arrays)
        chosen = [everything or _differ(slices_of) for slices_of in arguments]
    if not any(chosen):
        return None
    args = tuple(_stacked(a) if m else a[0] for a, m in zip(arguments, chosen, strict=True))
    return args, tuple(0 if m else None for m in chosen)


def _differ(slices_of: Sequence[jax.Array]) -> bool:
    return len({(a.shape, np.asarray(a).tobytes()) for a in slices_of}) > 1


def _stacked(slices_of: Sequence[jax.Array]) -> jax.Array:
    shapes = {a.shape for a in slices_of}
    if len(shapes) > 1:
        why = f"prepare makes arrays of unlike shapes for the slices of one batch: {shapes}"
        raise _staging.PhaseError("prepare", ValueError(why))
    return jax.numpy.stack(slices_of)
