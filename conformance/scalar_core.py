"""What the scalar core of a chip would do with scheduled code: how often each bundle runs.

Loops, predicated regions (`pl.when`, and the pipeline's own) and the predicates of DMAs are decided
by the scalar core. Its few instructions are translated into Python, those that decide nothing are
left out, and the result is executed over the whole grid. So a region counts exactly as often as
it runs, also where scalar prefetch steers, as long as the prefetched numbers are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from conformance.bundles import NAME, Code, Instruction, names

# Bundles after a branch that run before it takes effect, and the bytes of a DMA granule, by chip
# generation. Seen in the dumps: from a backward branch to the end of its loop, and the ratio of a
# window's size to that of its DMA (tests/test_schedule.py checks both on stored dumps).
DELAY_SLOTS = {2: 1, 3: 1, 4: 1, 5: 4, 6: 4, 7: 6}
GRANULE_BYTES = {2: 1024, 3: 1024, 4: 512, 5: 32, 6: 32, 7: 32}

# Of a loop, before it is taken for endless; 8192^3 in blocks of 128 has 2^18 steps.
MOST_TURNS = 2**23


class Undetermined(Exception):
    """What the scalar core does depends on something that is not known here; the message says."""


class Machine(Protocol):
    """What the code asks of the rest of the chip; times in cycles.

    `start` is told of a DMA (its kind, as "hbm_to_vmem"; its granules; its semaphore) and when.
    `wait` returns when a semaphore has seen so many granules. `add` changes a semaphore.
    """

    def start(self, now: float, kind: str, granules: int, flag: int) -> None: ...

    def wait(self, now: float, flag: int, granules: int) -> float: ...

    def add(self, flag: int, granules: int) -> None: ...


# --------------------------------------------------------------------------- expressions

_WORD = 0xFFFFFFFF
_BINARY = {
    "sadd": "({0} + {1})",
    "ssub": "({0} - {1})",
    "smul": "({0} * {1})",
    "sand": "({0} & {1})",
    "sor": "({0} | {1})",
    "sxor": "({0} ^ {1})",
    "sshll": "({0} << {1})",
    "sshra": "({0} >> {1})",
    "sshrl": f"(({{0}} & {_WORD}) >> {{1}})",
    "pand": "({0} and {1})",
    "por": "({0} or {1})",
    "pnand": "(not ({0} and {1}))",
    "pnor": "(not ({0} or {1}))",
    "pxor": "({0} != {1})",
    "sdivrem": f"divmod({{0}} & {_WORD}, {{1}})",
    "smax": "max({0}, {1})",
    "smin": "min({0}, {1})",
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ALLOCATION = re.compile(r"\[#allocation(\d+)(?: \+ \$(0x[0-9a-f]+))?\]")
_SPILL = re.compile(r"\[smem:\[#allocation(\d+)_spill\]\]")
_SMEM = re.compile(r"\[smem:\[(?P<address>.*)\]\]")
# Far apart, so that addresses of one never look like addresses of another.
_APART = 1 << 32


def _value(text: str) -> str:
    """A printed operand as a Python expression."""
    text = text.strip()
    if found := NAME.fullmatch(text.lstrip("!")):
        return f"(not {found[1]})" if text.startswith("!") else found[1]
    if found := _ALLOCATION.fullmatch(text):
        return str(allocation(int(found[1])) + int(found[2] or "0", 16))
    if re.fullmatch(r"-?\d+", text):
        number = int(text)
        return str(number - (1 << 32) if number > 0x7FFFFFFF else number)
    raise Undetermined(f"operand {text!r}")


def allocation(number: int) -> int:
    """The address of an allocation; only its being its own matters."""
    return (number + 1) * _APART


# A DMA of two cores that signals both has the other core's semaphore, shifted by 16 bits, in the
# number of its own (XLA's matmul on v5p, whose right operand one core fetches for both).
_OWN_FLAG = 0xFFFF_0000_FFFF


def own_flag(flag: int) -> tuple[int, bool]:
    """This core's part of a semaphore's number, and whether there is another core's."""
    own = flag & _OWN_FLAG
    return own, own != flag


def _address(text: str) -> str:
    """What stands inside of `[smem:[...]]`."""
    found = _SMEM.fullmatch(text)
    if found is None:
        raise Undetermined(f"memory operand {text!r}")
    terms = []
    for term in found["address"].split(" + "):
        term = term.strip()
        if term.startswith("#"):
            term = f"[{term}]"
        terms.append(str(int(term[1:], 16)) if term.startswith("$") else _value(term))
    return " + ".join(terms)


def _expression(step: Instruction) -> str:
    """The value of an instruction's result.

    Raises:
      Undetermined: the instruction, or an operand, is unknown.
    """
    name, *kind = step.op.split(".")
    if step.op == "sld":
        spill = _SPILL.fullmatch(step.operands[0])
        return f"spill{spill[1]}" if spill else f"load({_address(step.operands[0])})"
    if name in ("smov", "pmov"):
        return _moved(step)
    if name == "spop":
        return _popped(step)
    if name == "int_to_ptr":
        return _value(step.operands[0])
    operands = [_value(re.sub(r" \[#allocation\d+\]$", "", o)) for o in step.operands[:3]]
    if step.op == "pneg":
        return f"(not {operands[0]})"
    if step.op == "scalar_select":
        return f"({operands[1]} if {operands[0]} else {operands[2]})"
    if name == "scalar_lea":
        return f"({operands[0]} + {operands[1]})"
    if name == "scmp" and kind[1] in ("s32", "u32"):
        wrap = f" & {_WORD}" if kind[1] == "u32" else ""
        return f"(({operands[0]}{wrap}) {_COMPARE[kind[0]]} ({operands[1]}{wrap}))"
    if name in _BINARY and (not kind or kind in (["s32"], ["u32"])):
        return _BINARY[name].format(*operands)
    raise Undetermined(f"instruction {step.op}")


def _moved(step: Instruction) -> str:
    """`smov x`, or `smov (p, old), x`: x where p holds, else what was there."""
    first = step.operands[0]
    if first.startswith("("):
        predicate, old = first[1:-1].split(",")
        return f"({_value(step.operands[1])} if {_value(predicate)} else {_value(old)})"
    return _value(first)


def _popped(step: Instruction) -> str:
    """A quotient, a remainder; anything else comes from the vector unit."""
    if not step.op.startswith("spop.drf"):
        raise Undetermined("a number that the vector unit computes decides")
    return f"d{step.operands[0][1:]}[{step.op[-1]}]"


class _Needs:
    """What the decisions of a program depend on.

    Attributes:
      names: SSA names that are read.
      steps: numbers of the instructions that make them.
    """

    def __init__(self, steps: Sequence[Instruction], roots: Iterable[int]) -> None:
        self.names: set[str] = set()
        self.steps: set[int] = set()
        self._made: dict[str, list[int]] = {}
        for number, step in enumerate(steps):
            for name in _written(step):
                self._made.setdefault(name, []).append(number)
        pending = list(roots)
        while pending:
            number = pending.pop()
            if number not in self.steps:
                self.steps.add(number)
                for name in _read(steps[number]):
                    pending += self._makers(name)

    def _makers(self, name: str) -> Iterable[int]:
        """Instructions that make a name, or store into the memory that is called so."""
        if not name.startswith(_MEMORY):
            self.names.add(name)
            return self._made.get(name, ())
        stored = [n for n in self._made if n.startswith(_MEMORY)]
        near = stored if name == _MEMORY else [n for n in stored if n in (name, _MEMORY)]
        return [number for n in near for number in self._made[n]]


# Scalar memory by allocation; without a number it may be any of them.
_MEMORY = "memory"
_POPPED = re.compile(r"%(\d+)")
_PLACE = re.compile(r"\[smem:\[#allocation(\d+)\b(?!_spill)")


def _memory(operand: str) -> str:
    """What an operand `[smem:[...]]` is a part of."""
    if spill := _SPILL.fullmatch(operand):
        return f"spill{spill[1]}"
    place = _PLACE.match(operand)
    return f"{_MEMORY}{place[1] if place else ''}"


def _written(step: Instruction) -> Iterator[str]:
    """Names that an instruction makes."""
    if step.result:
        yield step.result
    elif step.op == "sst":
        yield _memory(step.operands[0])


def _read(step: Instruction) -> Iterator[str]:
    """Names that an instruction reads."""
    yield from re.findall(r"[sp]\d+", step.predicate)
    operands = step.operands
    if step.op.startswith("dma.") and not _to_smem(step) and step.op != "dma.done.wait":
        operands = (operands[1], operands[3])  # addresses decide nothing
    for operand in operands:
        yield from names(operand)
        if step.op.startswith("spop.drf") and (popped := _POPPED.fullmatch(operand)):
            yield f"d{popped[1]}"
    if step.op == "sld":
        yield _memory(step.operands[0])
    elif step.op == "dma":
        yield _MEMORY


def _to_smem(step: Instruction) -> bool:
    return step.op.startswith("dma.") and step.op.endswith("_to_smem")


class _Smem:
    """Scalar memory: what the code stores, what DMAs copy there, and zeros."""

    def __init__(self, arrays: Mapping[int, Sequence[int]]) -> None:
        self.words: dict[int, int] = {}
        self._arrays = arrays
        self._unknown: set[int] = set()

    def load(self, address: int) -> int:
        """A word. What the runtime leaves there is 0: the number of this chip, of this core."""
        if address // _APART in self._unknown:
            raise Undetermined("a prefetched number decides, and is not given")
        return self.words.get(address, 0)

    def copy(self, source: int, target: int) -> None:
        """A DMA from an operand."""
        if source not in self._arrays:
            self._unknown.add(target // _APART)
        for offset, word in enumerate(self._arrays.get(source, ())):
            self.words[target + offset] = word

    def described(self, address: int) -> tuple[str, int, int]:
        """Kind, granules and semaphore of a DMA that eight words describe (up to v4)."""
        to, source = ("hbm" if self.load(address + n) & 512 else "vmem" for n in (1, 4))
        granules = self.load(address + 6) & 0xFFFFF
        return f"{source}_to_{to}", granules, self.load(address + 7) & ~0x1C00


_REGISTER = "no memory space"
_ROOTS = ("sbr.rel", "vsyncadd", "dma")
_TARGET = re.compile(r"target bundleno = (\d+)")


class Program:
    """The decisions of one operation's code, ready to be executed."""

    def __init__(self, code: Code, generation: int) -> None:
        """Translates the code.

        Args:
          generation: of the chip; branches take effect later on newer ones.

        Raises:
          Undetermined: an instruction that decides something is not known.
        """
        self.code = code
        self._delay = DELAY_SLOTS[generation]
        branches = [s for s in code.instructions if s.op == "sbr.rel"]
        self._branches = {s.bundle + self._delay: s for s in branches}
        starts = {0, *code.loops}
        for step in branches:
            starts |= {_target(step), step.bundle + self._delay + 1}
        self.starts = tuple(sorted(s for s in starts if s < code.count))
        self._function = self._compiled()

    def run(
        self, machine: Machine, scalars: Mapping[int, Sequence[int]]
    ) -> tuple[float, tuple[int, ...]]:
        """Executes the code once.

        Args:
          scalars: by position among the operands, the words of those that steer: as they lie in
            SMEM, or the one that is passed in a register.

        Returns:
          Cycles, and how often each block (from a bundle in `starts` to the next) has run.

        Raises:
          Undetermined: it reads what was never set, or waits for what never comes.
        """
        values, arrays = self._placed(scalars)
        counts = [0] * len(self.starts)
        cycles = self._function(machine, _Smem(arrays), values, counts)
        return cycles, tuple(counts)

    def _placed(
        self, scalars: Mapping[int, Sequence[int]]
    ) -> tuple[dict[str, int], dict[int, Sequence[int]]]:
        """Operands by name: an address, or the number itself; and what lies at the addresses."""
        values: dict[str, int] = {}
        arrays: dict[int, Sequence[int]] = {}
        for name in self._given:
            operand = self.code.operands[name]
            words = None if operand.output else scalars.get(operand.index)
            address = -(operand.index + 1) * _APART << 8
            values[name] = address
            if operand.memory == _REGISTER:
                if words is None:
                    raise Undetermined(f"operand {operand.index} decides, and is not given")
                values[name] = words[0]
            elif words is not None:
                # Addresses of DMAs are shifted, to be counted in other units.
                arrays |= dict.fromkeys((address, address << 4), words)
        return values, arrays

    # ----- source

    def _compiled(self) -> Callable[..., float]:
        steps = self.code.instructions
        needs = _Needs(steps, (n for n, s in enumerate(steps) if s.op.startswith(_ROOTS)))
        self._phis = _phis(steps, needs)
        lines = ["def function(machine, smem, values, counts):", "    load = smem.load"]
        read = sorted({*needs.names, *(f"in_{d}" for d in self._phis)})
        given = [n for n in read if n in self.code.operands]
        self._given = tuple(given)
        lines += [f"    {n} = 0" for n in read if n not in given]
        lines += [f"    {n} = values[{n!r}]" for n in given]
        lines += ["    now, at = 0.0, 0", "    while True:"]
        for number, start in enumerate(self.starts):
            lines += self._block(number, start, needs)
        scope: dict[str, Any] = {"endless": _endless}
        exec(compile("\n".join(lines), "<bundles>", "exec"), scope)
        return scope["function"]

    def _block(self, number: int, start: int, needs: _Needs) -> list[str]:
        """The source of one block; `now` is the time at its first bundle."""
        last = number + 1 == len(self.starts)
        end = self.code.count if last else self.starts[number + 1]
        steps = self.code.instructions
        inside = [n for n in sorted(needs.steps) if start <= steps[n].bundle < end]
        lines = [f"counts[{number}] += 1"]
        incoming = [n for n in inside if steps[n].op == "sphi"]
        if incoming:
            targets = ", ".join(steps[n].result for n in incoming)
            lines.append(f"{targets} = {', '.join(f'in_{steps[n].result}' for n in incoming)}")
        for n in inside:
            if steps[n].op not in ("sphi", "sbr.rel"):
                lines += self._step(steps[n], steps[n].bundle - start)
        lines.append(f"now += {end - start}")
        branch = self._branches.get(end - 1)
        if branch is not None:
            target = self.starts.index(_target(branch))
            condition = branch.predicate or "True"
            lines += [f"if {condition}:", f"    at = {target}"]
            if target <= number:
                lines.append(f"    if counts[{target}] > {MOST_TURNS}: endless()")
            lines.append("    continue")
        lines.append("return now" if last else f"at = {number + 1}")
        # Blocks follow each other in order, so that falling through needs no search.
        return [f"        if at == {number}:", *(f"            {line}" for line in lines)]

    def _step(self, step: Instruction, offset: int) -> list[str]:
        """Statements of one instruction, `offset` bundles into its block."""
        if step.result:
            value = _expression(step)
            if step.predicate:
                value = f"{value} if {step.predicate} else 0"
            lines = [f"{step.result} = {value}"]
            carried = (phi for phi, of in self._phis.items() if step.result in of)
            return lines + [f"in_{phi} = {step.result}" for phi in carried]
        lines = list(_effect(step, offset))
        if step.predicate and lines:
            return [f"if {step.predicate}:", *(f"    {line}" for line in lines)]
        return lines


def _effect(step: Instruction, offset: int) -> Iterator[str]:
    """Statements of an instruction without a result."""
    if step.op == "sst":
        spill, value = _SPILL.fullmatch(step.operands[0]), _value(step.operands[1])
        place = f"spill{spill[1]}" if spill else f"smem.words[{_address(step.operands[0])}]"
        yield f"{place} = {value}"
    elif step.op == "vsyncadd":
        yield f"machine.add({_value(step.operands[0])}, {_value(step.operands[1])})"
    elif step.op == "dma":
        yield f"machine.start(now + {offset}, *smem.described({_value(step.operands[0])}))"
    elif step.op == "dma.done.wait":
        flag, granules = _value(step.operands[0]), _value(step.operands[1])
        yield f"now = machine.wait(now + {offset}, {flag}, {granules}) - {offset}"
    elif step.op.startswith("dma."):
        granules, flag = _value(step.operands[1]), _value(step.operands[3])
        yield f"machine.start(now + {offset}, {step.op[4:]!r}, {granules}, {flag})"
        if _to_smem(step):
            yield f"smem.copy({_value(step.operands[0])}, {_value(step.operands[2])})"
    else:
        raise Undetermined(f"instruction {step.op}")


def _endless() -> None:
    raise Undetermined(f"a loop runs more than {MOST_TURNS} times, if it ends")


def _target(branch: Instruction) -> int:
    found = _TARGET.search(" ".join(branch.operands))
    if found is None:
        raise Undetermined(f"branch to {branch.operands}")
    return int(found[1])


def _phis(steps: Sequence[Instruction], needs: _Needs) -> dict[str, set[str]]:
    """Loop-carried names -> what they can come from.

    All share one register, so it is whichever was made last.
    """
    return {
        steps[n].result: {name for operand in steps[n].operands for name in names(operand)}
        for n in needs.steps
        if steps[n].op == "sphi"
    }
