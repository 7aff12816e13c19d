"""Loops, conditions and branches inside a kernel, nested and with vectors carried along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import folder, integers, on_refs, on_values, small, smem, struct, vmem
from ._record import Program

_program = folder(__name__)

Kernel = Callable[..., None]

# --- loops over values ---


def _doubled(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, a: a * 2 + i.astype(a.dtype), x)


def _fibonacci(x: Any) -> Any:
    """Two vectors are carried."""
    return lax.fori_loop(0, 6, lambda i, ab: (ab[1], ab[0] + ab[1]), (x, x + 1))


def _rotating(x: Any) -> Any:
    """The layout of what is carried must stay."""
    return lax.fori_loop(0, 4, lambda i, a: a + pltpu.roll(a, 1, 1), x)


def _unrolled(x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, a: a * 3 - i, x, unroll=True)


def _partly_unrolled(x: Any) -> Any:
    return lax.fori_loop(0, 6, lambda i, a: a * 3 - i, x, unroll=2)


def _nested_loops(x: Any) -> Any:
    def outer(i: Any, a: Any) -> Any:
        return lax.fori_loop(0, 3, lambda j, b: b + i * j, a)

    return lax.fori_loop(0, 4, outer, x)


def _until_large(x: Any) -> Any:
    """How often is decided by the values."""
    return lax.while_loop(lambda a: jnp.max(a) < 100, lambda a: a * 2 + 1, jnp.abs(x))


def _counted_while(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] + c[0]), (0, x))[1]


def _scan(x: Any) -> Any:
    return lax.scan(lambda a, _: (a + x, None), x, None, length=3)[0]


def _never(x: Any) -> Any:
    return lax.fori_loop(3, 3, lambda i, a: a * 0, x)


def _counter_of_i32(x: Any) -> Any:
    total = lax.fori_loop(0, 10, lambda i, s: s + i * i, 0)
    return x + total


def _several_dtypes(x: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return c[0] + 1, c[1] + i, c[2] * 2

    a, b, c = lax.fori_loop(0, 3, step, (x.astype(jnp.float32), x.astype(jnp.int32), 1))
    return a + b.astype(jnp.float32) * c


def _mask_carried(x: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        a, done = c
        a = jnp.where(done != 0, a, a + 3)
        return a, jnp.where(a > 5, 1, 0)

    return lax.fori_loop(0, 5, step, (x, jnp.zeros(x.shape, jnp.int32)))[0]


LOOPS: dict[str, Callable[[Any], Any]] = {
    "doubled": _doubled,
    "fibonacci": _fibonacci,
    "rotating": _rotating,
    "unrolled": _unrolled,
    "partly_unrolled": _partly_unrolled,
    "nested_loops": _nested_loops,
    "until_large": _until_large,
    "counted_while": _counted_while,
    "scan": _scan,
    "never": _never,
    "counter": _counter_of_i32,
    "several_dtypes": _several_dtypes,
    "mask_carried": _mask_carried,
}


def _loops() -> Iterator[Program]:
    for name, f in LOOPS.items():
        for dtype in ("f32", "i32"):
            for shape in ((8, 128), (16, 256)):
                yield _program(
                    f"{name}_{dtype}_{shape[0]}x{shape[1]}",
                    on_values(f),
                    small(dtype, *shape, limit=5),
                )


# --- the first operand is in SMEM and decides ---


def _dynamic_bound(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = lax.fori_loop(0, s_ref[0], lambda i, a: a + i.astype(a.dtype), x_ref[...])


def _dynamic_bounds(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    low = jnp.minimum(s_ref[0], s_ref[1])
    high = jnp.maximum(s_ref[0], s_ref[1])
    o_ref[...] = lax.fori_loop(low, high, lambda i, a: a * 2 - 1, x_ref[...])


def _rows_summed(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    def add(i: Any, total: Any) -> Any:
        return total + x_ref[pl.ds(i, 1), :]

    total = lax.fori_loop(0, s_ref[0], add, jnp.zeros((1, 128), x_ref.dtype))
    o_ref[...] = jnp.broadcast_to(total, o_ref.shape)


def _rows_written(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    def write(i: Any, _: Any) -> Any:
        o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(7 - i, 1), :] * 10
        return 0

    lax.fori_loop(0, s_ref[0], write, 0)


def _collatz(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    def step(c: Any) -> Any:
        n, steps = c
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    steps = lax.while_loop(lambda c: c[0] != 1, step, (s_ref[0] + 1, 0))[1]
    o_ref[...] = x_ref[...] + steps.astype(x_ref.dtype)


def _cond_of_vectors(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = lax.cond(s_ref[0] > 3, lambda: x * 2, lambda: x - 1)


def _cond_of_scalars(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    k = lax.cond(s_ref[0] > s_ref[1], lambda: s_ref[0] * 2, lambda: s_ref[1] - 7)
    o_ref[...] = x_ref[...] + k.astype(x_ref.dtype)


def _cond_of_two(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    a, b = lax.cond(s_ref[0] > 3, lambda: (x, x + 1), lambda: (x * 3, x))
    o_ref[...] = a - b * 2


def _switch(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = lax.switch(s_ref[0] % 4, [lambda: x, lambda: x + 10, lambda: -x, lambda: x * 3])


def _switch_clamps(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    """Beyond the last branch it is the last."""
    x = x_ref[...]
    o_ref[...] = lax.switch(s_ref[0], [lambda: x, lambda: x + 10, lambda: -x])


def _when(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    @pl.when(s_ref[0] > 3)
    def _() -> None:
        o_ref[...] = x_ref[...] * 2

    @pl.when((s_ref[1] > 2) & (s_ref[0] < 6))
    def _() -> None:
        o_ref[0:3, :] = jnp.zeros((3, 128), o_ref.dtype)


def _when_nested(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    @pl.when(s_ref[0] > 1)
    def _() -> None:
        o_ref[...] += 1

        @pl.when(s_ref[1] > 4)
        def _() -> None:
            o_ref[...] *= 2

        @pl.when(s_ref[1] <= 4)
        def _() -> None:
            o_ref[...] -= 5


def _when_in_loop(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    def step(i: Any, _: Any) -> Any:
        @pl.when(lax.rem(i + s_ref[0], 3) == 0)
        def _() -> None:
            o_ref[...] += i.astype(o_ref.dtype)

        return 0

    lax.fori_loop(0, 8, step, 0)


def _loop_in_when(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    @pl.when(s_ref[1] > 3)
    def _() -> None:
        o_ref[...] = lax.fori_loop(0, s_ref[0], lambda i, a: a + 1, x_ref[...])


def _cond_in_loop(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    def step(i: Any, a: Any) -> Any:
        return lax.cond(i < s_ref[0], lambda: a + 2, lambda: a * 2)

    o_ref[...] = lax.fori_loop(0, 6, step, x_ref[...])


def _while_with_state(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    def step(i: Any) -> Any:
        o_ref[pl.ds(i, 1), :] = o_ref[pl.ds(i, 1), :] * 2 + 1
        return i + 1

    lax.while_loop(lambda i: i < s_ref[0], step, 0)


def _pl_loop(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]

    @pl.loop(0, s_ref[0])
    def _(i: Any) -> None:
        o_ref[pl.ds(i, 1), :] = o_ref[pl.ds(i, 1), :] + 10


def _search(s_ref: Any, x_ref: Any, o_ref: Any) -> None:
    """Bisection in SMEM, whose elements grow."""

    def step(c: Any) -> Any:
        low, high = c
        middle = (low + high) // 2
        below = s_ref[middle] < 4
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    low, _ = lax.while_loop(lambda c: c[0] < c[1], step, (0, 8))
    o_ref[...] = x_ref[...] + low.astype(x_ref.dtype)


DECIDED: dict[str, Kernel] = {
    "dynamic_bound": _dynamic_bound,
    "dynamic_bounds": _dynamic_bounds,
    "rows_summed": _rows_summed,
    "rows_written": _rows_written,
    "collatz": _collatz,
    "cond_of_vectors": _cond_of_vectors,
    "cond_of_scalars": _cond_of_scalars,
    "cond_of_two": _cond_of_two,
    "switch": _switch,
    "switch_clamps": _switch_clamps,
    "when": _when,
    "when_nested": _when_nested,
    "when_in_loop": _when_in_loop,
    "loop_in_when": _loop_in_when,
    "cond_in_loop": _cond_in_loop,
    "while_with_state": _while_with_state,
    "pl_loop": _pl_loop,
    "search": _search,
}


def _growing(rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.integers(0, 9, 8)).astype(np.int32)


def _decided() -> Iterator[Program]:
    for name, kernel in DECIDED.items():
        for dtype in ("f32", "i32"):
            yield _program(
                f"{name}_{dtype}",
                on_refs(kernel, struct(dtype, 8, 128), in_specs=[smem(), vmem()]),
                _growing if name == "search" else integers("i32", 8, low=0, high=8),
                small(dtype, 8, 128, limit=5),
            )


PROGRAMS: tuple[Program, ...] = (*_loops(), *_decided())
