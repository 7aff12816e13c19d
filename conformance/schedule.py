"""How long compiled code would take on a chip that is not here: predicted, never measured.

The compiler's own schedule says how many cycles each region of the code takes (a bundle is a
cycle), the scalar core's decisions say how often it runs (`conformance.scalar_core`), and each DMA
is served by one memory whose bandwidth all share, after a latency. The code waits where it waits
for DMAs. That is the usual model of a pipeline's steps,

    overhead + prologue + sum of max(cycles / clock, latency + bytes / bandwidth) + epilogue

except that nothing has to be assumed about which step fetches what and when: prologue, bubbles
and epilogue are in the code. XLA's own operations are scheduled and predicted the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.bundles import parse
from conformance.chips import Chip
from conformance.scalar_core import GRANULE_BYTES, Program, Undetermined, own_flag

LABEL = "predicted"


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A number of the model and where it comes from.

    Attributes:
      kind: "derived" (from published or dumped numbers) or "fitted" (to published timings).
      source: from which.
    """

    value: float
    unit: str
    kind: str
    source: str


DMA_LATENCY = Constant(
    value=446.7e-9,
    unit="s",
    kind="fitted",
    source="published time of matmul 4096^3, bf16, in blocks 128/128/128 on v5e",
)
DISPATCH = Constant(
    value=106.6e-6,
    unit="s",
    kind="fitted",
    source="mean of four published times on v5e of matmuls 1024^3, bf16, less their device time: "
    "three kernels in blocks 512/1024/1024, and XLA",
)
# The only chip with published timings of known kernels.
VALIDATED = ("v5e",)

# What predictions of published times that are bound by arithmetic, or by the latency of DMAs, are
# held to (tests/test_predicted.py): no difference below it means anything.
ACCURACY = Constant(
    value=0.06,
    unit="1",
    kind="derived",
    source="largest errors against published times: docs/predicted.md",
)

# Multiply-accumulates of one cell of a matrix unit in a cycle, in bf16, where it is not one: in a
# dense schedule 512 x 1024 x 1024 of them take 2048 bundles and a little, on 2 units of 256 x 256.
_RATE = {6: 2, 7: 2}


def clock(chip: Chip) -> Constant:
    """Cycles a second: peak operations a second by operations a cycle."""
    info = chip.info
    rate = _RATE.get(info.generation, 1)
    cells = info.num_mxus * info.mxu_column_size**2
    return Constant(
        value=info.bf16_ops_per_second / (2 * cells * rate),
        unit="Hz",
        kind="derived",
        source=f"TpuInfo: {info.bf16_ops_per_second:.4g} bf16 operations/s by 2 x {info.num_mxus} "
        f"units x {info.mxu_column_size}^2 cells x {rate}",
    )


# --------------------------------------------------------------------------- DMAs


class _Memory:
    """HBM and its DMAs: one queue with a rate, and a latency after it. Times in cycles.

    Attributes:
      moved: bytes into or out of HBM so far.
      stalled: cycles that the code has waited.
      shared: whether a DMA was for both cores; each is taken to bear half of it.
    """

    def __init__(self, granule: int, cycles_per_byte: float, latency: float) -> None:
        self._granule, self._rate, self._latency = granule, cycles_per_byte, latency
        self._free = 0.0
        self._pending: dict[int, deque[tuple[float, int]]] = {}
        self._arrived: dict[int, int] = {}
        self.moved = 0
        self.stalled = 0.0
        self.shared = False

    def start(self, now: float, kind: str, granules: int, flag: int) -> None:
        flag, both = own_flag(flag)
        self.shared |= both
        size = granules * self._granule // (2 if both else 1)
        hbm = kind.split("_").count("hbm")
        done = now
        if hbm:
            self._free = max(now, self._free) + size * hbm * self._rate
            done = self._free + self._latency
            self.moved += size * hbm
        self._pending.setdefault(flag, deque()).append((done, granules))

    def wait(self, now: float, flag: int, granules: int) -> float:
        pending, then = self._pending.get(flag), now
        while self._arrived.get(flag, 0) < granules:
            if not pending:
                raise Undetermined("it waits for a DMA or a signal from elsewhere")
            done, some = pending.popleft()
            self._arrived[flag] = self._arrived.get(flag, 0) + some
            then = max(then, done)
        self.stalled += then - now
        return then

    def add(self, flag: int, granules: int) -> None:
        self._arrived[flag] = self._arrived.get(flag, 0) + granules


# --------------------------------------------------------------------------- predictions


@dataclass(frozen=True, kw_only=True)
class Region:
    """Bundles that run together.

    Attributes:
      start: number of its first bundle.
      bundles: how many it has.
      runs: how often it runs.
    """

    start: int
    bundles: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a program, predicted.

    Attributes:
      hlo: its name in the program.
      kernel: whether it is a Pallas kernel.
      cycles: of its code, waiting left out.
      stalled: cycles that it waits for DMAs.
      latency: those of them that it would not wait if DMAs had no latency; 0 where the waiting
        is too little to matter.
      moved: bytes into or out of HBM.
      steps: turns of its first loop, which is over the grid; a pipeline takes more turns than the
        grid has steps, to fill and to drain. 1 without a loop.
      in_vmem: positions of the operands and results that XLA placed in VMEM.
      shared: whether one of its DMAs is for both cores.
      regions: its code.
    """

    hlo: str
    kernel: bool
    cycles: float
    stalled: float
    latency: float
    moved: int
    steps: int
    in_vmem: frozenset[int] = frozenset()
    shared: bool = False
    regions: tuple[Region, ...] = field(repr=False)

    @property
    def step_cycles(self) -> float:
        """Cycles of a turn of the loop on average, waiting included."""
        return (self.cycles + self.stalled) / self.steps


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of a program on a chip.

    Attributes:
      seconds: on the device, all operations one after the other.
      operations: kernels and XLA's own.
      clock, latency, bandwidth: what it was computed with.
      limits: why it may be wrong; empty within the model's validity.
      label: what every number in here is.
    """

    chip: str
    seconds: float
    operations: tuple[Operation, ...]
    clock: Constant
    latency: Constant
    bandwidth: Constant
    limits: tuple[str, ...]
    label: str = LABEL

    @property
    def wall_seconds(self) -> float:
        """With the dispatch that the published wall times include."""
        return self.seconds + DISPATCH.value

    @property
    def moved(self) -> int:
        """Bytes into or out of HBM."""
        return sum(o.moved for o in self.operations)


@dataclass(frozen=True, kw_only=True)
class Unpredicted:
    """A program whose time cannot be predicted, and why."""

    chip: str
    reason: str
    label: str = LABEL


# Of all cycles, the part above which a cause of waiting is worth saying.
_SHARE = 0.1


def predict(
    compiled: Any,
    chip: Chip,
    scalars: Mapping[int, np.ndarray] | None = None,
    latency: Constant = DMA_LATENCY,
) -> Prediction | Unpredicted:
    """Predicts a compiled program.

    Args:
      compiled: a `conformance.compiler.Compiled`.
      scalars: by position among the kernel's operands, integers that steer it (scalar prefetch,
        dynamic grid bounds).
      latency: of a DMA, if not the fitted one.
    """
    if not compiled.bundles:
        return Unpredicted(chip=chip.name, reason="the program has no code")
    operations = []
    for dumped in compiled.bundles:
        try:
            operations.append(operation(dumped, chip, scalars or {}, latency))
        except Undetermined as e:
            return Unpredicted(chip=chip.name, reason=f"{dumped.hlo}: {e}")
    cycles = sum(o.cycles + o.stalled for o in operations)
    limits = [
        *_general_limits(operations, chip, scalars or {}),
        *_limits(operations, cycles, bool(scalars)),
    ]
    return Prediction(
        chip=chip.name,
        seconds=cycles / clock(chip).value,
        operations=tuple(operations),
        clock=clock(chip),
        latency=latency,
        bandwidth=bandwidth(chip),
        limits=tuple(limits),
    )


def bandwidth(chip: Chip) -> Constant:
    """HBM bytes a second of one core."""
    value = chip.info.mem_bw_bytes_per_second
    return Constant(value=value, unit="B/s", kind="derived", source="TpuInfo")


def operation(
    dumped: Any, chip: Chip, scalars: Mapping[int, np.ndarray], latency: Constant = DMA_LATENCY
) -> Operation:
    """One operation from its bundles (`dumps.Bundles`).

    Raises:
      Undetermined: its control flow depends on data.
    """
    code = parse(dumped.text)
    program = Program(code, chip.info.generation)
    given = {n: _in_smem(np.asarray(a)) for n, a in scalars.items()} if dumped.kernel else {}
    memory, total, counts = _run(program, chip, given, latency.value)
    saved = 0.0
    if memory.stalled > _SHARE * total:
        saved = total - _run(program, chip, given, 0.0)[1]
    ends = (*program.starts[1:], code.count)
    regions = tuple(
        Region(start=s, bundles=e - s, runs=n)
        for s, e, n in zip(program.starts, ends, counts, strict=True)
    )
    return Operation(
        hlo=dumped.hlo,
        kernel=dumped.kernel,
        cycles=total - memory.stalled,
        stalled=memory.stalled,
        latency=saved,
        moved=memory.moved,
        steps=next((r.runs for r in regions if r.start in code.loops), 1),
        shared=memory.shared,
        in_vmem=frozenset(o.index for o in code.operands.values() if o.memory == "vmem"),
        regions=regions,
    )


def _run(
    program: Program, chip: Chip, scalars: Mapping[int, Sequence[int]], latency: float
) -> tuple[_Memory, float, tuple[int, ...]]:
    """The memory afterwards, cycles, and runs of each block; latency in seconds."""
    frequency = clock(chip).value
    memory = _Memory(
        GRANULE_BYTES[chip.info.generation],
        frequency / bandwidth(chip).value,
        latency * frequency,
    )
    total, counts = program.run(memory, scalars)
    return memory, total, counts


def _in_smem(array: np.ndarray) -> Sequence[int]:
    """Words as SMEM holds them: rows of two-dimensional arrays padded to 128."""
    if array.ndim >= 2:
        width = array.shape[-1]
        padded = -(-width // 128) * 128
        array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, padded - width)])
    words: Sequence[int] = array.astype(np.int64).ravel().tolist()
    return words


def _general_limits(
    operations: Sequence[Operation], chip: Chip, scalars: Mapping[int, Any]
) -> list[str]:
    found = []
    if chip.name not in VALIDATED:
        found.append(f"no published timing on {chip.name} to compare with")
    if chip.megacore:
        found.append("one of two cores; what they share is not modelled")
    if any(o.shared for o in operations):
        found.append("a fetch for both cores is taken to cost each of them half")
    if any(o.kernel and not o.in_vmem <= set(scalars) for o in operations):
        found.append("XLA placed operands in VMEM; how they get there is not counted")
    return found


def _limits(operations: Sequence[Operation], cycles: float, steered: bool) -> list[str]:
    found = []
    latency = sum(o.latency for o in operations)
    if latency > _SHARE * cycles:
        found.append("bound by the latency of DMAs, which is fitted to one published time")
    if sum(o.stalled for o in operations) - latency > _SHARE * cycles:
        found.append("bound by HBM bandwidth, taken to be all that TpuInfo says")
    if steered:
        found.append("steered by scalar prefetch: holds for these numbers only")
    return found
