"""Bundles of one operation as libtpu prints them after register allocation.

One line is one bundle, which takes a cycle; stalls are bundles without instructions. Kept of it
is what decides which bundles run and what is moved: the instructions of the scalar core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction of the scalar core, or one that it issues.

    Attributes:
      bundle: the number of its bundle.
      result: SSA name, without the register; "" if nothing reads it.
      register: the physical register of the result.
      op: as printed, "sadd.s32".
      predicate: Python expression; "" if it always runs.
      operands: as printed, the predicate left out.
    """

    bundle: int
    result: str
    register: str
    op: str
    predicate: str
    operands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An operand or result of the operation: where XLA put it, its shape, its position."""

    memory: str
    shape: tuple[int, ...]
    index: int
    output: bool


@dataclass(frozen=True, kw_only=True)
class Code:
    """The bundles of one operation.

    Attributes:
      count: how many there are.
      loops: first bundles of loop bodies (label LB).
      instructions: those of the scalar core, in order.
      operands: by SSA name.
    """

    count: int
    loops: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    operands: Mapping[str, Operand]


_LEGEND = "= control target key end"
# The innermost: libtpu 0.0.42 prints a comment within a comment.
_COMMENT = re.compile(r"/\*(?:(?!/\*).)*?\*/", re.S)
_LINE = re.compile(
    r" *(?:0x)?(?P<number>[0-9a-f]+) +(?P<label>[A-Z]{2})?: *(?:> ?)*\{(?P<body>.*)\}"
)
_OPERAND = re.compile(
    r"%(?P<name>s\d+)_s\d+ = inlined_call_operand\.(?P<memory>\S+|<no memory space>) "
    r"\[shape: \w+\[(?P<shape>[\d,]*)\][^,]*, index: (?P<index>\d+), kind: (?P<kind>\w+)"
)
_RESULT = re.compile(r"%(?P<name>[sp]\d+)_(?P<register>[sp]\d+) = (?P<rest>.*)", re.S)
_EFFECT = re.compile(r"%(?P<name>\d+) = (?P<rest>(?:sst|dma|vsyncadd|sbr\.rel|sdivrem)\b.*)", re.S)
_PREDICATE = re.compile(r"\(!?%p\d+_p\d+\)")


def parse(text: str) -> Code:
    """The code in a dump of bundles.

    Raises:
      ValueError: the text is not such a dump, or a bundle is missing.
    """
    _, found, body = text.partition(_LEGEND)
    if not found:
        raise ValueError("not a dump of bundles: there is no legend of labels")
    instructions: list[Instruction] = []
    operands: dict[str, Operand] = {}
    loops: list[int] = []
    count = 0
    for match in _LINE.finditer(_without_comments(body)):
        number = int(match["number"], 16)
        if number != count:
            raise ValueError(f"bundle {count:#x} is missing before {number:#x}")
        count += 1
        if match["label"] == "LB":
            loops.append(number)
        for part in match["body"].split(";;"):
            if operand := _OPERAND.match(part.strip()):
                operands[operand["name"]] = _operand(operand)
            elif (instruction := _instruction(number, part.strip())) is not None:
                instructions.append(instruction)
    return Code(
        count=count,
        loops=tuple(loops),
        instructions=tuple(_pops(instructions)),
        operands=operands,
    )


def _without_comments(text: str) -> str:
    removed = 1
    while removed:
        text, removed = _COMMENT.subn("", text)
    return text


def _operand(found: re.Match[str]) -> Operand:
    return Operand(
        memory=found["memory"].strip("<>"),
        shape=tuple(int(n) for n in found["shape"].split(",") if n),
        index=int(found["index"]),
        output=found["kind"] == "output",
    )


def _instruction(bundle: int, text: str) -> Instruction | None:
    """One instruction; None for those of the vector units."""
    found = _RESULT.match(text)
    effect = None if found else _EFFECT.match(text)
    if found is None and effect is None:
        return None
    op, _, rest = (found or effect)["rest"].partition(" ")  # type: ignore[index]
    result = found["name"] if found else ""
    if effect and op.startswith("sdivrem"):
        result = f"d{effect['name']}"
    rest = re.sub(r"\[(?:thread|resolvable):[^\]]*\]", "", rest)
    predicate = ""
    if match := _PREDICATE.search(rest):
        predicate = _condition(match[0][1:-1])
        rest = rest[: match.start()] + rest[match.end() :]
    if op == "sst":
        rest = rest.replace("]]", "]],", 1)
    parts = re.split(r",(?![^\[(]*[\])])", rest)
    return Instruction(
        bundle=bundle,
        result=result,
        register=found["register"] if found else "",
        op=op,
        predicate=predicate,
        operands=tuple(p.strip() for p in parts if p.strip()),
    )


def _condition(text: str) -> str:
    """A printed predicate, possibly negated, as a Python expression."""
    name = names(text)[0]
    return f"(not {name})" if text.startswith("!") else name


NAME = re.compile(r"%([sp]\d+)_[sp]\d+")


def names(text: str) -> list[str]:
    """SSA names in a printed operand, without their registers."""
    return NAME.findall(text)


def _pops(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """With quotient and remainder, which are popped in this order, told apart by a suffix."""
    popped: set[str] = set()
    for step in instructions:
        if step.op == "spop.drf":
            source = step.operands[0]
            yield replace(step, op=f"{step.op}.{int(source in popped)}")
            popped.add(source)
        else:
            yield step
