"""Batches of a case's arrays: which are mapped, and what is in their slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from conformance.case import Arrays, Case, Example
from conformance.modes import Call, _staging
from conformance.numerics import is_float
from conformance.strategies import make_arrays

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


def slices(case: Case, example: Example) -> tuple[Arrays, ...]:
    """The arrays of each slice of a batch: the example's own, and those of other seeds."""
    seeds = [example.seed + n * _SEED_STRIDE for n in range(SLICES)]
    return tuple(make_arrays(case, replace(example, seed=seed)) for seed in seeds)


def mixed(batch: Sequence[Arrays], mapped: Sequence[int]) -> tuple[Arrays, ...]:
    """The slices as the kernel sees them: arrays that are not mapped are those of the first."""
    return tuple(
        tuple(a if n in mapped else batch[0][n] for n, a in enumerate(arrays)) for arrays in batch
    )


def batched(
    call: Call, mapped: Sequence[int]
) -> tuple[tuple[jax.Array, ...], tuple[int | None, ...]] | None:
    """`fn`'s arguments for a batch, and their mapped axes.

    Where `prepare` makes the arguments, those are mapped that differ from slice to slice, or
    all of them when all arrays are mapped. None when no argument would be mapped.
    """
    batch = mixed(slices(call.case, call.example), mapped)
    prepared = [_staging.prepared(replace(call, arrays=arrays)) for arrays in batch]
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
