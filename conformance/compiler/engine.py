"""Trace, lower and compile one function for one chip."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.chips import Chip
from conformance.compiler import dialect, dumps, process
from conformance.compiler.dialect import canonical
from conformance.compiler.refusal import Phase, Refused, refused

# Gives the operations of every program the same name, whatever the function is called.
_PROGRAM_NAME = "kernel"


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A module ready to be compiled.

    Attributes:
      module: its text, kernels readable, without source locations.
      key: of everything the verdict depends on: module, chip, libtpu's build. Hexadecimal.
    """

    chip: str
    module: str
    key: str
    _stage: Any = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A kernel the compiler accepted, and the evidence. Plain data: pickles, `asdict` works.

    Attributes:
      key: see `Lowered.key`.
      module: see `Lowered.module`.
      code_bytes: size of the generated code.
      temp_bytes: HBM for XLA's temporaries, beyond arguments and results.
      calls, mosaic, bundles, vmem, vmem_capacity: see `dumps.Dumps`.
    """

    chip: str
    key: str
    module: str
    code_bytes: int
    temp_bytes: int
    calls: tuple[str, ...]
    mosaic: tuple[dumps.Mosaic, ...]
    bundles: tuple[dumps.Bundles, ...]
    vmem: tuple[dumps.Vmem, ...]
    vmem_capacity: int | None

    @property
    def kernels(self) -> tuple[dumps.Bundles, ...]:
        """The Pallas kernels among the scheduled operations."""
        return tuple(b for b in self.bundles if b.kernel)

    @property
    def vmem_bytes(self) -> int:
        """VMEM of the operation that needs most."""
        return max((v.used for v in self.vmem), default=0)

    @property
    def spilled_bytes(self) -> int:
        """Spill slots of all operations."""
        return sum(v.spilled for v in self.vmem)

    def texts(self, pass_name: str) -> tuple[str, ...]:
        """The Mosaic modules after one pass."""
        return tuple(m.passes[pass_name] for m in self.mosaic if pass_name in m.passes)


def compile_for(
    fn: Callable[..., Any], avals: Sequence[Any], chip: Chip, dump_dir: Path
) -> Compiled | Refused:
    """Traces, lowers and compiles `fn` for a chip.

    Args:
      fn: of arrays alone; options are bound.
      avals: what has `shape` and `dtype`, one an argument.
      dump_dir: as given to `environment`; emptied before and after.

    Raises:
      RuntimeError: x64 is on, or the process has no usable libtpu.
    """
    lowered = lower_for(fn, avals, chip)
    return lowered if isinstance(lowered, Refused) else compile_lowered(lowered, dump_dir)


def lower_for(fn: Callable[..., Any], avals: Sequence[Any], chip: Chip) -> Lowered | Refused:
    """The first half of `compile_for`: cheap, and enough to look a verdict up by `key`."""
    import jax

    process.require_settings()
    arguments = _placed(avals, chip)
    with process.abstract_mesh(chip):
        traced = _attempt("trace", lambda: jax.jit(_named(fn)).trace(*arguments))
        if isinstance(traced, Refused):
            return traced
        stage = _attempt("lower", traced.lower)
    if isinstance(stage, Refused):
        return stage
    module = canonical(stage.as_text())
    return Lowered(chip=chip.name, module=module, key=_key(module, chip), _stage=stage)


def compile_lowered(lowered: Lowered, dump_dir: Path) -> Compiled | Refused:
    """The second half of `compile_for`."""
    dumps.clear(dump_dir)
    try:
        executable = _attempt("compile", lowered._stage.compile)
        if isinstance(executable, Refused):
            return executable
        dumped = dumps.read(dump_dir, kernels=dialect.KERNEL_TARGET in lowered.module)
        return _evidence(lowered, executable, dumped)
    finally:
        dumps.clear(dump_dir)


def _attempt(phase: Phase, step: Callable[[], Any]) -> Any:
    """The step's result or what it was refused with.

    Exception, not a list of types: Mosaic's errors derive from nothing narrower.
    """
    try:
        return step()
    except Exception as e:
        return refused(phase, e)


def _placed(avals: Iterable[Any], chip: Chip) -> list[Any]:
    """Arguments as they would lie on the chip; 64-bit types halved, as JAX does to arrays."""
    import jax
    from jax.sharding import SingleDeviceSharding

    sharding = SingleDeviceSharding(process.device(chip))
    return [
        jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype), sharding=sharding)
        for a in avals
    ]


def _named(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A new function each time, so that JAX's caches let go of it."""

    def call(*arrays: Any) -> Any:
        return fn(*arrays)

    call.__name__ = call.__qualname__ = _PROGRAM_NAME
    return call


def _key(module: str, chip: Chip) -> str:
    parts = (module, chip.name, process.version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _evidence(lowered: Lowered, executable: Any, dumped: dumps.Dumps) -> Compiled:
    memory = executable.memory_analysis()
    return Compiled(
        chip=lowered.chip,
        key=lowered.key,
        module=lowered.module,
        code_bytes=memory.generated_code_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        calls=dumped.calls,
        mosaic=dumped.mosaic,
        bundles=dumped.bundles,
        vmem=dumped.vmem,
        vmem_capacity=dumped.vmem_capacity,
    )
