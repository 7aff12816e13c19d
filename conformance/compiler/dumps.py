"""Reading, and clearing away, what libtpu dumped during one compile."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.compiler.dialect import (
    BUNDLES_LABEL,
    GENERATED_STEMS,
    KEPT_PASSES,
    KERNEL_TARGET,
    PROGRAM,
)
from conformance.compiler.process import MOSAIC_DUMPS, SCHEDULE_DUMPS


@dataclass(frozen=True, kw_only=True)
class Mosaic:
    """One Mosaic kernel on its way through the compiler.

    Attributes:
      name: of the kernel; "anonymous" before JAX 0.12.
      passes: pass name -> text of the module after it; see `dialect.KEPT_PASSES`.
    """

    name: str
    passes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """The scheduled code of one operation of the program.

    Attributes:
      hlo: its name in the program.
      kernel: whether it is a Pallas kernel; otherwise XLA's own code.
      count: instruction bundles, each executed as often as its region runs.
      text: the bundles.
    """

    hlo: str
    kernel: bool
    count: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Vmem:
    """VMEM of one operation of the program.

    Attributes:
      used: bytes allocated, the spills among them.
      spilled: bytes of register allocator spill slots.
      padding: bytes that tiling added.
    """

    hlo: str
    used: int
    spilled: int
    padding: int


@dataclass(frozen=True, kw_only=True)
class Dumps:
    """Everything kept of one compile.

    Attributes:
      calls: names of the Pallas kernels in the program as scheduled, in its order.
      mosaic: one entry a dump, in the order of the dump, which is not that of the calls. Equal
        kernels on equally placed operands share one.
      bundles: kernels and XLA's own operations, sorted by name. Of equal kernels on equally
        placed operands one stands for all, so there may be fewer than `calls`.
      vmem: operations that allocate VMEM. One whose operands XLA itself placed there is absent.
      vmem_capacity: bytes; None when there was no report.
    """

    calls: tuple[str, ...]
    mosaic: tuple[Mosaic, ...]
    bundles: tuple[Bundles, ...]
    vmem: tuple[Vmem, ...]
    vmem_capacity: int | None


def clear(dump_dir: Path) -> None:
    """Removes all dumps, also those of a process that died."""
    for name in (MOSAIC_DUMPS, SCHEDULE_DUMPS):
        shutil.rmtree(dump_dir / name, ignore_errors=True)
        (dump_dir / name).mkdir(parents=True)


_CALL = re.compile(rf'%(?P<name>\S+) = [^\n]*custom_call_target="{KERNEL_TARGET}"')


def read(dump_dir: Path, kernels: bool = True) -> Dumps:
    """What one compile left in a directory that was clear before.

    Args:
      kernels: the program has Pallas kernels; one that is a constant leaves nothing.

    Raises:
      RuntimeError: no program was dumped there.
      ValueError: the VMEM report has another form.
    """
    schedule = dump_dir / SCHEDULE_DUMPS
    program = next(schedule.glob(f"*-{PROGRAM}-hlo.txt"), None)
    if program is None and not kernels:
        return Dumps(calls=(), mosaic=(), bundles=(), vmem=(), vmem_capacity=None)
    if program is None:
        raise RuntimeError(
            f"no program in {schedule}: start the process with environment({str(dump_dir)!r})"
        )
    calls = tuple(found["name"] for found in _CALL.finditer(program.read_text()))
    capacity, vmem = _vmem(schedule)
    return Dumps(
        calls=calls,
        mosaic=tuple(_mosaic(dump_dir / MOSAIC_DUMPS)),
        bundles=tuple(_bundles(schedule, calls)),
        vmem=vmem,
        vmem_capacity=capacity,
    )


_MOSAIC_FILE = re.compile(r"(?P<run>\d+)-(?P<step>\d+)-mosaic-dump-(?P<rest>.+)\.txt")


def _mosaic(folder: Path) -> Iterator[Mosaic]:
    """One entry a run of the pass pipeline; runs that only deserialise have no kept pass."""
    runs: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(folder.iterdir()):
        found = _MOSAIC_FILE.fullmatch(path.name)
        for name in KEPT_PASSES:
            if found and found["rest"].endswith(f"-{name}"):
                kernel = found["rest"].removesuffix(f"-{name}")
                runs.setdefault((found["run"], kernel), {})[name] = path.read_text()
    for (_, kernel), passes in sorted(runs.items()):
        yield Mosaic(name=kernel, passes=passes)


_BUNDLES_FILE = re.compile(rf"\d+-(?P<hlo>.+)-\d+-{BUNDLES_LABEL}\.txt")
_BUNDLE = re.compile(r"^ *(?:0x)?[0-9a-f]+ .*?: +(?:> *)*\{", re.M)  # one > a loop


def _bundles(folder: Path, calls: Collection[str]) -> Iterator[Bundles]:
    files = {
        found["hlo"]: path
        for path in folder.iterdir()
        if (found := _BUNDLES_FILE.fullmatch(path.name))
    }
    for hlo, path in sorted(files.items()):
        if hlo not in GENERATED_STEMS:
            text = path.read_text()
            count = len(_BUNDLE.findall(text))
            yield Bundles(hlo=hlo, kernel=hlo in calls, count=count, text=text)


_REPORT = re.compile(r"const DATA\s*=\s*(?=\{)")
_WHOLE_PROGRAM = "<top-inlining-caller>"
_SPILL = "SPILL"


def _vmem(folder: Path) -> tuple[int | None, tuple[Vmem, ...]]:
    """Capacity and use from the report's embedded JSON."""
    report = next(folder.glob("*-vmem_report.html"), None)
    if report is None:
        return None, ()
    text = report.read_text()
    start = _REPORT.search(text)
    if start is None:
        raise ValueError(f"{report.name}: no embedded data")
    data, _ = json.JSONDecoder().raw_decode(text, start.end())
    operations = (data["hlo_breakdowns"] or {}).items()  # null when nothing uses VMEM
    return data["global_info"]["vmem_capacity"], tuple(
        _operation(hlo, entry) for hlo, entry in sorted(operations) if hlo != _WHOLE_PROGRAM
    )


def _operation(hlo: str, entry: dict[str, Any]) -> Vmem:
    allocations = [a for block in entry["blocks"] for a in block.get("allocations", ())]
    spills = (a["size"] for a in allocations if a["tag"].upper() == _SPILL)
    return Vmem(
        hlo=hlo,
        used=entry["total_size"],
        spilled=sum(spills),
        padding=sum(a["padding"] for a in allocations),
    )
