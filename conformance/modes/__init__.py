"""One module a mode. A new mode is a new file here that defines MODE."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.case import Arrays, Case, Example, Kernel
from conformance.numerics import Arithmetic
from conformance.verdict import Outcome


@dataclass(frozen=True, kw_only=True)
class Call:
    """A kernel bound to one example.

    Attributes:
      arrays: the raw arrays, before `prepare`.
    """

    case: Case
    kernel: Kernel
    example: Example
    arrays: Arrays

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `fn` and `prepare`; blocks only where `fn` names them."""
        accepted = _accepted(self.kernel.fn)
        options = {}
        for name, param in self.case.params.items():
            wanted = param.passed or (
                param.kind == "block" and (accepted is None or name in accepted)
            )
            if wanted and name in self.example.params:
                options[name] = self.example.params[name]
        return options

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls that compile to the same program: same kernel, parameters, shapes."""
        shapes = tuple((a.shape, a.dtype.name) for a in self.arrays)
        kernel = (self.kernel.case, self.kernel.name, id(self.kernel.fn))
        return (*kernel, tuple(self.example.params.items()), shapes)


def _accepted(fn: Any) -> set[str] | None:
    """Names of the keyword parameters of `fn`; None when it takes any."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


class Mode(Protocol):
    """A way to execute or examine a kernel.

    Attributes:
      name: of the mode, as in `--mode`.
      arithmetic: how it computes, for the bounds.
      chips: names of the chips it knows; empty when it has no notion of one.
      default_chips: those used when `--chip` is not given.
      default: whether a plain run includes it.
      phases: the phases whose negative examples it can judge.
      in_process: runs in the pytest process (hardware); otherwise in a child process.
      values: whether it yields values to judge. A mode without them judges each point of a
        domain once, whatever the distributions, and checks `Kernel.unsupported`.
      xla: whether it says something about a function without a Pallas kernel.
    """

    name: str
    arithmetic: Arithmetic
    chips: tuple[str, ...]
    default_chips: tuple[str, ...]
    default: bool
    phases: frozenset[str]
    in_process: bool
    values: bool
    xla: bool

    def environment(self) -> Mapping[str, str | None]:
        """Environment of the child process; modes with equal environments share one."""

    def unavailable(self, chip: str | None) -> str | None:
        """Why it cannot run here, or None."""

    def probe(self) -> str | None:
        """As `unavailable`, asked once in the process that will run it; may take a second."""

    def run(self, call: Call, chip: str | None) -> Outcome:
        """Runs one call. What the kernel raises is a Failure; anything else may escape."""


def _discover() -> dict[str, Mode]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            mode: Mode = importlib.import_module(f"{__name__}.{module.name}").MODE
            found[mode.name] = mode
    return found


MODES: Mapping[str, Mode] = _discover()
