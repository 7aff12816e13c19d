"""Running a program over its grid: what the chip's pipeline does around the kernel's body.

Blocks are fetched when their index changes and results written back when theirs does, and at the
end. What lies outside of an array at a ragged edge is undefined, and so is a result's block until
the kernel writes it, and all scratch memory at the start.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.emulator.dma import Dma
from conformance.emulator.memory import (
    POISON_FINITE,
    POISON_NAN,
    Buffer,
    OutOfBounds,
    Ref,
    allocate,
    from_bits,
)
from conformance.emulator.ops.arith import wrap
from conformance.emulator.program import Program, Window
from conformance.emulator.types import Element, MemRef, Vector

Point = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the chip leaves open, and a kernel may not depend on.

    Attributes:
      poison: what undefined words hold.
      late_copies: DMAs happen at the wait for them rather than at their start.
      early_fetch: a block is fetched during the step before its own, and before what an even
        earlier step has made is written back.
      own_cores: every point of the `parallel` axes runs on a core of its own, the last one first.
    """

    poison: tuple[int, ...] = POISON_NAN
    late_copies: bool = False
    early_fetch: bool = False
    own_cores: bool = False


PLAIN = Conditions()
HARSH = Conditions(poison=POISON_FINITE, late_copies=True, early_fetch=True, own_cores=True)


class LeftOver(Exception):
    """A kernel ended with a DMA nobody waited for, or a semaphore that is not 0."""


def run(
    program: Program,
    operands: Sequence[np.ndarray],
    results: Sequence[tuple[tuple[int, ...], np.dtype]],
    aliases: Mapping[int, int],
    conditions: Conditions,
) -> tuple[np.ndarray, ...]:
    """Executes a program once.

    Args:
      operands: dynamic grid bounds, scalar prefetch and inputs, as given to the call.
      results: shape and dtype of each.
      aliases: input (not counting dynamic grid bounds) -> result that shares its memory.

    Raises:
      OutOfBounds, Hang, LeftOver: what a kernel must not do.
    """
    dynamic = sum(n is None for n in program.grid)
    sizes = iter(int(np.asarray(n).reshape(())) for n in operands[:dynamic])
    grid = tuple(next(sizes) if n is None else n for n in program.grid)
    call = _Call(program, operands[dynamic:], results, aliases, conditions)
    with np.errstate(all="ignore"):
        for points in _cores(program, grid, conditions):
            call.run_core(points, grid)
    return call.results()


def _cores(program: Program, grid: Point, conditions: Conditions) -> Iterator[list[Point]]:
    """The grid points of each core, in the order in which it walks them."""
    points = itertools.product(*(range(n) for n in grid))
    parallel = [d for d, s in enumerate(program.semantics) if "parallel" in s and d < len(grid)]
    if not (conditions.own_cores and parallel):
        yield list(points)
        return
    groups: dict[Point, list[Point]] = {}
    for point in points:
        groups.setdefault(tuple(point[d] for d in parallel), []).append(point)
    yield from reversed(list(groups.values()))


class Core:
    """One core while it runs: what operations that touch memory are given.

    Attributes:
      bounds: of the grid.
      dma: its DMA engine.
      slices: memrefs made of memrefs, kept for their address tables.
      poison: what undefined words hold.
    """

    def __init__(self, bounds: Point, conditions: Conditions) -> None:
        self.bounds = bounds
        self.dma = Dma(conditions.late_copies)
        self.slices: dict[Any, tuple[Ref, Ref]] = {}
        self.poison = conditions.poison
        self._scratch: Buffer | None = None
        self._undefined: dict[Vector, np.ndarray] = {}

    def undefined(self, of: Vector) -> np.ndarray:
        """A vector that nothing has set."""
        if of not in self._undefined:
            self._undefined[of] = _undefined(of, self.poison)
        return self._undefined[of]

    def allocate(self, of: MemRef, shape: Point) -> Ref:
        """Uninitialised memory, or semaphores at 0."""
        if of.semaphore:
            return self.dma.semaphores(of, shape)
        return allocate(of, shape, self.poison)

    def scratch(self, of: MemRef) -> Ref:
        """The compiler's own scratch memory under some type."""
        fresh = allocate(of, _static(of), self.poison)
        if self._scratch is None or len(self._scratch.words) < len(fresh.buffer.words):
            self._scratch = fresh.buffer
        fresh.buffer = self._scratch
        return fresh


def _undefined(of: Vector, poison: Sequence[int]) -> np.ndarray:
    count = int(np.prod(of.shape))
    if of.element.is_bool:
        return np.full(of.shape, bool(poison[-1]))
    words = Buffer(-(-count * of.element.bits // 32) + 1, poison).words
    if of.element.bits < 8:
        raw = words.view(np.uint8).repeat(8 // of.element.bits)[:count]
        return from_bits(raw & ((1 << of.element.bits) - 1), of.element).reshape(of.shape)
    return words.view(of.element.dtype)[:count].reshape(of.shape).copy()


def _static(of: MemRef) -> Point:
    return tuple(n or 0 for n in of.shape)


class _Array:
    """An operand or a result in HBM: a plain array, or memory that the kernel itself addresses."""

    def __init__(self, array: np.ndarray, element: Element) -> None:
        self.array = array
        self.element = element
        self.ref: Ref | None = None

    def as_ref(self, of: MemRef, poison: Sequence[int]) -> Ref:
        """Its memory under the layout that the kernel sees."""
        if self.ref is None:
            self.ref = allocate(of, self.array.shape, poison)
            self.ref.write(self.array)
        return self.ref

    def read(self, box: tuple[slice, ...]) -> np.ndarray:
        return self._now()[box]

    def write(self, box: tuple[slice, ...], value: np.ndarray) -> None:
        if self.ref is not None:
            starts = tuple(s.start for s in box)
            self.ref.write(value, starts)
        else:
            self.array[box] = value

    def whole(self) -> np.ndarray:
        return self._now()

    def _now(self) -> np.ndarray:
        return self.array if self.ref is None else self.ref.read()


class _Call:
    """One execution: operands and results in HBM, and the cores that run one after the other."""

    def __init__(
        self,
        program: Program,
        operands: Sequence[np.ndarray],
        results: Sequence[tuple[tuple[int, ...], np.dtype]],
        aliases: Mapping[int, int],
        conditions: Conditions,
    ) -> None:
        self._program, self._conditions = program, conditions
        self._results = results
        self._prefetch = [np.asarray(a) for a in operands[: program.prefetch]]
        inputs = operands[program.prefetch :]
        types = program.arguments[program.prefetch :]
        self._arrays = [
            _Array(_stored(a, t.element), t.element)
            for a, t in zip(inputs, types[: len(inputs)], strict=True)
        ]
        of = {result: number - program.prefetch for number, result in aliases.items()}
        for number, (shape, _) in enumerate(results):
            if number in of:
                self._arrays.append(self._arrays[of[number]])
                self._arrays[of[number]].array = self._arrays[of[number]].array.copy()
            else:
                element = types[len(inputs) + number].element
                blank = _undefined(Vector(element, shape), conditions.poison)
                self._arrays.append(_Array(blank, element))
        self._inputs = len(inputs)
        self._types = types[: len(self._arrays)]
        self._in_hbm = program.in_hbm[program.prefetch :][: len(self._arrays)]

    def run_core(self, points: list[Point], grid: Point) -> None:
        """One core walks its points."""
        core = Core(grid, self._conditions)
        fixed = [self._prefetched(core, n) for n in range(self._program.prefetch)]
        windows = [self._window(core, n, fixed) for n in range(len(self._arrays))]
        count = self._program.scratch
        scratch = [core.allocate(t, _static(t)) for t in self._program.arguments[-count:] if count]
        refs = [*fixed, *(w.ref for w in windows), *scratch]
        inputs, outputs = windows[: self._inputs], windows[self._inputs :]
        for number, point in enumerate(points):
            for window in inputs:
                window.fetch(point)
            if self._conditions.early_fetch and number + 1 < len(points):
                for window in inputs:  # while what the step before has made is on its way
                    window.look_ahead(points[number + 1])
            for window in outputs:
                window.begin(point)
            self._program.body(core, *point, *refs)
        for window in outputs:
            window.flush()
        left = core.dma.left_over()
        if left:
            raise LeftOver(left)

    def _prefetched(self, core: Core, number: int) -> Ref:
        of = self._program.arguments[number]
        ref = core.allocate(of, _static(of))
        ref.write(_stored(self._prefetch[number], of.element))
        return ref

    def _window(self, core: Core, number: int, fixed: list[Ref]) -> _Window:
        of, array = self._types[number], self._arrays[number]
        if self._in_hbm[number]:
            return _Window(array.as_ref(of, self._conditions.poison), array, None, core, fixed)
        how = self._program.windows[number]
        if how.transform is None:
            how = Window(transform=None, bounds=array.array.shape)
        return _Window(core.allocate(of, _static(of)), array, how, core, fixed)

    def results(self) -> tuple[np.ndarray, ...]:
        """What the results hold now, in the types that JAX knows."""
        arrays = self._arrays[self._inputs :]
        return tuple(
            _loaded(a.whole(), dtype) for a, (_, dtype) in zip(arrays, self._results, strict=True)
        )


class _Window:
    """A block of an array in VMEM or SMEM; or, without `how`, the array itself."""

    def __init__(
        self, ref: Ref, array: _Array, how: Window | None, core: Core, fixed: list[Ref]
    ) -> None:
        self.ref = ref
        self._array, self._how, self._core, self._fixed = array, how, core, fixed
        self._index: Point | None = None
        self._ahead: tuple[Point, np.ndarray] | None = None
        self.poison = core.poison

    def _block(self, point: Point) -> Point:
        assert self._how is not None
        if self._how.transform is None:
            return (0,) * len(self._how.bounds)
        return tuple(self._how.transform(self._core, *point, *self._fixed))

    def fetch(self, point: Point) -> None:
        """Fetches the block of a point when it is another one."""
        if self._how is None or (index := self._block(point)) == self._index:
            return
        if self._ahead is not None and self._ahead[0] == index:
            value = self._ahead[1]
        else:
            value = self._array.read(self._box(index)[0])
        self._index, self._ahead = index, None
        self.ref.buffer.fill(self.poison)
        self._store(value, self._box(index)[1])

    def look_ahead(self, point: Point) -> None:
        """Reads the block of the next point already now, as the pipeline may."""
        if self._how is not None and (index := self._block(point)) != self._index:
            self._ahead = (index, self._array.read(self._box(index)[0]).copy())

    def begin(self, point: Point) -> None:
        """Before a step: a result's block that changes is written back, the new one undefined."""
        if self._how is None or (index := self._block(point)) == self._index:
            return
        self.flush()
        self._box(index)
        self._index = index
        self.ref.buffer.fill(self.poison)

    def flush(self) -> None:
        """Writes a result's block back."""
        if self._how is None or self._index is None:
            return
        box, inside = self._box(self._index)
        value = self.ref.read().reshape(self._how.bounds)[inside]
        self._array.write(box, value)

    def _store(self, value: np.ndarray, inside: tuple[slice, ...]) -> None:
        assert self._how is not None
        if value.shape == self._how.bounds:
            self.ref.write(value.reshape(self.ref.shape))
            return
        if len(self.ref.shape) == len(inside):
            self.ref.write(value, tuple(s.start for s in inside))
            return
        whole = self.ref.read().reshape(self._how.bounds).copy()
        whole[inside] = value
        self.ref.write(whole.reshape(self.ref.shape))

    def _box(self, index: Point) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where a block lies in the array, and which part of the block that is."""
        assert self._how is not None
        box, inside = [], []
        for d, (i, size, full) in enumerate(
            zip(index, self._how.bounds, self._array.array.shape, strict=True)
        ):
            low, high = (0, 0) if self._how.padding is None else self._how.padding[d]
            start = i * size if self._how.padding is None else i - low
            if not -low <= start < max(full + high, 1):
                raise OutOfBounds(
                    f"block index {index} of an operand of shape {self._array.array.shape} in "
                    f"blocks of {self._how.bounds}"
                )
            first, last = max(start, 0), min(start + size, full)
            box.append(slice(first, last))
            inside.append(slice(first - start, last - start))
        return tuple(box), tuple(inside)


def _stored(array: np.ndarray, element: Element) -> np.ndarray:
    """A caller's array as memory holds it: bool as an integer, unsigned as its bits."""
    array = np.asarray(array)
    if array.dtype == element.dtype:
        return array
    if array.dtype == np.bool_:
        return array.astype(element.dtype)
    if element.bits < 8:
        return wrap(array.astype(np.int8), element)
    return np.ascontiguousarray(array).view(element.dtype)


def _loaded(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The inverse of `_stored`."""
    if array.dtype == dtype:
        return array
    if dtype == np.bool_:
        return array != 0
    if array.dtype.itemsize == dtype.itemsize == 1 and array.dtype.kind == "V":
        return (array.astype(np.int8) & 0xF).astype(dtype)
    return np.ascontiguousarray(array).view(dtype)
