"""Device time as JAX's profiler records it: one trace for each call.

On a TPU the profile has a plane for each device, `/device:TPU:0`. Its line "XLA Modules" has one
event for each run of a program, from the first instruction to the last; "XLA Ops" has one for each
operation. Nothing here is host time but `Sample.wall`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from conformance.timing import ClockError, Sample, check

_DEVICE = re.compile(r"/device:TPU:\d+")
_MODULES, _OPS = "XLA Modules", "XLA Ops"
_KERNEL = 'custom_call_target="tpu_custom_call"'
_NAME = re.compile(r"\s*(?:ROOT )?%?([\w.-]+)")

# xprof gives times in microseconds with fewer digits; more than that is a contradiction.
_AGREEMENT = 0.01


class ProfilerClock:
    """Times one call by one trace of its own: long profiles lose events."""

    def sample(self, program: Any, arguments: tuple[Any, ...]) -> Sample:
        kernels = kernel_ops(program.as_text())
        with tempfile.TemporaryDirectory(prefix="conformance-trace-") as directory:
            with jax.profiler.trace(directory, profiler_options=_options()):
                start = time.perf_counter()
                results = jax.block_until_ready(program(*arguments))
                wall = time.perf_counter() - start
            file = profile(Path(directory))
            device, ops = device_time(jax.profiler.ProfileData.from_file(str(file)))
            second_opinion(file, ops, kernels)
        of_kernels = sum(ops[name] for name in kernels) if kernels and kernels <= set(ops) else None
        return check(Sample(wall=wall, device=device, kernel=of_kernels, ops=ops, results=results))


def _options() -> Any:
    """No events of Python: they fill the profile and slow the host down."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    return options


def kernel_ops(text: str) -> frozenset[str]:
    """Names of the operations of a compiled program that are Pallas kernels."""
    lines = (line for line in text.splitlines() if _KERNEL in line)
    return frozenset(found[1] for line in lines if (found := _NAME.match(line)))


def profile(directory: Path) -> Path:
    """The one profile below a directory that a trace was written to; ClockError."""
    found = sorted(directory.glob("**/*.xplane.pb"))
    if len(found) != 1:
        raise ClockError(f"the trace left {len(found)} profiles in {directory}, not one")
    return found[0]


def device_time(data: Any) -> tuple[float, Mapping[str, float]]:
    """Seconds of the one program that ran during a trace, and of each of its operations.

    Args:
      data: a `jax.profiler.ProfileData`.

    Raises:
      ClockError: no TPU was traced, nothing or more than one program ran, or on several devices.
    """
    lines = _busy_device(data)
    ops: dict[str, float] = defaultdict(float)
    for event in lines.get(_OPS, ()):
        found = _NAME.match(event.name)
        ops[found[1] if found else event.name] += event.duration_ns * 1e-9
    if _MODULES not in lines:
        return _covered(lines[_OPS]), ops
    modules = lines[_MODULES]
    if len(modules) != 1:
        names = ", ".join(e.name for e in modules) or "none"
        raise ClockError(f"one call was made, but the device ran {len(modules)} programs: {names}")
    return modules[0].duration_ns * 1e-9, ops


def _busy_device(data: Any) -> dict[str, list[Any]]:
    """The events of the only device that did anything, by line."""
    planes, busy = [], {}
    for plane in data.planes:
        planes.append(plane.name)
        if _DEVICE.fullmatch(plane.name):
            lines = {line.name: list(line.events) for line in plane.lines}
            lines = {name: lines[name] for name in (_MODULES, _OPS) if name in lines}
            if any(lines.values()):
                busy[plane.name] = lines
    if not any(_DEVICE.fullmatch(name) for name in planes):
        raise ClockError(
            f"the trace has no plane of a TPU (/device:TPU:0); it has {', '.join(planes) or 'none'}"
        )
    if not busy:
        raise ClockError("the trace has no event of a program on a TPU")
    if len(busy) > 1:
        raise ClockError(f"one call was made, but several devices were busy: {', '.join(busy)}")
    return next(iter(busy.values()))


def _covered(events: Iterable[Any]) -> float:
    """Seconds in which any of the events ran; a loop is an event around those of its body."""
    total, end = 0.0, 0.0
    for event in sorted(events, key=lambda e: e.start_ns):
        total += max(0.0, event.end_ns - max(end, event.start_ns))
        end = max(end, event.end_ns)
    return total * 1e-9


# --------------------------------------------------------------------------- xprof


def second_opinion(file: Path, ops: Mapping[str, float], kernels: Iterable[str]) -> None:
    """Compares the kernels' times with those that xprof finds, where it is installed.

    Raises:
      ClockError: they differ.
    """
    if importlib.util.find_spec("xprof") is None:
        return
    converter = importlib.import_module("xprof.convert.raw_to_tool_data")
    text, _ = converter.xspace_to_tool_data([str(file)], "hlo_stats", {})
    theirs = operations(json.loads(text))
    for name in kernels:
        if name not in theirs or name not in ops:
            continue
        if abs(theirs[name] - ops[name]) > _AGREEMENT * ops[name]:
            raise ClockError(
                f"kernel {name} took {ops[name]:.6g} s by its events, {theirs[name]:.6g} s by xprof"
            )


def operations(table: Mapping[str, Any]) -> Mapping[str, float]:
    """Seconds of each operation from xprof's table `hlo_stats`, whose times are microseconds."""
    columns = [column["id"] for column in table["cols"]]
    name, time_us = columns.index("hlo_op_name"), columns.index("total_time")
    found: dict[str, float] = defaultdict(float)
    for row in table["rows"]:
        cells = row["c"]
        found[str(cells[name]["v"]).removeprefix("%")] += float(cells[time_us]["v"]) * 1e-6
    return found
