"""Tokamax's own promises about implementations: what must fall back, and what must raise."""

from __future__ import annotations

import pytest

tokamax = pytest.importorskip("tokamax")
jnp = pytest.importorskip("jax.numpy")

X, ROW = jnp.ones((16, 128)), jnp.ones(128)
Q = jnp.ones((1, 128, 2, 64))
LABELS = jnp.zeros(16, jnp.int32)


def ragged_dot(implementation):
    sizes = jnp.array([16], jnp.int32)
    return tokamax.ragged_dot(X, jnp.ones((1, 128, 128)), sizes, implementation=implementation)


def attention(implementation):
    return tokamax.dot_product_attention(Q, Q, Q, implementation=implementation)


def layer_norm(implementation):
    return tokamax.layer_norm(X, ROW, ROW, implementation=implementation)


def gated_linear_unit(implementation):
    return tokamax.gated_linear_unit(X, jnp.ones((128, 2, 128)), implementation=implementation)


def loss(implementation):
    weights = jnp.ones((128, 256))
    return tokamax.linear_softmax_cross_entropy_loss(
        X, LABELS, weights, implementation=implementation
    )


FUNCTIONS = (ragged_dot, attention, layer_norm, gated_linear_unit, loss)
ELSEWHERE = (
    (ragged_dot, "mosaic"),
    (ragged_dot, "mosaic_gpu"),
    (ragged_dot, "triton"),
    (attention, "mosaic"),
    (attention, "mosaic_gpu"),
    (attention, "triton"),
    (attention, "cudnn"),
    (layer_norm, "triton"),
    (gated_linear_unit, "mosaic"),
    (gated_linear_unit, "triton"),
    (loss, "mosaic_tpu"),
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_default_falls_back_where_there_is_no_accelerator(function):
    assert jnp.isfinite(function(None)).all()
    assert (function(None) == function("xla")).all()


@pytest.mark.parametrize("function, implementation", ELSEWHERE)
def test_an_implementation_for_another_machine_raises(function, implementation):
    with pytest.raises((NotImplementedError, ValueError, ExceptionGroup)):
        function(implementation)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_unknown_implementation_raises(function):
    with pytest.raises(ValueError, match="no-such"):
        function("no-such")
