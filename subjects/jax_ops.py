"""The Pallas TPU kernels that ship with JAX, `jax.experimental.pallas.ops.tpu`.

    pytest -n auto --subject=subjects/jax_ops.py

Each adapter takes a case's arrays, brings them into the library's layout and calls it. What a
kernel refuses by a documented limit is declared (`refuses`), what it gets wrong is recorded in
jax_ops.expectations.toml; docs/subjects.md explains both.
"""

from __future__ import annotations

from jax.experimental.pallas.ops.tpu import matmul as jax_matmul
from jax.experimental.pallas.ops.tpu import megablox

from conformance import Kernel

# ------------------------------------------------------------------ matmul


def matmul(x, y, *, bm, bk, bn):
    """x (m, k) @ y (k, n) in the blocks given, where they divide; else in whole dimensions."""
    (m, k), n = x.shape, y.shape[1]
    bm, bk, bn = (b if size % b == 0 else size for size, b in ((m, bm), (k, bk), (n, bn)))
    return jax_matmul.matmul(x, y, block_shape=(bm, bn), block_k=bk)


def matmul_any_block(x, y, *, bm, bk, bn):
    """x (m, k) @ y (k, n) in the blocks given."""
    return jax_matmul.matmul(x, y, block_shape=(bm, bn), block_k=bk)


# ------------------------------------------------------------------ grouped_matmul


def gmm(lhs, rhs, group_sizes, *, bm, bk, bn):
    """lhs (m, k), rhs (groups, k, n), group_sizes (groups,); the tile of rows must divide m."""
    bm = bm if lhs.shape[0] % bm == 0 else lhs.shape[0]
    return megablox.gmm(lhs, rhs, group_sizes, lhs.dtype, (bm, bk, bn))


def gmm_refuses(example):
    """What `gmm` raises for."""
    wide = example.params["dtype"] in ("float32", "bfloat16")
    return None if wide else "float32 and bfloat16 only"


KERNELS = (
    Kernel(case="matmul", name="matmul", fn=matmul),
    Kernel(case="matmul", name="matmul_any_block", fn=matmul_any_block),
    Kernel(case="grouped_matmul", name="megablox_gmm", fn=gmm, refuses=gmm_refuses),
)
