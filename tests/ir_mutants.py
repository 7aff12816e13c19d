"""Mutants of compiled kernels: one thing changed in the IR, which executing it must notice.

python tests/ir_mutants.py [--chip CHIP] [--per N] [--only NAME] [--survivors]

Takes the Mosaic texts of reference kernels and of programs of the corpus at both levels, changes
a literal, an index, a mask, a predicate, an operation... in one of them, and executes that as mode
`emulate` does. A mutant is killed by wrong values, by a Defect, or by an error. Not counted are
mutants that do not parse or that the executor does not know, and changes to dead code.

Those that survive are printed, for somebody to look at. What was found to let them live:

  padding      masks and sublanes of stores beyond the array, of loads that nothing reads there
  overwritten  a first store that a later one covers for the inputs of the program
  not taken    corrections of signed division, of negative indices; a branch that the one set
               of inputs does not take
  two guards   both operands of a ragged dot are masked, either mask suffices for integers
  same value   shifts of a softmax, permuted keys, rounding of what is whole, equal operands
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from conformance import compiler

LEVELS = ("original", "vreg")
# A mutant of each text for every kind of change that it offers, until this many.
PER_TEXT = 8
# A loop whose bound or step was changed need not end.
SECONDS = 3.0

PROGRAMS = (
    "elementwise/add_f32_5x130",
    "elementwise/max_f32",
    "elementwise/shift_right_arithmetic_i32",
    "elementwise/scalar_min_max_i32",
    "casts/f32_to_i8_5x130",
    "casts/f32_to_i8_fractions",
    "casts/i8_to_f32_5x130",
    "bitcasts/i8_as_i32_64x128",
    "iota/upper_triangle_8x128",
    "loads_stores/load_0_5_24x100_i8",
    "loads_stores/store_13_127_3x2_i8",
    "loads_stores/store_0_5_24x100_bf16",
    "loads_stores/strided_load_1_8_3_i32",
    "loads_stores/strided_store_3_5_2_i32",
    "loads_stores/copy_u8_5x130",
    "broadcasts/add_16x256_and_16x1_f32",
    "broadcasts/1x16_to_8x16_bf16",
    "broadcasts/in_dim_columns_f32",
    "reshapes/3x5x128_to_15x128_i32",
    "reshapes/4x512_to_16x128_f32",
    "transposes/i32_5x130",
    "transposes/bf16_32x64",
    "concatenates/axis1_8x100_8x30_of_2_bf16",
    "concatenates/axis0_3x128_5x128_of_2_f32",
    "rolls/dynamic_axis1_bf16_16x256",
    "rolls/strided_by_3_and_1_8x128",
    "rolls/jnp_roll_axis1_by_1_5x130",
    "gathers/along_axis0_f32_8x384",
    "select_compare/where_ragged_i32",
    "select_compare/where_column_mask_bf16",
    "reductions/sum_axis1_i32_3x16x128_keepdims",
    "reductions/min_axis0_f32_5x130_keepdims",
    "reductions/max_axis0_bf16_8x1_keepdims",
    "matmul/nt_i8_64x256x128",
    "matmul/f32_highest_full_mantissa",
    "matmul/tn_f32_default_8x128x128",
    "control_flow/search_i32",
    "control_flow/loop_in_when_f32",
    "control_flow/cond_of_scalars_f32",
    "grids/ragged_tiles_bf16",
    "grids/boxes_turned_i8",
    "grids/matmul_k_loop_bf16",
    "prefetch/two_f32",
    "prefetch/scatters_f32",
    "blocks/alias_partly_written_f32",
    "blocks/element_overlapping_f32",
    "dma/double_buffered_f32",
    "dma/signalled_f32",
    "dma/scattered_into_any_f32",
    "pipelines/add_ragged_f32_13x128",
    "chains/top_one",
    "chains/butterfly",
    "chains/softmax_f32_5x130",
    "chains/quantised",
    "chains/causal_attention_f32",
)


# --------------------------------------------------------------------------- changes to a text


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A line of a module's text, and what stands there instead.

    Attributes:
      kind: what was changed, for the table.
      line: its number, from 0.
    """

    kind: str
    line: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The mutant's text."""
        lines = text.splitlines()
        lines[self.line] = self.new
        return "\n".join(lines)


Changes = Iterator[str]
KINDS: dict[str, Callable[[str], Changes]] = {}
_CHANGED = "%changed"


def change(kind: str) -> Callable[[Callable[[str], Changes]], Callable[[str], Changes]]:
    """Registers a function from a line to the lines that may stand there instead."""

    def register(function: Callable[[str], Changes]) -> Callable[[str], Changes]:
        KINDS[kind] = function
        return function

    return register


def _replaced(line: str, span: tuple[int, int], text: str) -> str:
    return line[: span[0]] + text + line[span[1] :]


def _shifted(line: str, span: tuple[int, int], of: str) -> Changes:
    """The operand at `span` one more, and one less."""
    for by in (1, -1):
        yield (
            f"{_CHANGED}_by = arith.constant {by} : {of}\n"
            f"{_CHANGED} = arith.addi {line[span[0] : span[1]]}, {_CHANGED}_by : {of}\n"
            f"{_replaced(line, span, _CHANGED)}"
        )


def _operands(line: str, pattern: str, group: int | str = 1) -> Iterator[tuple[int, int]]:
    """Spans of the SSA values within a group of a pattern."""
    for found in re.finditer(pattern, line):
        for value in re.finditer(r"%[\w#]+", found[group]):
            base = found.start(group)
            yield base + value.start(), base + value.end()


_CONSTANT = re.compile(r"arith\.constant (?:\{[^}]*\} )?(?:dense<)?(?P<value>[\w.+-]+)>? : \S+$")
_DENSE = re.compile(r"arith\.constant dense<\[+(?P<value>[\w.+-]+)[,\]]")


@change("constant")
def _constant(line: str) -> Changes:
    found = _CONSTANT.search(line.rstrip()) or _DENSE.search(line)
    if found is None:
        return
    value, span = found["value"], found.span("value")
    if value in ("true", "false"):
        yield _replaced(line, span, "false" if value == "true" else "true")
    elif re.fullmatch(r"-?\d+", value):
        yield _replaced(line, span, str(int(value) + 1))
        yield _replaced(line, span, str(int(value) - 1))
    elif value.startswith("0x"):  # an infinity, NaN, or what decimals cannot say
        yield _replaced(line, span, "0.000000e+00")
    else:
        yield _replaced(line, span, f"{float(value) * 1.5 or 1.0:e}")


_INDEXED = r"(?:tpu|vector|memref)\.{} (?:%[\w#]+, )?%[\w#]+\[(?P<at>[^\]]*)\]"


@change("index of a load")
def _load_index(line: str) -> Changes:
    for span in _operands(line, _INDEXED.format("(?:strided_)?load"), "at"):
        yield from _shifted(line, span, "index")


@change("index of a store")
def _store_index(line: str) -> Changes:
    for span in _operands(line, _INDEXED.format("(?:vector_|strided_)?store"), "at"):
        yield from _shifted(line, span, "index")


@change("index of a slice")
def _slice_index(line: str) -> Changes:
    for span in _operands(line, _INDEXED.format("memref_slice"), "at"):
        yield from _shifted(line, span, "i32")


@change("bound of a mask")
def _mask_bound(line: str) -> Changes:
    for group in (1, 2):
        for span in _operands(line, r"tpu\.create_mask\s?\[([^\]]*)\] \[([^\]]*)\]", group):
            yield from _shifted(line, span, "index")


@change("sublane of a mask")
def _sublanes(line: str) -> Changes:
    """Of a load only what is read may be left out: more than that hurts nobody."""
    for mask in re.finditer(r"sublanes \[([^\]]*)\]", line):
        for bit in re.finditer("true|false", mask[1]):
            span = mask.start(1) + bit.start(), mask.start(1) + bit.end()
            if bit[0] == "true":
                yield _replaced(line, span, "false")
            elif "store" in line:
                yield _replaced(line, span, "true")


@change("subelement mask")
def _subelements(line: str) -> Changes:
    found = re.search(r"create_subelement_mask (\d+), (\d+)", line)
    if found:
        for group in (1, 2):
            for by in (1, -1):
                yield _replaced(line, found.span(group), str(max(int(found[group]) + by, 0)))


_PREDICATES = {
    "eq": "ne",
    "ne": "eq",
    "slt": "sle",
    "sle": "slt",
    "sgt": "sge",
    "sge": "sgt",
    "ult": "ule",
    "ule": "ult",
    "ugt": "uge",
    "uge": "ugt",
    "oeq": "one",
    "une": "oeq",
    "one": "oeq",
    "olt": "ole",
    "ole": "olt",
    "ogt": "oge",
    "oge": "ogt",
    "uno": "ord",
}


@change("predicate")
def _predicate(line: str) -> Changes:
    found = re.search(r"arith\.cmp[if] (\w+),", line)
    if found and found[1] in _PREDICATES:
        yield _replaced(line, found.span(1), _PREDICATES[found[1]])


_OTHER = {
    "arith.addf": "arith.subf",
    "arith.subf": "arith.addf",
    "arith.mulf": "arith.addf",
    "arith.divf": "arith.mulf",
    "arith.maximumf": "arith.minimumf",
    "arith.minimumf": "arith.maximumf",
    "arith.addi": "arith.subi",
    "arith.subi": "arith.addi",
    "arith.muli": "arith.addi",
    "arith.maxsi": "arith.minsi",
    "arith.minsi": "arith.maxsi",
    "arith.andi": "arith.ori",
    "arith.ori": "arith.andi",
    "arith.xori": "arith.ori",
    "arith.shli": "arith.shrui",
    "arith.shrsi": "arith.shrui",
    "arith.shrui": "arith.shrsi",
    "arith.divsi": "arith.remsi",
    "arith.remsi": "arith.divsi",
    "arith.divui": "arith.remui",
    "arith.remui": "arith.divui",
    "arith.extsi": "arith.extui",
    "math.exp": "math.exp2",
    "math.absf": "math.exp2",
}


@change("operation")
def _operation(line: str) -> Changes:
    found = re.search(r"(?:arith|math)\.\w+", line)
    if found and found[0] in _OTHER:
        yield _replaced(line, found.span(), _OTHER[found[0]])


_REDUCTIONS = {
    "maximumf": "minimumf",
    "minimumf": "maximumf",
    "maxsi": "minsi",
    "minsi": "maxsi",
    "maxf": "minf",
    "minf": "maxf",
    "max": "min",
    "min": "max",
}


@change("kind of a reduction")
def _reduction(line: str) -> Changes:
    found = re.search(r"(?:multi_reduction |reduction_kind)<(\w+)>", line)
    if found is None:
        return
    of = "f" if "f32>" in line or "bf16>" in line else "si"
    full = "multi_reduction" in line and of == "f"
    other = _REDUCTIONS.get(found[1], f"max{'imumf' if full else of}")
    yield _replaced(line, found.span(1), other)


@change("dimension")
def _dimension(line: str) -> Changes:
    """Of rotations, reductions, iota, gathers and concatenations; two of a permutation swapped."""
    one = r"(?:\bdim |\bdim = |dimension = |dimensions = array<i32: | in \[)(\d)"
    for found in re.finditer(one, line):
        yield _replaced(line, found.span(1), str(int(found[1]) ^ 1))
    found = re.search(r"transpose %[\w#]+, \[([\d, ]+)\]", line)
    if found:
        order = found[1].split(", ")
        for n in range(len(order) - 1):
            swapped = [*order[:n], order[n + 1], order[n], *order[n + 2 :]]
            yield _replaced(line, found.span(1), ", ".join(swapped))


@change("amount of a rotation")
def _rotation(line: str) -> Changes:
    for span in _operands(line, r"tpu\.dynamic_rotate %[\w#]+ by (%[\w#]+)"):
        yield from _shifted(line, span, "i32")
    found = re.search(r"tpu\.rotate %[\w#]+ by (\d+)|\bstride = (\d+)", line)
    if found:
        group = 1 if found[1] else 2
        yield _replaced(line, found.span(group), str(int(found[group]) + 1))


@change("packing")
def _packing(line: str) -> Changes:
    found = re.search(r"unpack_subelements %[\w#]+, (\d)", line)
    if found:
        yield _replaced(line, found.span(1), str(int(found[1]) ^ 1))
    found = re.search(r"positions = array<i32: ([\d, ]+)>", line)
    if found:
        places = found[1].split(", ")
        other = places[::-1] if len(places) > 1 else [str(int(places[0]) ^ 1)]
        packed = re.findall(r"%[\w#]+", line[: found.start()])[-len(places) :]
        if len(places) == 1 or len(set(packed)) > 1:
            yield _replaced(line, found.span(1), ", ".join(other))
    found = re.search(r"pack_format<(compressed|interleaved)>", line)
    if found:
        other_format = "interleaved" if found[1] == "compressed" else "compressed"
        yield _replaced(line, found.span(1), other_format)


@change("moved sublanes")
def _moved(line: str) -> Changes:
    """The first index of a shuffle or of a gather by constants, or the first lane of a column."""
    shuffle, gather = r"sublane_shuffle .*\[(\d+)", r"tpu\.gather %[\w#]+\[\[(\d+)"
    for pattern in (shuffle, gather, r"broadcast_in_sublanes %[\w#]+, (\d+)"):
        found = re.search(pattern, line)
        if found:
            yield _replaced(line, found.span(1), str(int(found[1]) + 1))


@change("stride")
def _stride(line: str) -> Changes:
    """Of rows; that of a mere promise (`strided_load` before a store) is dead code."""
    found = re.search(r"(?:sublane_stride |strides = array<i32: )(\d+)", line)
    if found:
        yield _replaced(line, found.span(1), str(int(found[1]) + 1))


@change("operands of a select")
def _select(line: str) -> Changes:
    found = re.search(r"arith\.select %[\w#]+, (%[\w#]+), (%[\w#]+)", line)
    if found and found[1] != found[2]:
        yield _replaced(line, (found.start(1), found.end(2)), f"{found[2]}, {found[1]}")


@change("operand")
def _operand(line: str) -> Changes:
    """The left operand twice, or the right one; another result of several."""
    found = re.search(r"arith\.(?!cmp|sel)\w+ (%[\w#]+), (%[\w#]+)", line)
    if found and found[1] != found[2]:
        yield _replaced(line, found.span(2), found[1])
        yield _replaced(line, found.span(1), found[2])
    for found in re.finditer(r"%\w+#(\d+)", line):
        yield _replaced(line, found.span(1), str(int(found[1]) ^ 1))


@change("index map")
def _index_map(line: str) -> Changes:
    """`return` of values stands in index maps only."""
    found = re.fullmatch(r"\s+return (%[^:]*) : i32(?:, i32)*", line)
    if found is None:
        return
    values = found[1].split(", ")
    for n, (a, b) in enumerate(itertools.pairwise(values)):
        if a != b:
            swapped = ", ".join([*values[:n], b, a, *values[n + 2 :]])
            yield _replaced(line, found.span(1), swapped)
    for span in _operands(line, r"return ([^:]*)"):
        yield from _shifted(line, span, "i32")


@change("condition of an if")
def _condition(line: str) -> Changes:
    for span in _operands(line, r"scf\.if (%[\w#]+)"):
        yield (
            f"{_CHANGED}_true = arith.constant true\n"
            f"{_CHANGED} = arith.xori {line[slice(*span)]}, {_CHANGED}_true : i1\n"
            f"{_replaced(line, span, _CHANGED)}"
        )


@change("bound of a loop")
def _loop(line: str) -> Changes:
    of = re.search(r": (i32|index) \{$", line.rstrip())
    for span in _operands(line, r"scf\.for %\w+ = (%[\w#]+ to %[\w#]+)"):
        yield from _shifted(line, span, of[1] if of else "index")


@change("removed store")
def _removed_store(line: str) -> Changes:
    if re.match(r"\s+(?:tpu|vector|memref)\.(?:vector_|strided_)?store ", line):
        yield ""


@change("removed DMA, wait or signal")
def _removed_copy(line: str) -> Changes:
    if re.match(r"\s+tpu\.(?:enqueue_dma|wait_dma2?|sem_signal|sem_wait) ", line):
        yield ""


@change("grid")
def _grid(line: str) -> Changes:
    found = re.search(r"iteration_bounds = array<i64: ([\d, ]+)>", line)
    if found:
        for bound in re.finditer(r"\d+", found[1]):
            span = found.start(1) + bound.start(), found.start(1) + bound.end()
            yield _replaced(line, span, str(int(bound[0]) + 1))
            if int(bound[0]) > 1:
                yield _replaced(line, span, str(int(bound[0]) - 1))


@change("rounding")
def _rounding(line: str) -> Changes:
    found = re.search(r"rounding_mode<(towards_zero|to_nearest_even)>", line)
    if found:
        other = "to_nearest_even" if found[1] == "towards_zero" else "towards_zero"
        yield _replaced(line, found.span(1), other)
    found = re.search(r"contract_precision<(fp32)>", line)
    if found:
        yield _replaced(line, found.span(1), "bf16")


_RESULT = re.compile(r"\s+(%\w+)(?::\d+)? = ")
_EFFECTS = re.compile(r"store|dma|sem_|scf\.|call|alloca|region|delay|\{$")


def _alive(lines: Sequence[str]) -> list[bool]:
    """Which lines have an effect, or a result that one which has is made from."""
    alive = [True] * len(lines)
    while True:
        text = "\n".join(line for line, kept in zip(lines, alive, strict=True) if kept)
        uses = Counter(re.findall(r"%\w+", text))
        dead = [
            n
            for n, line in enumerate(lines)
            if alive[n]
            and (found := _RESULT.match(line))
            and not _EFFECTS.search(line)
            and uses[found[1]] == 1
        ]
        if not dead:
            return alive
        for n in dead:
            alive[n] = False


def mutations(text: str) -> dict[str, list[Mutation]]:
    """Everything that can be changed, by kind."""
    lines = text.splitlines()
    found: dict[str, list[Mutation]] = defaultdict(list)
    for number, (line, alive) in enumerate(zip(lines, _function_by_function(lines), strict=True)):
        if alive:
            for kind, function in KINDS.items():
                for new in function(line):
                    if new != line and not _out_of_register(new, text):
                        found[kind].append(Mutation(kind=kind, line=number, old=line, new=new))
    return found


_SHIFTED_BOUND = re.compile(
    r"arith\.constant (?P<by>-?1) .*\n.*addi (?P<name>%\w+),.*\n"
    r".*create_mask\s?\[(?P<low>[^\]]*)\] \[(?P<high>[^\]]*)\] : vector<(?P<shape>[\dx]+)x"
)


def _out_of_register(new: str, text: str) -> bool:
    """Whether a mask's bound leaves the register, which changes nothing."""
    found = _SHIFTED_BOUND.search(new)
    if found is None:
        return False
    known = re.search(rf"{found['name']} = arith\.constant .*?(-?\d+) : index", text)
    if known is None:
        return False
    bounds = f"{found['low']}, {found['high']}".split(", ")
    place = bounds.index(_CHANGED) % (len(bounds) // 2)
    value = int(known[1]) + int(found["by"])
    return not 0 <= value <= int(found["shape"].split("x")[place])


def _function_by_function(lines: Sequence[str]) -> list[bool]:
    """`_alive`; names are unique within a function only."""
    starts = [n for n, line in enumerate(lines) if "func.func" in line]
    alive = [True] * len(lines)
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        alive[begin:end] = _alive(lines[begin:end])
    return alive


# Few texts offer these, which therefore come first.
_RARE = ("moved sublanes", "packing", "rounding", "stride", "subelement mask")


def chosen(name: str, text: str, most: int) -> Iterator[Mutation]:
    """Mutations in an order that depends on the names alone: each kind once, then once more..."""
    rng = random.Random(name)  # seeded with a string: the same in every process
    found = mutations(text)
    for kind in found.values():
        rng.shuffle(kind)
    kinds = sorted(found)
    rng.shuffle(kinds)
    kinds.sort(key=lambda kind: kind not in _RARE)
    order = [found[k][n] for n in range(most) for k in kinds if n < len(found[k])]
    yield from order


# --------------------------------------------------------------------------- kernels


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arguments of a function, and the judge of its results: "" when they are right."""

    arguments: tuple[Any, ...]
    judge: Callable[[tuple[np.ndarray, ...]], str]


class _Refused(Exception):
    """The chip's compiler refuses a kernel of the corpus."""


class Target:
    """A function with its compiled kernels.

    Attributes:
      texts: (level, number of the pallas_call) -> text.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        inputs: Sequence[Inputs],
        chip: str,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        """Args:
        finish: host stage after the run.
        """
        import jax

        from conformance.chips import get
        from conformance.compiler import process
        from conformance.modes import _staging

        self.name = name
        self.inputs = inputs
        self.texts: dict[tuple[str, int], str] = {}
        self._finish = finish
        self._chip = get(chip)
        shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs[0].arguments)
        with process.abstract_mesh(self._chip):
            self._traced = _staging.trace_function(fn, shapes)
        self._compile()
        self._programs = {key: _built(text) for key, text in self.texts.items()}

    def _compile(self) -> None:
        """Texts of every call: operands' shapes are known once XLA has done what is before it."""
        from conformance.modes import _jaxprs

        def pallas_call(params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
            self._compile_call(params, [np.asarray(o) for o in operands])
            return [np.zeros(a.shape, a.dtype) for a in params["out_avals"]]

        _jaxprs.evaluate(self._traced.stage.jaxpr, list(self.inputs[0].arguments), pallas_call)

    def _compile_call(self, params: dict[str, Any], operands: Sequence[np.ndarray]) -> None:
        from jax._src.pallas.pallas_call import pallas_call_p

        fn = functools.partial(pallas_call_p.bind, **params)
        result = compiler.compile_for(fn, operands, self._chip, compiler.dump_dir())
        if isinstance(result, compiler.Refused):
            raise _Refused(f"{self.name}: {result.message}")
        number = self._number(params)
        for level, label in zip(LEVELS, (compiler.ORIGINAL, compiler.VREG), strict=True):
            (self.texts[level, number],) = result.texts(label)

    def _number(self, params: dict[str, Any]) -> int:
        calls = self._traced.pallas_calls
        return next(n for n, call in enumerate(calls) if call is params)

    def verdict(self, level: str, changed: Mapping[tuple[str, int], Any]) -> tuple[str, str]:
        """("", "") when all results are right; else what is noticed, and how it shows."""
        from conformance import emulator

        for inputs in self.inputs:
            try:
                values = self._values(inputs.arguments, level, {**self._programs, **changed})
            except emulator.Defect as e:
                return "defect", str(e)
            why = inputs.judge(values)
            if why:
                return "values", why
        return "", ""

    def _values(
        self, arguments: Sequence[Any], level: str, programs: Mapping[tuple[str, int], Any]
    ) -> tuple[np.ndarray, ...]:
        from conformance import emulator
        from conformance.modes import _jaxprs

        def results(conditions: emulator.Conditions) -> tuple[np.ndarray, ...]:
            def pallas_call(params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
                return emulator.run(
                    programs[level, self._number(params)],
                    [np.asarray(o) for o in operands],
                    [(tuple(a.shape), np.dtype(a.dtype)) for a in params["out_avals"]],
                    dict(params["input_output_aliases"]),
                    conditions,
                )

            found = _jaxprs.evaluate(self._traced.stage.jaxpr, list(arguments), pallas_call)
            return tuple(np.asarray(value) for value in found)

        return self._finished(emulator.agreed(results))

    def _finished(self, values: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        import jax

        if self._finish is None:
            return values
        tree = jax.tree.unflatten(jax.tree.structure(self._traced.stage.out_info), values)
        return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(self._finish(tree)))


def _built(text: str) -> Any:
    from conformance import emulator

    return emulator.build(text)


def targets(chip: str, only: str) -> Iterator[Target]:
    """Reference kernels at their smoke points, and programs of the corpus."""
    yield from _reference_kernels(chip, only)
    for name in PROGRAMS:
        if only in name:
            with contextlib.suppress(_Refused):
                yield _of_program(name, chip)


def _of_program(name: str, chip: str) -> Target:
    from tests.programs import PROGRAMS as ALL
    from tests.programs import execute

    program = next(p for p in ALL if p.name == name)
    arrays = program.make(np.random.default_rng(execute.SEEDS[0]))
    judge = functools.partial(_program_judge, program, execute.reference(program, arrays))
    return Target(name, program.fn, [Inputs(arguments=arrays, judge=judge)], chip)


def _program_judge(program: Any, expected: Any, values: tuple[np.ndarray, ...]) -> str:
    from conformance.verdict import Outcome, Stage
    from tests.programs import execute

    stage = Stage(name="mutant", values=values, blame="the mutant")
    return execute.disagreement(program, Outcome(values=values, stages=(stage,)), expected)


def _reference_kernels(chip: str, only: str) -> Iterator[Target]:
    from conformance.examples import pinned
    from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject

    cases = load_cases()
    subject = load_subject(DEFAULT_SUBJECT, tuple(cases))
    seen = set()
    for kernel in subject.kernels:
        if kernel.case in seen or only not in f"{kernel.case}/{kernel.name}":
            continue
        seen.add(kernel.case)
        examples = pinned(cases[kernel.case], "smoke")
        wanted = [e for e in examples if e.inputs in ("exact", "position", "normal")][:3]
        yield _of_kernel(cases[kernel.case], kernel, wanted, chip)


def _of_kernel(case: Any, kernel: Any, examples: Sequence[Any], chip: str) -> Target:
    from conformance import serve
    from conformance.modes import MODES, _staging

    inputs = []
    for example in examples:
        call = serve.bind(case, kernel, example, None)
        arguments = _staging.prepared(call)
        arithmetic = MODES["emulate"].arithmetic
        references = case.reference(example.params, example.inputs, call.arrays, arithmetic)
        judge = functools.partial(_case_judge, references)
        inputs.append(Inputs(arguments=arguments, judge=judge))
    fn = functools.partial(kernel.fn, **call.options)
    return Target(f"{kernel.case}/{kernel.name}", fn, inputs, chip, kernel.finish)


def _case_judge(references: Sequence[Any], values: tuple[np.ndarray, ...]) -> str:
    from conformance.numerics import compare

    compared = [compare(v, r) for v, r in zip(values, references, strict=True)]
    return "; ".join(c.why for c in compared if not c.ok)


# --------------------------------------------------------------------------- the child process


class _TooLong(Exception):
    pass


def _interrupt(number: int, frame: Any) -> None:
    raise _TooLong("does not end")


def judged(target: Target, key: tuple[str, int], mutation: Mutation) -> tuple[str, str]:
    """How a mutant is noticed ("" if not), or why it does not count ("unparsable", "unknown")."""
    from jaxlib.mlir import ir

    from conformance import emulator

    try:
        program = _built(mutation.applied(target.texts[key]))
    except ir.MLIRError as e:
        return "unparsable", str(e)[:200]
    except emulator.Unknown as e:
        return "unknown", str(e)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return target.verdict(key[0], {key: program})
    except emulator.Unknown as e:
        return "unknown", str(e)
    except Exception as e:
        return "error", f"{type(e).__name__}: {e}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


NOT_COUNTED = ("unparsable", "unknown")


def child_main(chip: str, per: int, only: str) -> None:
    """Prints a line of JSON for each mutant."""
    signal.signal(signal.SIGALRM, _interrupt)
    for target in targets(chip, only):
        for level in LEVELS:
            how, why = target.verdict(level, {})
            if how:
                raise RuntimeError(f"{target.name} is wrong without a mutation: {why}")
        for key, text in target.texts.items():
            counted = 0
            for mutation in chosen(f"{target.name} {key}", text, per):
                if counted == per:
                    break
                how, why = judged(target, key, mutation)
                counted += how not in NOT_COUNTED
                row = {"target": target.name, "level": key[0], "how": how, "why": why}
                print(json.dumps(row | dataclasses.asdict(mutation)), flush=True)


# --------------------------------------------------------------------------- the table


def in_compiling_process(
    script: str, *arguments: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs a script that needs the compiler's environment; how it ends does not matter."""
    with tempfile.TemporaryDirectory() as directory:
        changed = compiler.environment(directory)
        kept = {k: v for k, v in os.environ.items() if k not in changed}
        added = {k: v for k, v in changed.items() if v is not None}
        command = [sys.executable, script, *arguments]
        return subprocess.run(
            command, env=kept | added, capture_output=True, text=True, timeout=timeout, check=False
        )


def run(chip: str, per: int = PER_TEXT, only: str = "", timeout: float = 1800) -> list[dict]:
    """All mutants that count, as the child process reports them."""
    arguments = ("--child", "--chip", chip, "--per", str(per), "--only", only)
    child = in_compiling_process(__file__, *arguments, timeout=timeout)
    if child.returncode:
        raise RuntimeError(child.stderr[-3000:])
    return [json.loads(line) for line in child.stdout.splitlines() if line[:1] == "{"]


def counted(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Mutants that parse and that the executor knows."""
    return [row for row in rows if row["how"] not in NOT_COUNTED]


def score(rows: Iterable[Mapping[str, Any]]) -> float:
    """Killed mutants among those that count."""
    kept = counted(rows)
    return sum(bool(row["how"]) for row in kept) / max(len(kept), 1)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Killed / all mutants by kind and level, and how they were noticed."""
    lines = [f"{'changed':30} {'original':>10} {'vreg':>10}   values defect error"]
    for kind in [*sorted({row["kind"] for row in rows}), "all"]:
        mine = [row for row in counted(rows) if kind in (row["kind"], "all")]
        cells = [_killed([row for row in mine if row["level"] == level]) for level in LEVELS]
        how = Counter(row["how"] for row in mine)
        lines.append(
            f"{kind:30} {cells[0]:>10} {cells[1]:>10}   "
            f"{how['values']:6} {how['defect']:6} {how['error']:5}"
        )
    left = Counter(row["how"] for row in rows if row["how"] in NOT_COUNTED)
    lines.append(f"score {score(rows):.3f}; not counted: {dict(left)}")
    return "\n".join(lines)


def _killed(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(bool(row['how']) for row in rows)}/{len(rows)}" if rows else "-"


def survivors(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Each survivor: where, and the line before and after."""
    lines = []
    for row in rows:
        if not row["how"]:
            where = f"{row['target']} at {row['level']}, line {row['line'] + 1}"
            lines.append(f"{where}: {row['kind']}")
            lines.append(f"  - {row['old'].strip()[:260]}")
            lines += [f"  + {line.strip()[:260]}" for line in row["new"].splitlines()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chip", default="v5e")
    parser.add_argument("--per", type=int, default=PER_TEXT, help="mutants of each text")
    parser.add_argument("--only", default="", help="part of a kernel's name")
    parser.add_argument("--rows", help="file for a line of JSON for each mutant")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child_main(options.chip, options.per, options.only)
        return
    began = time.monotonic()
    rows = run(options.chip, options.per, options.only)
    print("\n".join(survivors(rows)))
    print(table(rows))
    print(f"{len(rows)} mutants in {time.monotonic() - began:.0f} s")
    if options.rows:
        Path(options.rows).write_text("\n".join(json.dumps(row) for row in rows))


if __name__ == "__main__":
    main()
