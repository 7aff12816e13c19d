"""What else a kernel can promise, beyond the values of one call. One module a property.

A kernel claims properties by name (`Kernel.properties`). A new property is a new file here that
defines PROPERTY.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Protocol

from conformance.case import Case, Example, Kernel
from conformance.modes import Call
from conformance.numerics import Reference
from conformance.verdict import Outcome, Use

# What each part of an Outcome must be; None where the contract says nothing of a part.
References = Mapping[str, tuple[Reference, ...] | None]


class Property(Protocol):
    """Something that a kernel promises beside its values.

    Attributes:
      name: as in `Kernel.properties` and `--properties`; no mode has the same.
      chip: the chip it is compiled for; None when it runs in the interpreter. One with a chip
        yields no values: what it is told is COMPILED or a refusal.
      data: whether the verdict depends on the data; where not, one example is enough.
    """

    name: str
    chip: str | None
    data: bool

    def environment(self) -> Mapping[str, str | None]:
        """Environment of the child process; as `Mode.environment`."""

    def unavailable(self, chip: str | None) -> str | None:
        """Why it cannot be tried here, or None."""

    def probe(self) -> str | None:
        """As `unavailable`, asked once in the process that will try it."""

    def lacks(self, case: Case, kernel: Kernel) -> str | None:
        """Why a kernel of a case cannot claim it, or None."""

    def run(self, call: Call) -> Outcome:
        """Tries it on one example: parts, "compiled", or a Failure. What the kernel raises is a
        Failure; anything else may escape."""

    def references(self, case: Case, example: Example) -> References:
        """What each part must be, by its name. Uses NumPy alone."""

    def baseline(self, case: Case, example: Example) -> tuple[Use, ...]:
        """The same of XLA's own code, where that is another question than its values."""


def _discover() -> dict[str, Property]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            one: Property = importlib.import_module(f"{__name__}.{module.name}").PROPERTY
            found[one.name] = one
    return found


PROPERTIES: Mapping[str, Property] = _discover()
