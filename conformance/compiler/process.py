"""The process that compiles: its environment, its libtpu, its topologies."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from conformance.chips import Chip, get
from conformance.compiler.dialect import BUNDLES_LABEL

MOSAIC_DUMPS = "mosaic"
SCHEDULE_DUMPS = "schedule"

_DUMP_DIR = "CONFORMANCE_DUMP_DIR"
# Settings of the caller's shell that would change what is compiled, or how.
_REMOVED = (
    "JAX_COMPILATION_CACHE_DIR",  # entries for absent chips are written and never read back
    "JAX_ENABLE_X64",  # index maps become i64 and nothing lowers
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEBUG_NANS",
    "JAX_DISABLE_JIT",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "XLA_FLAGS",
)


def environment(dump_dir: str | Path) -> dict[str, str | None]:
    """Variables for the compiling process; None removes one.

    Args:
      dump_dir: a directory that only this process uses; it is emptied after each compile.

    libtpu ends the process at start on a flag it does not know.
    """
    flags = {
        "xla_mosaic_dump_to": f"{dump_dir}/{MOSAIC_DUMPS}",
        "xla_jf_dump_to": f"{dump_dir}/{SCHEDULE_DUMPS}",
        "xla_jf_dump_llo_text": "true",
        "xla_jf_dump_llo_pass_label_regex": BUNDLES_LABEL,
    }
    removed: dict[str, str | None] = dict.fromkeys(_REMOVED)
    return removed | {
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "LIBTPU_INIT_ARGS": " ".join(f"--{name}={value}" for name, value in flags.items()),
        "TPU_SKIP_MDS_QUERY": "1",  # no metadata server to ask
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process fails on a lock file
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any: silences a warning
        "TPU_WORKER_HOSTNAMES": "localhost",  # likewise
        _DUMP_DIR: str(dump_dir),
    }


def dump_dir() -> Path:
    """Where this process dumps; RuntimeError when it was not started with `environment`."""
    if _DUMP_DIR not in os.environ:
        raise RuntimeError(f"{_DUMP_DIR} is not set: start the process with environment(dump_dir)")
    return Path(os.environ[_DUMP_DIR])


def availability(load: bool = False) -> str | None:
    """Why nothing can be compiled for a TPU here, or None.

    Args:
      load: also load libtpu and describe a topology (about a second, and libtpu stays in the
        process); otherwise only look for the wheel.
    """
    machine = f"{sys.platform} {platform.machine()}"
    if machine != "linux x86_64":
        return f"libtpu has no wheel for {machine}"
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        return "libtpu is not installed; install jax[tpu]"
    return _broken() if load else None


def _broken() -> str | None:
    try:
        device(get("v5e"))
    except Exception as e:
        return f"libtpu describes no topology: {type(e).__name__}: {e}"
    return None


@functools.cache
def device(chip: Chip) -> Any:
    """A device of the chip's topology, to compile for; loads libtpu."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=chip.topology, **chip.topology_kwargs
    )
    first: Any = topology.devices[0]
    if (first.device_kind, first.num_cores) != (chip.device_kind, chip.cores):
        raise RuntimeError(
            f"topology {chip.topology!r} has {first.device_kind!r} with {first.num_cores} cores, "
            f"but chip {chip.name} is {chip.device_kind!r} with {chip.cores}"
        )
    return first


def abstract_mesh(chip: Chip) -> Any:
    """Context in which JAX takes the chip for the device at hand.

    Without it `get_tpu_info()` sees a CPU and refuses rank-1 blocks, `run_scoped`, `sign`...
    """
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh

    described = AbstractDevice(device_kind=chip.device_kind, num_cores=chip.cores, platform="tpu")
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=described))


@functools.cache
def version() -> str:
    """Which libtpu compiles: what it says of its build, in one line. Loads it."""
    return " ".join(device(get("v5e")).client.platform_version.split())


def require_settings() -> None:
    """RuntimeError when x64 is on in this process: index maps would be i64."""
    import jax

    if jax.config.read("jax_enable_x64"):
        raise RuntimeError(
            "jax_enable_x64 is on in the compiling process; Pallas index maps become i64 and "
            "every kernel is refused. Start the process with environment(dump_dir)."
        )
