"""What each operation means, grouped by dialect: one small function or table row an operation.

A builder is called once for each operation of a module, with its types and attributes, and
returns the function that runs whenever the operation is reached. Operands arrive as NumPy arrays
(vectors), Python ints and bools or NumPy floats (scalars), and `Ref`s (memrefs).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.emulator.types import Element, MemRef, Scalar, Type, Vector

Function = Callable[..., Any]


class Unknown(Exception):
    """An operation, or a form of one, that the executor does not know; the message names it."""


@dataclass(frozen=True)
class Op:
    """One operation of a module.

    Attributes:
      attributes: MLIR's text of each.
      constant: the value of an `arith.constant`.
    """

    name: str
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    attributes: Mapping[str, str]
    constant: Any = None

    def text(self, name: str) -> str:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise Unknown(f"{self.name} without {name}")
        return self.attributes[name]

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute ("3 : i32")."""
        if name not in self.attributes and default is not None:
            return default
        text = self.text(name).split(":")[0]
        try:
            return int(text)
        except ValueError:
            raise Unknown(f"{self.name} with {name} = {text.strip()}") from None

    def integers(self, name: str) -> tuple[int, ...]:
        """An array attribute ("array<i32: 0, 1>" or "[0, 1]")."""
        text = re.sub(r"array<\w+|: i\d+|: index", "", self.attributes.get(name, ""))
        return tuple(int(n) for n in re.findall(r"-?\d+", text))

    def booleans(self, name: str) -> tuple[bool, ...]:
        """An array of booleans."""
        return tuple(word == "true" for word in re.findall(r"true|false", self.text(name)))

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean attribute."""
        return self.attributes.get(name, str(default).lower()).startswith("true")

    def word(self, name: str) -> str:
        """The value of an enumeration ("#tpu.reduction_kind<sum>")."""
        found = re.search(r"<(\w+)>", self.text(name))
        return found[1] if found else self.text(name)

    def segments(self) -> tuple[int, ...]:
        """How many operands each operand group has."""
        return self.integers("operandSegmentSizes")

    def vector(self, number: int = 0) -> Vector:
        """The type of an operand that must be a vector."""
        found = self.operands[number]
        if not isinstance(found, Vector):
            raise Unknown(f"{self.name} of {found}")
        return found

    def result(self) -> Vector:
        """The type of a result that must be a vector."""
        found = self.results[0]
        if not isinstance(found, Vector):
            raise Unknown(f"{self.name} giving {found}")
        return found

    def memref(self, number: int) -> MemRef:
        """The type of an operand that must be a memref."""
        found = self.operands[number]
        if not isinstance(found, MemRef):
            raise Unknown(f"{self.name} of {found}")
        return found


Builder = Callable[[Op], Function]
BUILDERS: dict[str, Builder] = {}
# Operations whose function takes the running core first: they touch memory or semaphores.
NEEDS_CORE: set[str] = set()


def operation(*names: str, core: bool = False) -> Callable[[Builder], Builder]:
    """Registers the builder of operations."""

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
            if core:
                NEEDS_CORE.add(name)
        return builder

    return register


def elementwise(op: Op, function: Function) -> Function:
    """`function` on arrays, as a function of arrays or of scalars, whichever the operation has."""
    if isinstance(op.results[0], Vector):
        return function
    of = element_of(op.operands[0])
    result = element_of(op.results[0])

    def on_scalars(*values: Any) -> Any:
        return to_scalar(function(*(np.asarray(v).astype(of.dtype) for v in values)), result)

    return on_scalars


def element_of(of: Type) -> Element:
    """The element type of a value."""
    return of.element


def to_scalar(value: Any, of: Element) -> Any:
    """A scalar as values hold it: a bool, a signed int, or a NumPy float."""
    array = np.asarray(value).astype(of.dtype)
    if of.is_float:
        return array[()]
    return bool(array) if of.is_bool else int(array)


@functools.cache
def load_all() -> Mapping[str, Builder]:
    """All builders; imports the modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return BUILDERS


def is_scalar(of: Type) -> bool:
    """Whether a value is a scalar."""
    return isinstance(of, Scalar)
