"""Counts how often a pipelined kernel fetches a block of each operand.

Pallas' pipeline fetches an operand's block when its index differs from that of the previous
grid step. The simulator tells which grid points it visits; the index maps, evaluated at those
points with the scalar-prefetch values of the run, tell which block each needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


class Counter:
    """Records grid points and counts the block changes of a pallas_call's inputs."""

    def __init__(self, operands: tuple[str, ...]) -> None:
        """Args:
        operands: names of the call's blocked inputs, in order; unnamed ones get numbers.
        """
        self._operands = operands
        self._points: set[tuple[int, ...]] = set()
        self._maps: list[Any] = []
        self._prefetched: tuple[int, ...] = ()

    def record(self, token: Any, point: tuple[Any, ...], core: Any) -> Any:
        """The simulator's `grid_point_recorder`; the token orders its callbacks."""
        self._points.add(tuple(int(i) for i in point))
        return token

    def start(self) -> None:
        """Forgets the points of the last run."""
        self._points.clear()

    def watch(self, pallas_call: Mapping[str, Any], prefetched: tuple[int, ...]) -> None:
        """Takes the index maps of a traced call.

        Args:
          pallas_call: parameters of its equation.
          prefetched: which of `fn`'s arguments its scalar-prefetch operands are.
        """
        grid = pallas_call["grid_mapping"]
        self._prefetched = prefetched
        inputs = grid.block_mappings[: grid.num_inputs]
        self._maps = [_vectorised(mapping) for mapping in inputs]

    def fetches(self, args: tuple[Any, ...]) -> dict[str, int]:
        """Fetches by operand, in grid order on one core, for `fn`'s arguments."""
        points = np.array(sorted(self._points), np.int32)
        if points.size == 0:
            return dict.fromkeys(self._names(), 0)
        prefetch = tuple(args[position] for position in self._prefetched)
        columns = tuple(points[:, axis] for axis in range(points.shape[1]))
        return {
            name: _changes(np.stack(index_map(columns, prefetch), axis=1))
            for name, index_map in zip(self._names(), self._maps, strict=True)
        }

    def _names(self) -> list[str]:
        numbers = map(str, range(len(self._operands), len(self._maps)))
        return [*self._operands[: len(self._maps)], *numbers]


def _vectorised(mapping: Any) -> Any:
    def starts(point: tuple[Any, ...], prefetch: tuple[Any, ...]) -> tuple[Any, ...]:
        indices = mapping.compute_start_indices_interpret(point, *prefetch)
        return tuple(map(jax.numpy.asarray, indices))

    return jax.jit(jax.vmap(starts, in_axes=(0, None)))


def _changes(indices: np.ndarray) -> int:
    """One fetch at the first step, one at every change after it."""
    return 1 + int(np.any(indices[1:] != indices[:-1], axis=1).sum())
