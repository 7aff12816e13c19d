"""How long runs take and how much memory they use; printed as the table of docs/speed.md.

Wall-clock seconds of whole pytest runs, the memory of the largest process, and verdicts a second.
Ratios within one report mean something; figures of different machines do not.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax

ROOT = Path(__file__).resolve().parent.parent
INTERPRETERS = ("--mode", "interpret,tpu-interpret")


@dataclass(frozen=True)
class Run:
    """One timed run: wall and CPU seconds, verdicts, memory of the largest process in bytes."""

    name: str
    seconds: float
    cpu: float
    verdicts: int
    memory: int

    def row(self) -> str:
        rate = self.verdicts / self.seconds
        return (
            f"| {self.name} | {self.seconds:.0f} | {self.cpu:.0f} | {self.verdicts} | {rate:.0f} "
            f"| {self.memory / 1e6:.0f} |"
        )


def libtpu_version() -> str:
    """The installed libtpu, or "none"."""
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def timed(name: str, cache: Path, *options: str) -> Run:
    """Runs pytest with a given cache directory; RuntimeError when it fails."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto"]
        command += [f"--report={directory}", "-o", f"cache_dir={cache}", *options]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
        lines = (Path(directory) / "results.jsonl").read_text().splitlines()
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Run(name, seconds, cpu, len(lines), after.ru_maxrss * 1024)


def runs() -> list[Run]:
    """The runs of the report, cold and warm, and with more examples."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory) / "default"
        found.append(timed("default, cold", cache))
        found.append(timed("default, warm", cache))
        for points in (4, 8, 16):
            options = (*INTERPRETERS, "--max-examples", str(points))
            fresh = Path(directory) / f"{points}"
            found.append(timed(f"interpreters, {points} points a case, cold", fresh, *options))
            if points == 8:
                found.append(timed("interpreters, 8 points a case, warm", fresh, *options))
        aot = Path(directory) / "aot"
        every = ("--mode", "aot", "--chip", "all")
        pinned = (*every, "--max-examples", "0")
        found.append(timed("pinned examples on 8 chips, cold", aot, *pinned))
        found.append(timed("pinned examples on 8 chips, warm", aot, *pinned))
    return found


def processor() -> str:
    """The processor's name where Linux tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def report() -> str:
    """docs/speed.md: the machine, the versions, a table."""
    machine = f"{len(os.sched_getaffinity(0))} cores of {processor()}"
    versions = f"Python {platform.python_version()}, jax {jax.__version__}"
    header = [
        f"{machine}; {versions}, libtpu {libtpu_version()}. Memory is the largest process's.\n",
        "| run | seconds | CPU-s | verdicts | verdicts/s | MB |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*header, *(run.row() for run in runs())]) + "\n"


if __name__ == "__main__":
    print(report(), end="")
