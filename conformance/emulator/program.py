"""From the text of a Mosaic module to Python functions, one statement an operation.

Straight-line operations become calls of the functions that `ops` builds; regions (`scf`) become
Python's own control flow. A module is built once and run as often as needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.emulator import types
from conformance.emulator.ops import NEEDS_CORE, Op, Unknown, load_all, to_scalar
from conformance.emulator.types import MemRef, Scalar, Type, UnknownType, Vector


@dataclass(frozen=True, kw_only=True)
class Window:
    """How one argument of the body sees an operand.

    Attributes:
      transform: grid indices and scalar-prefetch memrefs -> block indices; None: all of it.
      bounds: the block's shape.
      padding: (low, high) of each dimension, where indices count elements and not blocks.
    """

    transform: Callable[..., tuple[int, ...]] | None
    bounds: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Program:
    """A kernel ready to run.

    Attributes:
      body: (core, *grid indices, *memrefs) -> None.
      arguments: types of the memrefs: scalar prefetch, operands, results, scratch.
      in_hbm: for each of them, whether it is passed where it lies, not copied into VMEM.
      grid: iteration bounds; None for one known at run time only; empty without a grid.
      semantics: "parallel" or "arbitrary"..., one a grid axis.
      prefetch, scratch: how many arguments at either end are such.
      windows: one for each operand and result.
      operations: how many operations it has.
      copies: it has DMAs or semaphores.
    """

    name: str
    body: Callable[..., None]
    arguments: tuple[MemRef, ...]
    in_hbm: tuple[bool, ...]
    grid: tuple[int | None, ...]
    semantics: tuple[str, ...]
    prefetch: int
    scratch: int
    windows: tuple[Window, ...]
    operations: int
    copies: bool


_DYNAMIC = -(2**63)


def build(text: str) -> Program:
    """The program of a module's text, as a pass dumped it.

    Raises:
      Unknown: names the first operation, form or type that the executor does not know.
    """
    from conformance.compiler.dialect import parse

    module = parse(text)
    functions = {_symbol(f): f for f in module.body.operations}
    main = _main(functions)
    attributes = _texts(main)
    emitted = {name: _Function(f) for name, f in functions.items()}
    body = emitted[_symbol(main)]
    grid = tuple(
        None if n == _DYNAMIC else n for n in _integers(attributes.get("iteration_bounds"))
    )
    arguments = tuple(t for t in body.arguments if isinstance(t, MemRef))
    prefetch, scratch = (
        _count(attributes, "scalar_prefetch"),
        _count(attributes, "scratch_operands"),
    )
    calls = {name: function.function for name, function in emitted.items()}
    for function in emitted.values():
        function.link(calls)
    return Program(
        name=_symbol(main),
        body=body.function,
        arguments=arguments,
        in_hbm=tuple(_in_hbm(main, body.arguments)),
        grid=grid,
        semantics=tuple(
            re.findall(r"dimension_semantics<(\w+)>", str(attributes.get("dimension_semantics")))
        ),
        prefetch=prefetch,
        scratch=scratch,
        windows=tuple(_windows(main, calls, len(arguments) - prefetch - scratch)),
        operations=sum(f.operations for f in emitted.values()),
        copies=any(f.copies for f in emitted.values()),
    )


def _symbol(function: Any) -> str:
    return str(function.attributes["sym_name"]).strip('"')


def _texts(operation: Any) -> dict[str, str]:
    return {a.name: str(a.attr) for a in _attributes(operation)}


def _attributes(operation: Any) -> Iterator[Any]:
    """Attributes as (name, attr); newer bindings iterate over names."""
    found = operation.attributes
    for n in range(len(found)):
        yield found[n]


def _integers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    return tuple(int(n) for n in re.findall(r"-?\d+", re.sub(r"array<\w+", "", text)))


def _count(attributes: dict[str, str], name: str) -> int:
    return int(attributes.get(name, "0").split(":")[0])


def _main(functions: dict[str, Any]) -> Any:
    for function in functions.values():
        if "tpu.main" in function.attributes:
            return function
    for name, function in functions.items():
        if "scalar_prefetch" in function.attributes or name == "main":
            return function
    raise Unknown("a module without a main function")


def _in_hbm(main: Any, arguments: tuple[Type, ...]) -> Iterator[bool]:
    """Later passes say VMEM of what was left open, and mark it."""
    marks: list[str] = []
    if "arg_attrs" in main.attributes:
        marks = [str(a) for a in main.attributes["arg_attrs"]]
    for number, argument in enumerate(arguments):
        if isinstance(argument, MemRef):
            marked = bool(marks) and "unspecified_memory_space" in marks[number]
            yield marked or argument.space in ("any", "hbm")


_TRANSFORM = re.compile(r"transform_indices = @(\w+)")
_BOUNDS = re.compile(r"window_bounds = array<i64: ([\d, ]*)>")
_ELEMENTS = re.compile(r"element_window<\[([\d, ]*)\], ?\[([\d, ]*)\]>")


def _windows(main: Any, calls: dict[str, Any], count: int) -> Iterator[Window]:
    if "window_params" not in main.attributes:
        yield from (Window(transform=None, bounds=()) for _ in range(count))
        return
    for text in (str(w) for w in main.attributes["window_params"]):
        transform, bounds = _TRANSFORM.search(text), _BOUNDS.search(text)
        if transform is None or bounds is None:
            yield Window(transform=None, bounds=())
            continue
        elements = _ELEMENTS.search(text)
        padding = None
        if elements:
            padding = tuple(zip(_integers(elements[1]), _integers(elements[2]), strict=True))
        yield Window(transform=calls[transform[1]], bounds=_integers(bounds[1]), padding=padding)


# --------------------------------------------------------------------------- emission

_COPIES = ("dma", "sem_")


class _Function:
    """One function of the module as Python source, and what its statements call."""

    def __init__(self, function: Any) -> None:
        self._names: dict[Any, str] = {}
        self._lines: list[str] = []
        self._scope: dict[str, Any] = {}
        self.operations = 0
        self.copies = False
        self._function: Callable[..., Any] | None = None
        self._symbol = _symbol(function)
        block = function.regions[0].blocks[0]
        try:
            self.arguments = tuple(_type(a.type) for a in block.arguments)
        except UnknownType as e:
            raise Unknown(f"{e}, an argument of {self._symbol}") from e
        parameters = ", ".join(["core", *(self._name(a) for a in block.arguments)])
        self._lines.append(f"def function({parameters}):")
        self._block(block, 1, None)

    @property
    def function(self) -> Callable[..., Any]:
        """The compiled function."""
        if self._function is None:
            source = "\n".join([*self._lines, "    pass"])
            exec(compile(source, f"<{self._symbol}>", "exec"), self._scope)
            self._function = self._scope["function"]
        return self._function

    def link(self, calls: dict[str, Any]) -> None:
        """Makes the module's functions callable by name."""
        self._scope |= {f"call_{name}": function for name, function in calls.items()}

    def _name(self, value: Any) -> str:
        """A Python name for an SSA value; values are equal, and hash, by identity."""
        if value not in self._names:
            self._names[value] = f"v{len(self._names)}"
        return self._names[value]

    def _emit(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def _block(self, block: Any, depth: int, yields: list[str] | None) -> None:
        """All operations of a block; its results are assigned to the names in `yields`."""
        before = len(self._lines)
        for operation in block.operations:
            self._operation(operation, depth, yields)
        if len(self._lines) == before:
            self._emit(depth, "pass")

    def _operation(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        name = operation.operation.name
        self.operations += 1
        special = getattr(self, f"_{name.replace('.', '_')}", None)
        if special is not None:
            special(operation.operation, depth, yields)
            return
        self._plain(operation.operation, depth)

    def _plain(self, operation: Any, depth: int) -> None:
        op = _op(operation)
        self.copies |= op.name.startswith("tpu.") and any(word in op.name for word in _COPIES)
        builders = load_all()
        if op.name not in builders:
            raise Unknown(f"{op.name} in {self._symbol}")
        results = [self._name(r) for r in operation.results]
        key = f"f{self.operations}"
        try:
            function = builders[op.name](op)
        except Unknown as e:
            raise Unknown(f"{e} in {self._symbol}") from e
        if op.name == "arith.constant":
            self._scope[results[0]] = function()  # a global: nothing to run
            return
        self._scope[key] = function
        arguments = [self._name(v) for v in operation.operands]
        if op.name in NEEDS_CORE:
            arguments.insert(0, "core")
        call = f"{key}({', '.join(arguments)})"
        self._emit(depth, f"{', '.join(results)} = {call}" if results else call)

    # Control flow. Names of methods are names of operations.

    def _func_return(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        values = "".join(f"{self._name(v)}, " for v in operation.operands)
        self._emit(depth, f"return ({values})")

    def _scf_yield(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        if operation.operands:
            values = ", ".join(self._name(v) for v in operation.operands)
            self._emit(depth, f"{', '.join(yields or ())} = {values}")

    _tpu_yield = _scf_yield

    def _scf_if(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        results = [self._name(r) for r in operation.results]
        self._emit(depth, f"if {self._name(operation.operands[0])}:")
        for number, region in enumerate(operation.regions):
            if len(region.blocks):
                if number:
                    self._emit(depth, "else:")
                self._block(region.blocks[0], depth + 1, results)

    def _scf_for(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        low, high, step, *start = (self._name(v) for v in operation.operands)
        block = operation.regions[0].blocks[0]
        index, *carried = (self._name(a) for a in block.arguments)
        if carried:
            self._emit(depth, f"{', '.join(carried)} = {', '.join(start)}")
        self._emit(depth, f"for {index} in range({low}, {high}, {step}):")
        self._block(block, depth + 1, carried)
        self._assign(depth, [self._name(r) for r in operation.results], carried)

    def _scf_while(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        before, after = (region.blocks[0] for region in operation.regions)
        inside = [self._name(a) for a in before.arguments]
        outside = [self._name(a) for a in after.arguments]
        self._assign(depth, inside, [self._name(v) for v in operation.operands])
        self._emit(depth, "while True:")
        condition = before.operations[len(before.operations) - 1].operation
        self._block(before, depth + 1, None)
        test, *values = (self._name(v) for v in condition.operands)
        self._assign(depth + 1, outside, values)
        self._emit(depth + 1, f"if not {test}:")
        self._emit(depth + 2, "break")
        self._block(after, depth + 1, inside)
        self._assign(depth, [self._name(r) for r in operation.results], outside)

    def _scf_condition(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        """Handled by the loop that it belongs to."""

    def _tpu_region(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        self._block(
            operation.regions[0].blocks[0], depth, [self._name(r) for r in operation.results]
        )

    _tpu_trace = _tpu_region

    def _func_call(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        callee = str(operation.attributes["callee"]).lstrip("@")
        arguments = ", ".join(["core", *(self._name(v) for v in operation.operands)])
        results = "".join(f"{self._name(r)}, " for r in operation.results)
        call = f"call_{callee}({arguments})"
        self._emit(depth, f"{results}= {call}" if results else call)

    def _scf_index_switch(self, operation: Any, depth: int, yields: list[str] | None) -> None:
        cases = _integers(str(operation.attributes["cases"]))
        results = [self._name(r) for r in operation.results]
        value = self._name(operation.operands[0])
        default, *regions = operation.regions
        for number, (case, region) in enumerate(zip(cases, regions, strict=True)):
            self._emit(depth, f"{'elif' if number else 'if'} {value} == {case}:")
            self._block(region.blocks[0], depth + 1, results)
        self._emit(depth, "else:" if cases else "if True:")
        self._block(default.blocks[0], depth + 1, results)

    def _assign(self, depth: int, targets: list[str], values: list[str]) -> None:
        if targets:
            self._emit(depth, f"{', '.join(targets)} = {', '.join(values)}")


def _op(operation: Any) -> Op:
    """The operation with what its builder needs."""
    try:
        constant = _constant(operation) if operation.name == "arith.constant" else None
        return Op(
            name=operation.name,
            operands=tuple(_type(v.type) for v in operation.operands),
            results=tuple(_type(r.type) for r in operation.results),
            attributes=_texts(operation),
            constant=constant,
        )
    except UnknownType as e:
        raise Unknown(f"{operation.name} with {e}") from e


def _type(of: Any) -> Type:
    return types.parse(str(of))


def _constant(operation: Any) -> Any:
    """A scalar, or a read-only array."""
    value, of = operation.attributes["value"], _type(operation.results[0].type)
    if isinstance(of, Vector):
        array = _dense(value, of)
        array.setflags(write=False)
        return array
    assert isinstance(of, Scalar)
    text = str(value)
    if of.element.is_bool:
        return text.startswith("true") or text.startswith("1 ")
    return to_scalar(_number(text.split(" : ")[0], of), of.element)


def _number(text: str, of: Scalar | Vector) -> Any:
    """A number as MLIR prints it; floats that decimals cannot say are printed as their bits."""
    if text in ("true", "false"):
        return text == "true"
    if not of.element.is_float:
        return np.asarray(int(text, 0)).astype(np.int64).astype(of.element.dtype)
    if text.startswith("0x"):
        raw = np.asarray(int(text, 16), f"u{of.element.dtype.itemsize}")
        return raw.view(of.element.dtype)
    return np.asarray(float(text)).astype(np.float32).astype(of.element.dtype)


def _dense(value: Any, of: Vector) -> np.ndarray:
    """The elements of "dense<...>"."""
    text = str(value)
    if not text.startswith("dense<"):
        raise Unknown(f"arith.constant {text[:40]}")
    body = text[text.index("<") + 1 : text.rindex("> : ")]
    if body.startswith('"0x'):
        return _of_bytes(bytes.fromhex(body.strip('"')[2:]), of)
    if not body.startswith("["):
        return np.full(of.shape, _number(body, of), of.element.dtype)
    numbers = [_number(t, of) for t in re.findall(r"[^\[\],\s]+", body)]
    return np.array(numbers, of.element.dtype).reshape(of.shape)


def _of_bytes(raw: bytes, of: Vector) -> np.ndarray:
    """Many elements, as MLIR keeps them: an index in 8 bytes, eight booleans in one."""
    if of.element.is_bool:
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
        return bits[: int(np.prod(of.shape))].astype(np.bool_).reshape(of.shape)
    stored = np.dtype(np.int64) if of.element.name == "index" else of.element.dtype
    return np.frombuffer(raw, stored).astype(of.element.dtype).reshape(of.shape)
