"""Property `shard_map`: on two devices, each with half of the arrays, the halves of the results
make up the whole.

The devices are simulated ones of the CPU. `Case.split` says along which axes to cut; what is not
cut is on both devices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from conformance.case import Axes, Case, Example, Kernel
from conformance.modes import Call, _staging
from conformance.properties import References
from conformance.properties._interpreted import (
    DEVICES,
    Interpreted,
    called,
    device_stage,
    expected,
    jit,
    positions,
)
from conformance.verdict import Status, Use

_PART = f"on {DEVICES} devices"
_AXIS = "halves"


class ShardMap(Interpreted):
    name = "shard_map"

    def lacks(self, case: Case, kernel: Kernel) -> str | None:
        if case.split is None:
            return f"case {case.name} has no split"
        return "finish sees the whole result" if kernel.finish is not None else None

    def parts(self, call: Call, args: tuple[Any, ...]) -> tuple[Use, ...]:
        assert call.case.split is not None
        cut = call.case.split(call.example.params)
        if cut is None:
            why = ValueError("the case does not say how to cut these sizes in two")
            raise _staging.PhaseError("prepare", why, Status.UNSUPPORTED)
        fn = self.jitted(call, _PART, lambda: _program(call, args, *cut))
        result = called(call, _PART, fn, *args)
        return (Use(name=_PART, values=tuple(np.asarray(leaf) for leaf in result)),)

    def references(self, case: Case, example: Example) -> References:
        return {_PART: expected(case, example)}


def _program(call: Call, args: tuple[Any, ...], arrays: Axes, results: Axes) -> Any:
    inputs = [PartitionSpec()] * len(args)
    for array, (axis, place) in enumerate(zip(arrays, positions(call, args), strict=True)):
        if axis is None:
            continue
        if place is None:
            why = f"array {array} is to be cut, but is not among the arguments that prepare makes"
            raise _staging.PhaseError("prepare", TypeError(why))
        inputs[place] = _along(axis)
    fn = device_stage(call)
    return jit(
        jax.shard_map(
            lambda *halves: jax.tree.leaves(fn(*halves)),
            mesh=Mesh(np.array(jax.devices()[:DEVICES]), (_AXIS,)),
            in_specs=tuple(inputs),
            out_specs=[PartitionSpec() if axis is None else _along(axis) for axis in results],
            check_vma=False,  # the results of a pallas_call do not say how they vary
        )
    )


def _along(axis: int) -> PartitionSpec:
    return PartitionSpec(*[None] * axis, _AXIS)


PROPERTY = ShardMap()
