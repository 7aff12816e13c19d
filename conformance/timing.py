"""Times of kernels: what a clock must give, what a time says, how it stands.

A time is of the device: dispatch, transfers and the host are not in it. It is measured (by a
`Clock`) or predicted (`conformance.schedule`), and its label says which; both end in a `Timing`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from conformance.case import Params
from conformance.roofline import Roofline, utilization
from conformance.schedule import DISPATCH
from conformance.strategies import rng_of
from conformance.targets import Standing, Target, standing
from conformance.verdict import BAD, Failure, Status

MEASURED = "measured"

# Of a gradient: the function, its pullback alone, and both together. Everything else is "forward".
FORWARD = "forward"
PARTS = (FORWARD, "vjp", "both")

# Cotangents are drawn apart from the operands, whose seeds are small.
_COTANGENTS = 2**31

# The least number of traces that a time is the median of.
SAMPLES = 5

# The share of a published wall time that may be dispatch: what is left is no more exact than the
# dispatch that is taken off.
_MOST_DISPATCH = 0.5


# --------------------------------------------------------------------------- clocks


class ClockError(Exception):
    """A call whose device time cannot be told; the message says why."""


class CallFailed(Exception):
    """A program that did not compile or run, so that there is no time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One call of a program, timed.

    Attributes:
      wall: host seconds from the call to the results.
      device: seconds that the device was busy with it.
      kernel: of these in Pallas kernels; None where they cannot be told apart.
      ops: seconds of each operation on the device, by name.
      results: what the program returned; to be judged, as the time of wrong values is worthless.
    """

    wall: float
    device: float
    kernel: float | None = None
    ops: Mapping[str, float] = field(default_factory=dict)
    results: Any = field(default=None, repr=False)


class Clock(Protocol):
    """Tells the device time of a compiled program."""

    def sample(self, program: Any, arguments: tuple[Any, ...]) -> Sample:
        """Calls the program once, its arguments being on the device.

        Raises:
          ClockError: no device time can be told.
        """


def check(sample: Sample) -> Sample:
    """The sample, if its times are possible: 0 < device <= wall, no operation longer than all.

    Raises:
      ClockError: naming the two numbers that contradict each other.
    """
    if not sample.device > 0:
        raise ClockError(f"the device time must be positive, got {sample.device} s")
    if sample.wall < sample.device:
        raise ClockError(
            f"the device was busy for {sample.device:.6g} s in a call of {sample.wall:.6g} s"
        )
    for name, seconds in sample.ops.items():
        if seconds > sample.device:
            raise ClockError(
                f"operation {name} took {seconds:.6g} s of {sample.device:.6g} s on the device"
            )
    return sample


# --------------------------------------------------------------------------- parts


@dataclass(frozen=True, kw_only=True)
class Part:
    """What of a function is timed.

    Attributes:
      name: one of PARTS.
      results: for a contract that has gradients among its results, the positions of those that
        belong to the part; empty for all results of a function, or where JAX differentiates it.
    """

    name: str = FORWARD
    results: tuple[int, ...] = ()

    @property
    def pulls_back(self) -> bool:
        """Whether it calls the function's pullback, on cotangents."""
        return self.name != FORWARD and not self.results


WHOLE = Part()


def cotangents(
    results: Sequence[tuple[tuple[int, ...], np.dtype]], seed: int
) -> tuple[np.ndarray, ...]:
    """Normally distributed cotangents for results of these shapes and dtypes."""
    rng = rng_of(_COTANGENTS + seed)
    drawn = (rng.standard_normal(shape).astype(np.float32) for shape, _ in results)
    return tuple(a.astype(dtype) for a, (_, dtype) in zip(drawn, results, strict=True))


# --------------------------------------------------------------------------- timings


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long one part of a kernel, or XLA's own code, takes at one point on one chip.

    Attributes:
      kernel: its name, or "xla".
      part: one of PARTS.
      point: id of the point, unique within the case.
      label: "measured" or "predicted"; of every number in here.
      seconds: on the device, one for each sample; one if predicted, none if there is no time.
      kernel_seconds: those in Pallas kernels; none where they cannot be told apart.
      wall_seconds: on the host, dispatch included.
      least_seconds: the roofline; None where the least work or the peak is not known.
      compute_seconds: the arithmetic at peak; None likewise.
      xla_seconds: of XLA's own code for the same contract, in the same run.
      target_seconds: published, as device time.
      target: where that comes from, or why there is none.
      status: of the values of the timed calls; None where none were judged.
      why: of a standing that needs it.
      limits: why the time may be wrong.
    """

    case: str
    kernel: str
    part: str = FORWARD
    point: str
    params: Params
    inputs: str
    chip: str
    label: str
    seconds: tuple[float, ...]
    kernel_seconds: tuple[float, ...] = ()
    wall_seconds: tuple[float, ...] = ()
    least_seconds: float | None = None
    compute_seconds: float | None = None
    xla_seconds: tuple[float, ...] = ()
    target_seconds: float | None = None
    target: str = ""
    status: Status | None = None
    standing: Standing
    why: str = ""
    limits: tuple[str, ...] = ()

    @property
    def median(self) -> float | None:
        """Seconds; None if there is no time."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Longest less shortest sample, by the median; None with fewer than two samples."""
        if self.median is None or len(self.seconds) < 2:
            return None
        return (max(self.seconds) - min(self.seconds)) / self.median

    @property
    def of_peak(self) -> float | None:
        """Operations a second by the peak of the chip."""
        return _ratio(self.compute_seconds, self.median)

    @property
    def of_roofline(self) -> float | None:
        """1 is as fast as the chip allows."""
        return _ratio(self.least_seconds, self.median)

    @property
    def xla(self) -> float | None:
        """XLA's time in seconds, the median."""
        return statistics.median(self.xla_seconds) if self.xla_seconds else None

    @property
    def xla_ratio(self) -> float | None:
        """XLA's time by the kernel's: above 1 the kernel is faster."""
        return _ratio(self.xla, self.median)

    @property
    def failed(self) -> bool:
        """Whether the run must fail for it. XLA's own code is compared with, never judged; a
        prediction that the model cannot make is not the kernel's failure."""
        if self.standing is Standing.INVALID and self.label != MEASURED:
            return self.status in BAD
        return self.standing in (Standing.BELOW_TARGET, Standing.INVALID)

    def row(self) -> dict[str, Any]:
        """The timing as one JSON object of benchmarks.jsonl."""
        derived = {
            "median_seconds": self.median,
            "spread": self.spread,
            "of_peak": self.of_peak,
            "of_roofline": self.of_roofline,
            "xla_ratio": self.xla_ratio,
        }
        return asdict(self) | {"params": dict(self.params)} | derived


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


# --------------------------------------------------------------------------- standing


def device_target(
    target: Target | None, limits: Roofline | None = None
) -> tuple[float | None, str]:
    """Device seconds to compare with, and what they are, or why there are none.

    A published wall time includes dispatch, which the fitted overhead stands for. A target above
    the roofline was not published for the work of this point.
    """
    if target is None:
        return None, ""
    seconds, text = target.value, f"{target.id}: published device time"
    if target.measured.startswith("wall time"):
        dispatch, published = DISPATCH.value, f"published wall time {target.value * 1e3:.4g} ms"
        if dispatch > _MOST_DISPATCH * target.value:
            return None, f"{target.id}: {published} is mostly dispatch ({dispatch * 1e3:.3g} ms)"
        seconds -= dispatch
        less = f"less {dispatch * 1e3:.3g} ms of dispatch ({DISPATCH.kind})"
        text = f"{target.id}: {published} {less}"
    if limits is not None and not utilization(limits, seconds).valid:
        return None, f"{target.id}: published for less work than this point has"
    return seconds, text


def stands(
    seconds: Sequence[float], limits: Roofline | None, target: float | None
) -> tuple[Standing, str]:
    """The standing of a time and, if it fails, why.

    Args:
      seconds: of the samples, at least one; the shortest must not be above the roofline.
      limits: None where no roofline is known.
      target: device seconds, or None.
    """
    median, shortest = statistics.median(seconds), min(seconds)
    if limits is not None and not utilization(limits, shortest).valid:
        return Standing.INVALID, (
            f"{shortest * 1e3:.4g} ms is above the roofline: the chip needs "
            f"{limits.least_seconds * 1e3:.4g} ms at least"
        )
    if limits is not None:
        found = standing(median, limits, target)
    elif target is None:
        found = Standing.NO_TARGET
    else:
        found = Standing.ON_TARGET if median <= target else Standing.BELOW_TARGET
    if found is Standing.BELOW_TARGET and target is not None:
        return found, f"{median * 1e3:.4g} ms, but the target is {target * 1e3:.4g} ms"
    return found, ""
