"""Mosaic modules written by hand, and their execution: what the tests of the executor share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from conformance.emulator import Conditions, agreed, build, run

PLAIN = Conditions()
Values = tuple[np.ndarray, ...]


@dataclass(frozen=True, kw_only=True)
class Module:
    """A kernel in the form in which JAX lowers one.

    Attributes:
      arguments: (name, type) of the memrefs: scalar prefetch, operands, results, scratch.
      body: operations; `%0`-free names, with the constants below at hand.
      windows: for each operand and result, (block, operations and "return ..." of its map).
      functions: more functions of the module.
    """

    arguments: Sequence[tuple[str, str]]
    body: str
    grid: tuple[int | None, ...] = ()
    semantics: tuple[str, ...] = ()
    windows: Sequence[tuple[tuple[int, ...], str]] = ()
    kinds: Mapping[int, str] = field(default_factory=dict)
    prefetch: int = 0
    scratch: int = 0
    functions: str = ""

    @property
    def text(self) -> str:
        axes = ", ".join(f"%{'ijk'[n]}: i32" for n in range(len(self.grid)))
        memrefs = [f"%{name}: {of}" for name, of in self.arguments]
        parameters = ", ".join([*([axes] if axes else []), *memrefs])
        fixed = ", ".join([*([axes] if axes else []), *memrefs[: self.prefetch]])
        return "\n".join([
            "module {",
            f"func.func @main({parameters}) attributes {{{self._attributes()}}} {{",
            CONSTANTS,
            textwrap.dedent(self.body),
            "return",
            "}",
            *(
                f"func.func @transform_{n}({fixed}) -> ({', '.join(['i32'] * len(block))}) {{\n"
                f"{CONSTANTS}\n{code}\n}}"
                for n, (block, code) in enumerate(self.windows)
            ),
            self.functions,
            "}",
        ])  # fmt: skip

    def _attributes(self) -> str:
        given = [f"scalar_prefetch = {self.prefetch} : i64"]
        given.append(f"scratch_operands = {self.scratch} : i64")
        semantics = self.semantics or ("arbitrary",) * len(self.grid)
        kinds = ", ".join(f"#tpu.dimension_semantics<{s}>" for s in semantics)
        given.append(f"dimension_semantics = [{kinds}]")
        if self.grid:
            bounds = ", ".join(str(-(2**63) if n is None else n) for n in self.grid)
            given.append(f"iteration_bounds = array<i64: {bounds}>")
        if self.windows:
            windows = ", ".join(self._window(n) for n in range(len(self.windows)))
            given.append(f"window_params = [{windows}]")
        return ", ".join(given)

    def _window(self, number: int) -> str:
        bounds = ", ".join(map(str, self.windows[number][0]))
        kind = f", window_kind = {self.kinds[number]}" if number in self.kinds else ""
        name = f"transform_indices = @transform_{number}"
        return f"{{{name}, window_bounds = array<i64: {bounds}>{kind}}}"


CONSTANTS = """
%zero = arith.constant 0 : i32
%one = arith.constant 1 : i32
%two = arith.constant 2 : i32
%eight = arith.constant 8 : i32
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
"""
SCALARS = "memref<8xi32, #tpu.memory_space<smem>>"
BLOCK = "memref<8x128xf32, #tpu.memory_space<vmem>>"
HBM = "memref<{}x128xf32, #tpu.memory_space<any>>"
VECTOR = "vector<8x128xf32>"
SEMAPHORE = "memref<!tpu.semaphore, #tpu.memory_space<semaphore_mem>>"
DMA = "memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"


def load(ref: str, name: str) -> str:
    return f"%{name} = vector.load %{ref}[%c0, %c0] : {BLOCK}, {VECTOR}\n"


def store(name: str, ref: str) -> str:
    at = f"%{ref}[%c0, %c0], %{name}"
    return f"tpu.vector_store {at} {{strides = array<i32>}} : {BLOCK}, {VECTOR},\n"


def add(a: str, b: str, result: str) -> str:
    return f"%{result} = arith.addf %{a}, %{b} : {VECTOR}\n"


def splat(value: float, result: str) -> str:
    return f"%{result} = arith.constant dense<{value:.6e}> : {VECTOR}\n"


COPY = load("x", "v") + store("v", "o")
BY_ROWS = ((8, 128), "return %i, %zero : i32, i32")
FIRST = ((8, 128), "return %zero, %zero : i32, i32")
X_AND_O = (("x", BLOCK), ("o", BLOCK))


def f32(rows: int, start: float = 0.0) -> np.ndarray:
    """Rows of equal numbers: start, start + 1..."""
    return np.broadcast_to(np.arange(start, start + rows, dtype=np.float32)[:, None], (rows, 128))


def execute(
    module: Module,
    *operands: Any,
    rows: Sequence[int] = (8,),
    aliases: Mapping[int, int] | None = None,
    conditions: Conditions = PLAIN,
) -> Values:
    """The float32 results, (rows, 128) each."""
    results = [((n, 128), np.dtype(np.float32)) for n in rows]
    return run(build(module.text), operands, results, aliases or {}, conditions)


def agree(module: Module, *operands: Any, **more: Any) -> Values:
    return agreed(lambda conditions: execute(module, *operands, conditions=conditions, **more))


ONE, THREE = splat(1.0, "one_f"), splat(3.0, "three_f")


def by_rows(body: str, steps: int | None, *windows: Any, **more: Any) -> Module:
    """x and o in blocks of 8 rows, over a grid of one axis."""
    windows = windows or (BY_ROWS, BY_ROWS)
    return Module(arguments=X_AND_O, body=body, grid=(steps,), windows=windows, **more)


def looked_up() -> Module:
    """x by the blocks that the scalars name."""
    name = f"%at = arith.index_cast %i : i32 to index\n%h = memref.load %s[%at] : {SCALARS}\n"
    return Module(
        arguments=(("s", SCALARS), *X_AND_O),
        body=COPY,
        grid=(3,),
        windows=(((8, 128), f"{name}return %h, %zero : i32, i32"), BY_ROWS),
        prefetch=1,
    )


def accumulate(extra: str = "") -> str:
    """o = 0 where i = 0; o += x."""
    return (
        "%first = arith.cmpi eq, %i, %zero : i32\nscf.if %first {\n"
        + splat(0.0, "z") + store("z", "o") + "}\n"
        + load("x", "v") + load("o", "w") + add("v", "w", "s") + store("s", "o") + extra
    )  # fmt: skip


def start(source: str, target: str, kinds: tuple[str, str], semaphore: str = "d") -> str:
    return (
        f"tpu.enqueue_dma source(%{source} : {kinds[0]}) target(%{target} : {kinds[1]}) "
        f"target_semaphore(%{semaphore} : {DMA})\n"
    )


def wait(source: str, target: str, kinds: tuple[str, str], semaphore: str = "d") -> str:
    """In the form that the bindings at hand know."""
    if jax.__version_info__ >= (0, 12):
        return (
            f"tpu.wait_dma source(%{source} : {kinds[0]}) target(%{target} : {kinds[1]}) "
            f"target_semaphore(%{semaphore} : {DMA}) {{wait_target = true}}\n"
        )
    return (
        f"tpu.wait_dma2 semaphore(%{semaphore} : {DMA}) src(%{source} : {kinds[0]}) "
        f"dst(%{target} : {kinds[1]})\n"
    )


ROWS8, INWARDS = HBM.format(8), (HBM.format(8), BLOCK)
IN, AWAIT = start("x", "s", INWARDS), wait("x", "s", INWARDS)
OUT = load("s", "v") + store("v", "o")
PUT = THREE + store("three_f", "s")


def copying(body: str, kind: str = DMA) -> Module:
    """x in HBM, o in VMEM; scratch s, another t, and a semaphore d."""
    arguments = (("x", ROWS8), ("o", BLOCK), ("s", BLOCK), ("t", BLOCK), ("d", kind))
    return Module(arguments=arguments, body=body, scratch=3)
