"""Tokamax (https://github.com/openxla/tokamax): every implementation that can run on a TPU.

    pytest -n auto --subject=subjects/tokamax_ops.py

"mosaic" kernels are Pallas; "xla", "chunked" and "default" (Tokamax chooses, and falls back where
there is no TPU) are judged as plain XLA. Tokamax asks the machine what it may run: the adapters
tell it that it compiles for another (`cross_compile`), and which one. docs/subjects.md says more.
"""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import tokamax
from jax.sharding import AbstractDevice, AbstractMesh
from tokamax._src.ops.ragged_dot import pallas_mosaic_tpu as ragged

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


def on_tpu(function):
    """`function` as if on a TPU."""

    @functools.wraps(function, assigned=("__doc__",))
    def called(*args, **kwargs):
        with _chip():
            return function(*args, **kwargs)

    return called


def divisor(block, size):
    """A block that divides, as callers have to choose it: the one given or all of it."""
    return block if size % block == 0 else size


# ------------------------------------------------------------------ grouped_matmul


def ragged_dot(implementation, lhs, rhs, group_sizes):
    """lhs (m, k), rhs (groups, k, n), group_sizes (groups,); int8 is accumulated in int32."""
    result = jnp.int32 if lhs.dtype == jnp.int8 else lhs.dtype
    return tokamax.ragged_dot(
        lhs, rhs, group_sizes, preferred_element_type=result, implementation=implementation
    )


@on_tpu
def ragged_dot_mosaic(lhs, rhs, group_sizes, *, bm, bk, bn):
    """As `ragged_dot`, in tiles (bm, bk, bn)."""
    tiles = ragged.Config(tile_m=divisor(bm, lhs.shape[0]), tile_k=bk, tile_n=bn)
    return ragged_dot([ragged.PallasMosaicTpuRaggedDot(config=tiles)], lhs, rhs, group_sizes)


def ragged_dot_mosaic_refuses(example):
    """ "mosaic" wants at least 128 of everything."""
    small = [d for d in ("m", "k", "n") if example.params[d] < 128]
    return f"{', '.join(small)} below 128" if small else None


@on_tpu
def ragged_dot_mosaic_v2(lhs, rhs, group_sizes):
    """As `ragged_dot`, in the tiles that the kernel chooses."""
    return ragged_dot("mosaic_tpu_v2", lhs, rhs, group_sizes)


# ------------------------------------------------------------------ norms, gates, losses


def layer_norm(implementation, x, scale, offset):
    """x (m, n), scale and offset (n,)."""
    return tokamax.layer_norm(x, scale, offset, implementation=implementation)


def rms_norm(implementation, x, scale):
    """x (m, n), scale (n,)."""
    return tokamax.layer_norm(x, scale, None, subtract_mean=False, implementation=implementation)


ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "identity": None,
}


def gated_linear_unit(implementation, x, weights, *, activation):
    """x (m, k), weights (k, 2, n)."""
    return tokamax.gated_linear_unit(
        x, weights, activation=ACTIVATIONS[activation], implementation=implementation
    )


def loss(implementation, x, labels, weights, *, reduction):
    """x (b, h), labels (b,), weights (h, v)."""
    return tokamax.linear_softmax_cross_entropy_loss(
        x, labels, weights, reduction=reduction, implementation=implementation
    )


@on_tpu
def loss_mosaic(x, labels, weights, *, reduction):
    """As `loss`, in the blocks that the kernel chooses."""
    return loss("mosaic_tpu", x, labels, weights, reduction=reduction)


def loss_mosaic_refuses(example):
    """ "mosaic_tpu" wants features in whole sublanes."""
    h = example.params["h"]
    return f"{h} features, no multiple of 8" if h % 8 else None


# ------------------------------------------------------------------ attention


def attention(implementation, q, k, v, *, mask, scale, window):
    """q (b, h, t, d), k and v (b, hkv, s, d); Tokamax has positions before heads."""
    result = tokamax.dot_product_attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)),
        scale=scale,
        is_causal=mask == "causal",
        local_window_size=(window, 0) if mask == "local" else None,
        implementation=implementation,
    )
    return result.swapaxes(1, 2)


def attention_masked(implementation, q, k, v, mask, *, scale):
    """As `attention`, with a mask (b, t, s)."""
    result = tokamax.dot_product_attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)),
        mask=mask[:, None],
        scale=scale,
        implementation=implementation,
    )
    return result.swapaxes(1, 2)


def attention_mosaic_refuses(example):
    """ "mosaic" knows no window, and chooses blocks of 128 whatever the lengths."""
    p = example.params
    if p["mask"] == "local":
        return "no local mask"
    return "lengths must be multiples of 128" if p["t"] % 128 or p["s"] % 128 else None


# ------------------------------------------------------------------ the rows


def fallbacks(case, function, *implementations):
    """Rows for the implementations that are plain XLA."""
    return tuple(
        Kernel(
            case=case,
            name=implementation or "default",
            fn=functools.partial(function, implementation),
            pallas=False,
        )
        for implementation in implementations
    )


KERNELS = (
    Kernel(
        case="grouped_matmul",
        name="mosaic",
        fn=ragged_dot_mosaic,
        refuses=ragged_dot_mosaic_refuses,
    ),
    Kernel(case="grouped_matmul", name="mosaic_v2", fn=ragged_dot_mosaic_v2),
    *fallbacks("grouped_matmul", ragged_dot, "xla", None),
    *fallbacks("layer_norm", layer_norm, "xla", None),
    *fallbacks("rms_norm", rms_norm, "xla", None),
    *fallbacks("gated_linear_unit", gated_linear_unit, "xla", None),
    Kernel(
        case="linear_softmax_cross_entropy",
        name="mosaic",
        fn=loss_mosaic,
        refuses=loss_mosaic_refuses,
    ),
    *fallbacks("linear_softmax_cross_entropy", loss, "xla", "chunked_xla", None),
    Kernel(
        case="attention",
        name="mosaic",
        fn=on_tpu(functools.partial(attention, "mosaic")),
        refuses=attention_mosaic_refuses,
    ),
    *fallbacks("attention", attention, "xla", "xla_chunked", None),
    Kernel(
        case="attention_masked",
        name="mosaic",
        fn=on_tpu(functools.partial(attention_masked, "mosaic")),
        refuses=attention_mosaic_refuses,
    ),
    *fallbacks("attention_masked", attention_masked, "xla", "xla_chunked", None),
)
