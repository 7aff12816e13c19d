"""What real kernels chain: normalisations, attention, activations, scans, lookups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import (
    BF16_FUNCTION,
    DTYPES,
    by,
    folder,
    integers,
    normal,
    on_refs,
    on_values,
    small,
    struct,
    uniform,
)
from ._record import Program

_program = folder(__name__)

# A few functions and a sum after each other, each within some ulp (2**-23) of the truth.
CHAIN = 2.0**-17
# Operands of a default product are rounded to bf16: two neighbouring roundings of a weight.
ROUNDED = 2.0**-7

NEGATIVE = -1e30  # instead of an infinity, whose difference with itself is NaN


def _softmax(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return e / jnp.sum(e, axis=-1, keepdims=True)


def _log_softmax(x: Any) -> Any:
    shifted = x - jnp.max(x, axis=-1, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))


def _softmax_of_rows(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, axis=0, keepdims=True))
    return e / jnp.sum(e, axis=0, keepdims=True)


def _layer_norm(x: Any) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5)


def _rms_norm(x: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _gelu_of_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _gelu_of_erf(x: Any) -> Any:
    return 0.5 * x * (1 + lax.erf(x * 0.7071067812))


def _silu(x: Any) -> Any:
    return x * lax.logistic(x)


def _softplus(x: Any) -> Any:
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _l2_normalised(x: Any) -> Any:
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))


def _sigmoid_cross_entropy(x: Any) -> Any:
    return jnp.sum(jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))), axis=1, keepdims=True) / 256


ROWS: dict[str, Callable[[Any], Any]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_of_rows": _softmax_of_rows,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "gelu_of_tanh": _gelu_of_tanh,
    "gelu_of_erf": _gelu_of_erf,
    "silu": _silu,
    "softplus": _softplus,
    "l2_normalised": _l2_normalised,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
}


# JAX's own, whose custom derivatives and inner jits are inlined.
LIBRARY: dict[str, Callable[[Any], Any]] = {
    "softmax": jax.nn.softmax,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "relu6": jax.nn.relu6,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=1, keepdims=True),
    "standardize": jax.nn.standardize,
    "variance": lambda x: jnp.var(x, axis=1, keepdims=True),
    "norm": lambda x: jnp.linalg.norm(x, axis=1, keepdims=True),
    "jitted": jax.jit(lambda x: jnp.where(x > 0, x, x * 0.5)),
    "mapped": jax.vmap(lambda row: row - jnp.max(row)),
    "gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x))),
}


def _in_f32(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: f(x.astype(jnp.float32)).astype(x.dtype)


def _normalisations() -> Iterator[Program]:
    for name, f in ROWS.items():
        for shape in ((16, 128), (8, 256), (5, 130)):
            yield _program(
                f"{name}_f32_{by(shape)}",
                on_values(f),
                normal("f32", *shape, scale=2),
                tolerance=CHAIN,
            )
        yield _program(
            f"{name}_bf16",
            on_values(_in_f32(f)),
            normal("bf16", 16, 128, scale=2),
            tolerance=BF16_FUNCTION,
        )


def _library() -> Iterator[Program]:
    for name, f in LIBRARY.items():
        yield _program(
            f"jax_{name}_f32", on_values(f), normal("f32", 16, 256, scale=2), tolerance=CHAIN
        )


# --- exact chains ---


def _one_hot_gather(x: Any, i: Any) -> Any:
    column = lax.broadcasted_iota(jnp.int32, (i.shape[0], x.shape[0]), 1)
    return jnp.dot((column == i[:, :1]).astype(x.dtype), x, preferred_element_type=jnp.float32)


def _one_hot_scatter(x: Any, i: Any) -> Any:
    """Rows of x are added to row i of the result."""
    row = lax.broadcasted_iota(jnp.int32, (16, i.shape[1]), 0)
    return jnp.dot((row == i).astype(x.dtype), x, preferred_element_type=jnp.float32)


def _histogram(i: Any) -> Any:
    """How many elements of each row are 0, 1, ... 7, in the first lanes."""
    lane = lax.broadcasted_iota(jnp.int32, (i.shape[0], 128), 1)
    counts = jnp.zeros((i.shape[0], 128), jnp.int32)
    for k in range(8):
        count = jnp.sum((i == k).astype(jnp.int32), axis=1, keepdims=True)
        counts = jnp.where(lane == k, count, counts)
    return counts


def _top_one(x: Any) -> Any:
    """The largest of each row and where it is first."""
    largest = jnp.max(x, axis=1, keepdims=True)
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    where = jnp.min(jnp.where(x == largest, lane, x.shape[1]), axis=1, keepdims=True)
    return largest, where


def _top_two(x: Any) -> Any:
    first, where = _top_one(x)
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    second, _ = _top_one(jnp.where(lane == where, -1e9, x))
    return jnp.where(lane == 0, first, jnp.where(lane == 1, second, 0))


def _prefix_sums(x: Any) -> Any:
    """Along the lanes, by doubling."""
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    for k in range(7):
        x = x + jnp.where(lane >= 2**k, pltpu.roll(x, 2**k, 1), 0)
    return x


def _prefix_sums_of_rows(x: Any) -> Any:
    row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for k in range(3):
        x = x + jnp.where(row >= 2**k, pltpu.roll(x, 2**k, 0), 0)
    return x


def _cumulative_by_matmul(x: Any) -> Any:
    n = x.shape[1]
    row = lax.broadcasted_iota(jnp.int32, (n, n), 0)
    column = lax.broadcasted_iota(jnp.int32, (n, n), 1)
    return jnp.dot(x, (row <= column).astype(x.dtype), preferred_element_type=jnp.float32)


def _rotary(x: Any) -> Any:
    """Halves of the lanes change places, one with its sign changed."""
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    half = x.shape[1] // 2
    return x * 2 + jnp.where(lane < half, -pltpu.roll(x, half, 1), pltpu.roll(x, half, 1))


def _quantised(x: Any) -> Any:
    scale = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    return jnp.clip(jnp.round(x * 128), -127, 127).astype(jnp.int8), scale


def _dequantised(q: Any, s: Any) -> Any:
    return q.astype(jnp.float32) * s


def _hash(x: Any) -> Any:
    """Integers that wrap around."""
    x = (x ^ lax.shift_right_logical(x, 16)) * jnp.int32(0x45D9F3B)
    x = (x ^ lax.shift_right_logical(x, 16)) * jnp.int32(0x45D9F3B)
    return x ^ lax.shift_right_logical(x, 16)


def _butterfly(x: Any) -> Any:
    """Sums and differences of neighbours: a Walsh-Hadamard transform of eight rows."""
    row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for k in (1, 2, 4):
        up, down = pltpu.roll(x, k, 0), pltpu.roll(x, 8 - k, 0)
        x = jnp.where((row & k) == 0, x + down, up - x)
    return x


def _exact() -> Iterator[Program]:
    yield _program(
        "one_hot_gather",
        on_values(_one_hot_gather),
        small("f32", 64, 128, limit=200),
        integers("i32", 16, 128, low=0, high=63),
    )
    yield _program(
        "one_hot_scatter",
        on_values(_one_hot_scatter),
        small("f32", 64, 128),
        integers("i32", 1, 64, low=0, high=15),
    )
    yield _program("histogram", on_values(_histogram), integers("i32", 16, 256, low=0, high=9))
    yield _program("top_one", on_values(_top_one), small("f32", 16, 256, limit=50))
    yield _program("top_two", on_values(_top_two), small("f32", 16, 128, limit=1000))
    yield _program("prefix_sums", on_values(_prefix_sums), small("f32", 8, 128))
    yield _program("prefix_sums_i32", on_values(_prefix_sums), small("i32", 16, 128))
    yield _program("prefix_sums_of_rows", on_values(_prefix_sums_of_rows), small("f32", 8, 256))
    yield _program("cumulative_by_matmul", on_values(_cumulative_by_matmul), small("f32", 8, 128))
    yield _program("rotary_f32", on_values(_rotary), small("f32", 16, 128))
    yield _program("rotary_bf16", on_values(_rotary), small("bf16", 16, 256))
    yield _program("quantised", on_values(_quantised), uniform("f32", 32, 128, low=-1.2, high=1.2))
    yield _program(
        "dequantised", on_values(_dequantised), integers("i8", 32, 128), small("f32", 32, 1)
    )
    yield _program("hash", on_values(_hash), integers("i32", 16, 128))
    yield _program("butterfly", on_values(_butterfly), small("f32", 8, 128))


# --- attention ---


def _attention(q: Any, k: Any, v: Any) -> Any:
    s = jnp.dot(q, k.T, preferred_element_type=jnp.float32) * 0.125
    p = _softmax(s)
    return jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)


def _causal_attention(q: Any, k: Any, v: Any) -> Any:
    s = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    row = lax.broadcasted_iota(jnp.int32, s.shape, 0)
    column = lax.broadcasted_iota(jnp.int32, s.shape, 1)
    p = _softmax(jnp.where(row >= column, s * 0.125, NEGATIVE))
    return jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)


def _flash(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, m_ref: Any, l_ref: Any) -> None:
    """Softmax over blocks of keys: the maximum so far, the sum so far, the weighted sum so far."""
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _() -> None:
        m_ref[...] = jnp.full_like(m_ref, NEGATIVE)
        l_ref[...] = jnp.zeros_like(l_ref)
        o_ref[...] = jnp.zeros_like(o_ref)

    s = lax.dot_general(
        q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    m = jnp.maximum(m_ref[...], jnp.max(s * 0.125, axis=1, keepdims=True))
    p = jnp.exp(s * 0.125 - m)
    shrink = jnp.exp(m_ref[...] - m)
    l_ref[...] = l_ref[...] * shrink + jnp.sum(p, axis=1, keepdims=True)
    o_ref[...] = o_ref[...] * shrink + jnp.dot(
        p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32
    )
    m_ref[...] = m

    @pl.when(j == pl.num_programs(1) - 1)
    def _() -> None:
        o_ref[...] = o_ref[...] / l_ref[...]


def _online_softmax_sum(x_ref: Any, o_ref: Any, m_ref: Any, l_ref: Any) -> None:
    """log(sum(exp(x))) of each row, block by block."""
    j = pl.program_id(0)

    @pl.when(j == 0)
    def _() -> None:
        m_ref[...] = jnp.full_like(m_ref, NEGATIVE)
        l_ref[...] = jnp.zeros_like(l_ref)

    x = x_ref[...]
    m = jnp.maximum(m_ref[...], jnp.max(x, axis=1, keepdims=True))
    l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + jnp.sum(
        jnp.exp(x - m), axis=1, keepdims=True
    )
    m_ref[...] = m

    @pl.when(j == pl.num_programs(0) - 1)
    def _() -> None:
        o_ref[...] = m_ref[...] + jnp.log(l_ref[...])


def _attentions() -> Iterator[Program]:
    for dtype in ("f32", "bf16"):
        for name, f in (("attention", _attention), ("causal_attention", _causal_attention)):
            # Integers: the scores are exact, and only what follows is rounded.
            yield _program(
                f"{name}_{dtype}",
                on_values(f),
                small(dtype, 16, 128, limit=1),
                small(dtype, 128, 128, limit=1),
                normal(dtype, 128, 128) if dtype == "bf16" else small(dtype, 128, 128, limit=1),
                tolerance=ROUNDED,
            )
        column = pltpu.VMEM((16, 1), jnp.float32)
        yield _program(
            f"flash_attention_{dtype}",
            on_refs(
                _flash,
                struct("f32", 32, 128),
                grid=(2, 2),
                in_specs=[
                    pl.BlockSpec((16, 128), lambda i, j: (i, 0)),
                    pl.BlockSpec((128, 128), lambda i, j: (j, 0)),
                    pl.BlockSpec((128, 128), lambda i, j: (j, 0)),
                ],
                out_specs=pl.BlockSpec((16, 128), lambda i, j: (i, 0)),
                scratch_shapes=[column, column],
            ),
            small(dtype, 32, 128, limit=1),
            small(dtype, 256, 128, limit=1),
            small(dtype, 256, 128, limit=1),
            tolerance=ROUNDED,
        )
    yield _program(
        "online_log_sum_exp",
        on_refs(
            _online_softmax_sum,
            struct("f32", 16, 1),
            grid=(3,),
            in_specs=[pl.BlockSpec((16, 128), lambda j: (0, j))],
            out_specs=pl.BlockSpec((16, 1), lambda j: (0, 0)),
            scratch_shapes=[pltpu.VMEM((16, 1), jnp.float32)] * 2,
        ),
        normal("f32", 16, 384, scale=3),
        tolerance=CHAIN,
    )


# --- along the rows, by a loop or over a grid ---


def _cumulative(x_ref: Any, o_ref: Any) -> None:
    def step(i: Any, total: Any) -> Any:
        total = total + x_ref[pl.ds(i, 1), :]
        o_ref[pl.ds(i, 1), :] = total
        return total

    lax.fori_loop(0, x_ref.shape[0], step, jnp.zeros((1, x_ref.shape[1]), x_ref.dtype))


def _recurrence(a_ref: Any, x_ref: Any, o_ref: Any) -> None:
    """h = a * h + x, row by row."""

    def step(i: Any, h: Any) -> Any:
        h = a_ref[pl.ds(i, 1), :] * h + x_ref[pl.ds(i, 1), :]
        o_ref[pl.ds(i, 1), :] = h
        return h

    lax.fori_loop(0, x_ref.shape[0], step, jnp.zeros((1, x_ref.shape[1]), x_ref.dtype))


def _carried_over_grid(x_ref: Any, o_ref: Any, total_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        total_ref[...] = jnp.zeros_like(total_ref)

    sums = _prefix_sums_of_rows(x_ref[...]) + total_ref[...]
    o_ref[...] = sums
    total_ref[...] = sums[7:8, :]


def _sequences() -> Iterator[Program]:
    for dtype in ("f32", "i32"):
        yield _program(
            f"cumulative_by_loop_{dtype}",
            on_refs(_cumulative, struct(dtype, 24, 128)),
            small(dtype, 24, 128),
        )
        yield _program(
            f"recurrence_{dtype}",
            on_refs(_recurrence, struct(dtype, 16, 128)),
            small(dtype, 16, 128, limit=1),
            small(dtype, 16, 128),
        )
        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        yield _program(
            f"cumulative_over_grid_{dtype}",
            on_refs(
                _carried_over_grid,
                struct(dtype, 32, 128),
                grid=(4,),
                in_specs=[rows],
                out_specs=rows,
                scratch_shapes=[pltpu.VMEM((1, 128), DTYPES[dtype])],
            ),
            small(dtype, 32, 128),
        )


PROGRAMS: tuple[Program, ...] = (
    *_normalisations(),
    *_library(),
    *_exact(),
    *_attentions(),
    *_sequences(),
)
