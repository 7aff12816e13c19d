"""Kernels that break a property they claim, and right ones: they test the judge of properties.

A subject like any other (`pytest --subject tests/property_mutants.py --properties all`), except
that the mutants must fail: `MUTANTS` says of each which property it breaks, what is wrong with it
and what the verdict says. Their values are right, so that no mode condemns them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import Kernel
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

Fn = Callable[..., Any]
REFERENCE = load_subject(DEFAULT_SUBJECT, tuple(load_cases()))


def add(x: jax.Array, y: jax.Array, **how: Any) -> jax.Array:
    """x + y, (m, n) float32, in one block."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **how)(x, y)


# ---------------------------------------------------------------------------- vmap


def mapped_by(rule: Fn) -> Fn:
    """`add` with a batching rule of its own."""
    fn = custom_vmap(lambda x, y: add(x, y))
    fn.def_vmap(rule)
    return lambda x, y: fn(x, y)


def right_rule(size: int, mapped: Any, x: jax.Array, y: jax.Array) -> Any:
    x, y = (a if m else jnp.stack([a] * size) for a, m in zip((x, y), mapped, strict=True))
    rows = (size * x.shape[1], x.shape[2])
    return add(x.reshape(rows), y.reshape(rows)).reshape(x.shape), True


def takes_y_for_shared(size: int, mapped: Any, x: jax.Array, y: jax.Array) -> Any:
    return right_rule(size, (mapped[0], False), x, y[0] if mapped[1] else y)


def reverses(size: int, mapped: Any, x: jax.Array, y: jax.Array) -> Any:
    return right_rule(size, mapped, x, y)[0][::-1], True


def shares_mapped_starts() -> Fn:
    """A slice whose rule is right unless the starts alone are mapped."""
    reference = REFERENCE.find("dynamic_slice", "block_aligned").fn

    def fn(x: jax.Array, starts: jax.Array, **sizes: int) -> Any:
        @custom_vmap
        def cut(x: jax.Array, starts: jax.Array) -> Any:
            return reference(x, starts, **sizes)[1]

        @cut.def_vmap
        def rule(size: int, mapped: Any, x: jax.Array, starts: jax.Array) -> Any:
            if not mapped[0]:
                return jnp.stack([cut(x, starts[0])] * size), True
            axes = tuple(0 if m else None for m in mapped)
            return jax.vmap(lambda x, s: reference(x, s, **sizes)[1], axes)(x, starts), True

        return cut(x, starts)

    return fn


def calls_back(x: jax.Array, y: jax.Array) -> jax.Array:
    """Does not say how its callback is mapped."""
    shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
    return add(x, jax.pure_callback(lambda a: np.asarray(a), shape, y))


def through_hbm(x: jax.Array, y: jax.Array) -> jax.Array:
    """Leaves y in HBM, and copies it by hand."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, copy_ref: Any, semaphore: Any) -> None:
        copy = pltpu.make_async_copy(y_ref, copy_ref, semaphore)
        copy.start()
        copy.wait()
        o_ref[...] = x_ref[...] + copy_ref[...]

    return pl.pallas_call(
        body,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM(y.shape, y.dtype), pltpu.SemaphoreType.DMA],
    )(x, y)


# ---------------------------------------------------------------------------- grad


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """x @ y, float32, in one block."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    out = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    return pl.pallas_call(body, out_shape=out)(x, y)


def differentiable(
    dx: Fn = lambda x, y, dz: matmul(dz, y.T),
    dy: Fn = lambda x, y, dz: matmul(x.T, dz),
    value: Fn = matmul,
) -> Fn:
    """`matmul` with a gradient, of which a mutant changes one part."""
    fn = jax.custom_vjp(lambda x, y: matmul(x, y))
    fn.defvjp(lambda x, y: (value(x, y), (x, y)), lambda xy, dz: (dx(*xy, dz), dy(*xy, dz)))
    return lambda x, y: fn(x, y)


# ---------------------------------------------------------------------------- donation


def writes_to_operand(x: jax.Array, y: jax.Array) -> jax.Array:
    """Clears an operand that it is handed without jit, where it lies."""
    total = add(x, y)
    if not isinstance(x, jax.core.Tracer):
        jax.block_until_ready(total)
        ctypes.memset(x.unsafe_buffer_pointer(), 0, x.nbytes)
    return total


# ---------------------------------------------------------------------------- shard_map

SEEN: dict[str, int] = {}


def sees_rows(x: Any, y: Any) -> Any:
    SEEN["rows"] = x.shape[0]
    return x, y


def pads_to_rows_seen(x: jax.Array, y: jax.Array) -> jax.Array:
    """Takes the number of rows from the host, which knows the whole array."""
    missing = ((0, SEEN["rows"] - x.shape[0]), (0, 0))
    return add(jnp.pad(x, missing), jnp.pad(y, missing))


def on_first_device(x: jax.Array, y: jax.Array) -> jax.Array:
    """Works where it is alone."""
    if len(jax.sharding.get_abstract_mesh().axis_names):
        raise ValueError("not under shard_map")
    return add(x, y)


# ---------------------------------------------------------------------------- determinism

COUNTER = itertools.count()


def counts_its_traces(x: jax.Array, y: jax.Array) -> jax.Array:
    """Gives its kernel another name in each trace: the bits are the same."""
    return add(x, y, name=f"add_{next(COUNTER)}")


def jitters(x: jax.Array, y: jax.Array) -> jax.Array:
    """Right within the bound, by an amount that each trace draws anew."""
    return matmul(x, y) * np.float32(1 + (next(COUNTER) % 7) * 2.0**-23)


def jitters_when_run(x: jax.Array, y: jax.Array) -> jax.Array:
    """As `jitters`, but in each run, and on the CPU only: the program for a TPU is the same."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def scale() -> Any:
        return np.float32(1 + (next(COUNTER) % 7) * 2.0**-23)

    product = matmul(x, y)
    return product * lax.platform_dependent(
        cpu=lambda: jax.pure_callback(scale, shape), default=lambda: jnp.float32(1)
    )


# ---------------------------------------------------------------------------- eager, export


def only_traced(x: jax.Array, y: jax.Array) -> jax.Array:
    """Without jit, it takes a way of its own, which leaves y out."""
    return add(x, y) if isinstance(x, jax.core.Tracer) else add(x, jnp.zeros_like(y))


def prints(x: jax.Array, y: jax.Array) -> jax.Array:
    """Calls back into this process."""
    jax.debug.callback(lambda a: None, x[0, 0])
    return add(x, y)


# ---------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Mutant:
    """A kernel and what the verdict on the one property that it claims must say."""

    kernel: Kernel
    says: str


def mutant(name: str, fn: Fn, claims: str, says: str, case: str = "add", **stages: Any) -> Mutant:
    kernel = Kernel(case=case, name=name, fn=fn, properties=(claims,), **stages)
    return Mutant(kernel, says)


F32 = "matmul_f32"
MUTANTS = (
    mutant("shared", mapped_by(takes_y_for_shared), "vmap", "WRONG: all .* mapped, slice 1: 8"),
    mutant("reversed", mapped_by(reverses), "vmap", "WRONG: all arrays mapped, slice 0: 8"),
    mutant(
        "starts",
        shares_mapped_starts(),
        "vmap",
        "WRONG: only array 1 mapped, slice 1: ",
        "dynamic_slice",
    ),
    mutant("callback", calls_back, "vmap", "REJECTED: all arrays mapped: NotImplementedError"),
    mutant("hbm", through_hbm, "vmap-aot", "REJECTED: .*: ValueError: .*memory space ANY"),
    mutant(
        "halved",
        differentiable(dx=lambda x, y, dz: matmul(dz, y.T) / 2),
        "grad",
        "WRONG: gradient of array 0: ",
        F32,
    ),
    mutant(
        "transposed",
        differentiable(dy=lambda x, y, dz: matmul(x.T, dz).T),
        "grad",
        "WRONG: gradient of array 1: ",
        F32,
    ),
    mutant(
        "constant",
        differentiable(dy=lambda x, y, dz: jnp.zeros_like(y)),
        "grad",
        "WRONG: gradient of array 1: ",
        F32,
    ),
    mutant(
        "other-value",
        differentiable(value=lambda x, y: matmul(x, y) + 1),
        "grad",
        "WRONG: the value that vjp returns: ",
        F32,
    ),
    mutant("no-rule", lambda x, y: matmul(x, y), "grad", "REJECTED: vjp: ", F32),
    mutant(
        "donates",
        jax.jit(lambda x, y: add(x, y), donate_argnums=0),
        "donation",
        "WRONG: called without jit: fn donated its argument 0",
    ),
    mutant("writes", writes_to_operand, "donation", "WRONG: .*: fn wrote to its argument 0"),
    mutant(
        "global-size",
        pads_to_rows_seen,
        "shard_map",
        r"WRONG: on 2 devices: the result has shape \(64, 256\)",
        prepare=sees_rows,
    ),
    mutant("alone", on_first_device, "shard_map", "REJECTED: on 2 devices: ValueError: not under"),
    mutant("counts", counts_its_traces, "determinism", "WRONG: lowered for v5e: .*add_"),
    mutant("jitters", jitters, "determinism", "WRONG: lowered for v5e: ", F32),
    mutant("jitters-run", jitters_when_run, "determinism", "WRONG: second run: .*other bits", F32),
    mutant("traced", only_traced, "eager", "WRONG: called without jit: "),
    mutant("prints", prints, "export", "REJECTED: exported: "),
)

VALUES = ("eager", "vmap", "donation", "shard_map", "determinism")
CONTROLS = (
    Kernel(
        case="add",
        name="right",
        fn=lambda x, y: add(x, y),
        properties=(*VALUES, "vmap-aot", "export"),
    ),
    Kernel(case="add", name="rule", fn=mapped_by(right_rule), properties=("vmap",)),
    Kernel(case="add", name="hbm-interpreted", fn=through_hbm, properties=("vmap", "export")),
    Kernel(
        case=F32, name="gradient", fn=differentiable(), properties=(*VALUES, "grad", "vmap-aot")
    ),
)
KERNELS = (*(m.kernel for m in MUTANTS), *CONTROLS)
