"""Tokamax (https://github.com/openxla/tokamax): every implementation that can run on a TPU.

    pytest -n auto --subject=subjects/tokamax_ops.py

"mosaic" kernels are Pallas; "xla" and None (Tokamax chooses) are what it falls back to where
there is no TPU, and are judged as plain XLA. Tokamax asks the machine what it may run: the
adapters tell it that it compiles for another (`cross_compile`), and which one.
"""

from __future__ import annotations

import contextlib
import functools

import jax
import tokamax
from jax.sharding import AbstractDevice, AbstractMesh

from conformance import Kernel

# The chip that the interpreters stand for; where something is compiled, the chip is known.
_INTERPRETED = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")


@contextlib.contextmanager
def _chip():
    """A context in which Tokamax finds a TPU, and does not ask whether it is attached."""
    mesh = contextlib.nullcontext()
    if jax.sharding.get_abstract_mesh().abstract_device is None:
        mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=_INTERPRETED))
    with tokamax.config.cross_compile(True), mesh:
        yield


def _mosaic(function):
    """`function` as if on a TPU."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        with _chip():
            return function(*args, **kwargs)

    return called


def ragged_dot(implementation):
    """An adapter: lhs (m, k), rhs (groups, k, n), group_sizes (groups,)."""

    def called(lhs, rhs, group_sizes):
        # As in the contract: int8 operands are accumulated in int32.
        result = "int32" if lhs.dtype == "int8" else lhs.dtype
        return tokamax.ragged_dot(
            lhs,
            rhs,
            group_sizes,
            preferred_element_type=result,
            implementation=implementation,
        )

    return called


def short_of_a_tile(example):
    """What "mosaic" refuses: it wants 128 of everything."""
    small = [d for d in ("m", "k", "n") if example.params[d] < 128]
    return f"{', '.join(small)} below 128" if small else None


KERNELS = (
    Kernel(case="grouped_matmul", name="default", fn=ragged_dot(None), pallas=False),
    Kernel(case="grouped_matmul", name="xla", fn=ragged_dot("xla"), pallas=False),
    Kernel(
        case="grouped_matmul",
        name="mosaic",
        fn=_mosaic(ragged_dot("mosaic")),
        refuses=short_of_a_tile,
    ),
    Kernel(case="grouped_matmul", name="mosaic_tpu_v2", fn=_mosaic(ragged_dot("mosaic_tpu_v2"))),
)
