"""One program of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Program:
    """A small Pallas program, its inputs, and how its results are judged.

    Attributes:
      name: folder (the module it is written in), slash, what it does. Unique.
      fn: arrays to an array or a tuple; calls `pl.pallas_call` while it runs.
      make: a generator to the arrays. Same state, same arrays.
      exact: a comparison bit for bit is fair (NaN payloads aside): data movement, integers,
        floats whose operations round once or not at all.
      tolerance: otherwise, the error relative to the expected value or to 1, whichever is larger.
      expected: NumPy oracle, arrays to results. None: the HLO interpreter is the reference.
      refused: chips among v4, v5e, v6e and tpu7x whose compiler refuses it.
      newest: needs a jax newer than 0.10.2.
    """

    name: str
    fn: Callable[..., Any]
    make: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    exact: bool = True
    tolerance: float = 0.0
    expected: Callable[..., Any] | None = None
    refused: tuple[str, ...] = ()
    newest: bool = False
