"""Profiles as a TPU leaves them, written as protobuf text and serialised by JAX itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jax.profiler import ProfileData

KERNEL_OP = (
    "%kernel.1 = bf16[8,128]{1,0} custom-call(bf16[8,128]{1,0} %x), "
    'custom_call_target="tpu_custom_call"'
)


@dataclass(frozen=True)
class Event:
    """Something that ran for a while; times in nanoseconds."""

    name: str
    duration: int
    start: int = 0


@dataclass(frozen=True)
class Plane:
    """A device, or the host, and the events on each of its lines."""

    name: str = "/device:TPU:0"
    lines: Mapping[str, Sequence[Event]] = field(default_factory=dict)


def profile(*planes: Plane) -> bytes:
    """An XSpace message of these planes."""
    text = "\n".join(_plane(number, plane) for number, plane in enumerate(planes))
    return ProfileData.text_proto_to_serialized_xspace(text)


def _plane(number: int, plane: Plane) -> str:
    events = list(itertools.chain(*plane.lines.values()))
    ids = {name: n for n, name in enumerate(dict.fromkeys(e.name for e in events), start=1)}
    lines = "\n".join(
        f"lines {{ id: {n} name: {_quoted(name)} timestamp_ns: 1000\n"
        + "\n".join(
            f"events {{ metadata_id: {ids[e.name]} offset_ps: {e.start * 1000} "
            f"duration_ps: {e.duration * 1000} }}"
            for e in found
        )
        + "}"
        for n, (name, found) in enumerate(plane.lines.items(), start=1)
    )
    metadata = "\n".join(
        f"event_metadata {{ key: {n} value {{ id: {n} name: {_quoted(name)} }} }}"
        for name, n in ids.items()
    )
    return f"planes {{ id: {number} name: {_quoted(plane.name)}\n{lines}\n{metadata} }}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
