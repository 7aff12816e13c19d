"""Block sizes by predicted time: the results of sweeps, and calling kernels with them.

    results = sweep.load("blocks.json")
    matmul = sweep.tunable("matmul/mine")(my_matmul)
    with results:
        matmul(x, y)  # with the best blocks for this chip and these shapes

A file holds any number of sweeps, one for each kernel, chip and point; a call is matched by the
shapes and dtypes of its arguments. `conformance sweep` makes such files
(`conformance.sweeping`). What differs by less than the model's error is a tie, not a winner.
"""

from __future__ import annotations

import contextvars
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance import chips, schedule
from conformance.case import Params

Options = Mapping[str, Any]

# Predictions of one kernel that differ by less than this are not told apart: the spread, about
# their mean, of the errors against published times of kernels bound by arithmetic.
MODEL_ERROR = 0.02


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration.

    Attributes:
      options: the block sizes, or whatever the kernel's search space varies.
      seconds: predicted time on the device; None when dropped.
      vmem: bytes of VMEM.
      spilled: bytes of register spill slots.
      limits: of the prediction's validity.
      dropped: why there is no prediction; None when there is one.
    """

    options: Options
    seconds: float | None = None
    vmem: int | None = None
    spilled: int | None = None
    limits: tuple[str, ...] = ()
    dropped: str | None = None


@dataclass(kw_only=True)
class Sweep:
    """One kernel's configurations for one chip and one point of its case.

    Attributes:
      params: of the example, its blocks left out.
      arguments: what the kernel is called with, as "bfloat16[4096,4096]"; for one with a host
        stage, what that is called with. Empty until a configuration has been evaluated.
      options: further keyword arguments of the kernel, which are part of the contract.
      label: what every time in here is.
    """

    case: str
    kernel: str
    chip: str
    libtpu: str
    params: Params
    arguments: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    label: str = schedule.LABEL

    @property
    def name(self) -> str:
        """Of the kernel, "case/name"."""
        return f"{self.case}/{self.kernel}"

    @property
    def point(self) -> tuple[Any, ...]:
        """Equal for sweeps of the same thing."""
        return (self.name, self.chip, tuple(sorted(self.params.items())))

    @property
    def predicted(self) -> list[Result]:
        """Those with a time, the shortest first."""
        found = [r for r in self.results if r.seconds is not None]
        return sorted(found, key=lambda r: (r.seconds, r.vmem))

    def best(self) -> list[Result]:
        """The shortest time and its ties, the least VMEM first.

        Raises:
          ValueError: every configuration was dropped.
        """
        found = self.predicted
        if not found:
            raise ValueError(f"no configuration of {self.name} is left")
        least = found[0].seconds or 0.0
        ties = [r for r in found if (r.seconds or 0.0) <= least * (1 + MODEL_ERROR)]
        return sorted(ties, key=lambda r: (r.vmem, r.seconds))

    def shortest(self) -> Result:
        """The shortest predicted time; ValueError as `best`.

        Ties are not told apart by the model, but one of them has to be called.
        """
        self.best()
        return self.predicted[0]

    def pareto(self) -> list[Result]:
        """Those that nothing beats in both time and VMEM."""
        found: list[Result] = []
        for result in self.predicted:
            if not found or (result.vmem or 0) < (found[-1].vmem or 0):
                found.append(result)
        return found


@dataclass(kw_only=True)
class Sweeps:
    """The sweeps of a file; a context in which `tunable` kernels find their blocks.

    JAX keeps what it has traced: a jitted function that was called outside of the context goes on
    with what it had.
    """

    sweeps: list[Sweep] = field(default_factory=list)
    _entered: list[contextvars.Token[tuple[Sweeps, ...]]] = field(
        default_factory=list, repr=False, compare=False
    )

    def dumps(self) -> str:
        """JSON; the inverse of `loads`."""
        return json.dumps({"sweeps": [asdict(s) for s in self.sweeps]}, indent=1) + "\n"

    @staticmethod
    def loads(text: str) -> Sweeps:
        """The inverse of `dumps`; ValueError for something else."""
        try:
            return Sweeps(sweeps=[_sweep(fields) for fields in json.loads(text)["sweeps"]])
        except (TypeError, KeyError, json.JSONDecodeError) as e:
            raise ValueError(f"not the results of sweeps: {type(e).__name__}: {e}") from e

    def __enter__(self) -> Sweeps:
        self._entered.append(_ACTIVE.set((self, *_ACTIVE.get())))
        return self

    def __exit__(self, *error: object) -> None:
        _ACTIVE.reset(self._entered.pop())

    def find(
        self, kernel: str, chip: str, arguments: Iterable[Any], options: Options | None = None
    ) -> Options | None:
        """The options of the shortest time; None when this was not swept, or all was dropped.

        Args:
          kernel: "case/name".
          arguments: arrays, or what else has a shape and a dtype.
          options: of the call; those that were part of what was swept must be equal.
        """
        shapes, given = described(arguments), options or {}
        for sweep in self.sweeps:
            same = (sweep.name, sweep.chip, sweep.arguments) == (kernel, chip, shapes)
            if same and sweep.predicted and given.items() >= sweep.options.items():
                return sweep.shortest().options
        return None

    def best_for(
        self, kernel: str, chip: str, arguments: Iterable[Any], options: Options | None = None
    ) -> Options:
        """As `find`; ValueError when there is nothing."""
        arguments = tuple(arguments)
        found = self.find(kernel, chip, arguments, options)
        if found is None:
            what = ", ".join(described(arguments))
            raise ValueError(f"no sweep of {kernel} on {chip} for ({what}) has a result")
        return found

    def call(
        self, kernel: str, fn: Callable[..., Any], *arrays: Any, chip: str, **options: Any
    ) -> Any:
        """`fn(*arrays, **options)` with the best blocks; ValueError when there are none."""
        return fn(*arrays, **{**options, **self.best_for(kernel, chip, arrays, options)})

    def of(self, fresh: Sweep) -> Sweep:
        """The sweep of the same kernel, chip and point, to go on with; added when it is new.

        Raises:
          ValueError: it was made with another libtpu.
        """
        for sweep in self.sweeps:
            if sweep.point == fresh.point:
                if sweep.libtpu != fresh.libtpu:
                    raise ValueError(f"it was made with another libtpu: {sweep.libtpu!r}")
                return sweep
        self.sweeps.append(fresh)
        return fresh

    def reduced(self) -> Sweeps:
        """Of each sweep the shortest time alone; what has none is left out."""
        return Sweeps(
            sweeps=[replace(s, results=[s.shortest()]) for s in self.sweeps if s.predicted]
        )


def _sweep(fields: dict[str, Any]) -> Sweep:
    rows = [Result(**row | {"limits": tuple(row["limits"])}) for row in fields["results"]]
    return Sweep(**fields | {"results": rows, "arguments": tuple(fields["arguments"])})


def load(file: str | Path) -> Sweeps:
    """The sweeps of a file; ValueError names it when it holds something else."""
    try:
        return Sweeps.loads(Path(file).read_text())
    except ValueError as e:
        raise ValueError(f"{file}: {e}") from e


def described(arrays: Iterable[Any]) -> tuple[str, ...]:
    """Shapes and dtypes, as "bfloat16[4096,4096]"."""
    return tuple(f"{a.dtype.name}[{','.join(map(str, a.shape))}]" for a in arrays)


# --------------------------------------------------------------------------- calling kernels

_ACTIVE: contextvars.ContextVar[tuple[Sweeps, ...]] = contextvars.ContextVar("sweeps", default=())


def tunable(kernel: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a kernel: called without its blocks, it takes them from the sweeps in force.

    The innermost `with results:` that has a result for the kernel, the chip that JAX traces for,
    and these arguments decides. Where none has, and where the caller gives any block himself, the
    kernel is called as it was.

    Args:
      kernel: "case/name" as in the sweep.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def call(*arrays: Any, **options: Any) -> Any:
            return fn(*arrays, **{**_in_force(kernel, arrays, options), **options})

        return call

    return decorate


def _in_force(kernel: str, arrays: tuple[Any, ...], options: Options) -> Options:
    active = _ACTIVE.get()
    chip = chips.current() if active else None
    if chip is None:
        return {}
    for sweeps in active:
        found = sweeps.find(kernel, chip.name, arrays, options)
        if found is not None:
            return {} if found.keys() & options.keys() else found
    return {}
