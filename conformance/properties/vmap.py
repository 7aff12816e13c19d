"""Property `vmap`: mapped over a new leading axis, each slice is what the contract asks of it.

Every slice has other data and is judged by its own oracle. All arrays are mapped, and each kind
of them alone, the others shared by the batch: Pallas adds a grid axis for a mapped operand, but
maps scalar-prefetch operands by a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from conformance.case import Case, Example
from conformance.modes import Call, _staging
from conformance.properties import References
from conformance.properties._batches import SLICES, batched, mappings, mixed, slices
from conformance.properties._interpreted import Interpreted, called, device_stage, expected, jit
from conformance.strategies import make_arrays
from conformance.verdict import Use


class Vmap(Interpreted):
    name = "vmap"

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        found: list[Use] = []
        for what, mapped in mappings(call.arrays).items():
            found += self._slices(call, what, mapped)
        return tuple(found)

    def _slices(self, call: Call, what: str, mapped: tuple[int, ...]) -> Iterator[Use]:
        batch = batched(call, mapped)
        if batch is None:
            return
        args, axes = batch
        fn = self.jitted(call, axes, lambda: jit(jax.vmap(device_stage(call), in_axes=axes)))
        result = called(call, what, fn, *args)
        for number in range(SLICES):
            one = jax.tree.map(lambda leaf, n=number: leaf[n], result)
            with _staging.part(_slice(what, number)):
                yield Use(name=_slice(what, number), values=_staging.finished(call, one))

    def references(self, case: Case, example: Example) -> References:
        batch = slices(case, example)
        return {
            _slice(what, number): expected(case, one, arrays)
            for what, mapped in mappings(make_arrays(case, example)).items()
            for number, (one, arrays) in enumerate(mixed(case, batch, mapped))
        }


def _slice(what: str, number: int) -> str:
    return f"{what}, slice {number}"


PROPERTY = Vmap()
