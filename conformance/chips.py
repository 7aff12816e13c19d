"""The TPU generations the compiler is asked about: one row each.

A row holds what cannot be asked of JAX: the topology to compile for, the number of cores that
act as one device, the name of the chip version. Peaks, bandwidths, memories and native matmul
types are JAX's own (`Chip.info`). libtpu is never loaded by this module.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A TPU generation in one configuration.

    Attributes:
      name: as in `--chip`.
      topology: name for `topologies.get_topology_desc`; the smallest every libtpu accepts.
      version: value of `pltpu.ChipVersion`.
      device_kind: what the devices of that topology (and of a real host) call themselves.
      cores: TensorCores that form one device; grid dimensions marked `parallel` are split
        over them.
      config: libtpu's chip configuration; None is its default (on v4: one core a device).
    """

    name: str
    topology: str
    version: str
    device_kind: str
    cores: int = 1
    config: str | None = None

    @property
    def megacore(self) -> bool:
        """Whether two TensorCores act as one device."""
        return self.cores > 1

    @property
    def topology_kwargs(self) -> dict[str, str]:
        """Further arguments of `topologies.get_topology_desc`."""
        return {} if self.config is None else {"chip_config_name": self.config}

    @functools.cached_property
    def info(self) -> pltpu.TpuInfo:
        """JAX's description of one TensorCore: operations and bytes a second, bytes of memory.

        Per core: multiply by `cores` for a device. Zero operations a second means that JAX
        publishes no figure for that type.
        """
        from jax.experimental.pallas import tpu as pltpu

        return pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(self.version), self.cores)


ALL: tuple[Chip, ...] = (
    Chip(name="v2", topology="v2:2x2", version="v2", device_kind="TPU v2"),
    Chip(name="v3", topology="v3:2x2", version="v3", device_kind="TPU v3"),
    Chip(name="v4", topology="v4:2x2x1", version="v4", device_kind="TPU v4"),
    Chip(
        name="v4-megacore",
        topology="v4:2x2x1",
        version="v4",
        device_kind="TPU v4",
        cores=2,
        config="megacore",
    ),
    Chip(name="v5e", topology="v5e:2x2", version="v5e", device_kind="TPU v5 lite"),
    Chip(name="v5p", topology="v5p:2x2x1", version="v5p", device_kind="TPU v5", cores=2),
    Chip(name="v6e", topology="v6e:2x2", version="v6e", device_kind="TPU v6 lite"),
    Chip(name="tpu7x", topology="tpu7x:2x2x1", version="7x", device_kind="TPU7x"),
)

NAMES: tuple[str, ...] = tuple(chip.name for chip in ALL)
DEFAULT: tuple[str, ...] = ("v5e", "v6e", "tpu7x")


def get(name: str) -> Chip:
    """The row called `name`; ValueError for an unknown one."""
    for chip in ALL:
        if chip.name == name:
            return chip
    raise ValueError(f"unknown chip {name!r}; known: {', '.join(NAMES)}")


def of_device(device_kind: str, cores: int) -> Chip:
    """The row of an attached device (`device.device_kind`, `device.num_cores`); ValueError."""
    for chip in ALL:
        if (chip.device_kind, chip.cores) == (device_kind, cores):
            return chip
    known = ", ".join(f"{chip.device_kind!r} with {chip.cores}" for chip in ALL)
    raise ValueError(f"unknown device {device_kind!r} with {cores} cores; known: {known}")


def current() -> Chip | None:
    """The chip that JAX traces for: that of the abstract mesh, else the attached one, else none.

    Raises:
      ValueError: a TPU that has no row.
    """
    import jax

    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    kind = device.device_kind
    # A device of another platform has no cores to count.
    return of_device(kind, device.num_cores) if kind.startswith("TPU") else None
