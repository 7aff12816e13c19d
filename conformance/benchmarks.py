"""Where kernels are timed: points of `cases/benchmarks.json`, and those that have a target.

Both kinds of time, measured and predicted, are of these points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.case import Case, Example, Kernel, Params
from conformance.loading import LoadError, bundled, check_params, data_rows
from conformance.targets import XLA, Target
from conformance.timing import FORWARD, PARTS, Part


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point at which kernels of a case are timed.

    Attributes:
      id: unique within the case; a target's id where the point is a target's.
      inputs: the distribution of the operands, never zeros.
      kernels: the only kernels timed here; empty means all of the case.
      parts: positions of the results that each part computes, where the contract itself has
        gradients; empty for a contract without.
      target: the published time that kernels are compared with.
    """

    id: str
    case: str
    params: Params
    inputs: str
    kernels: tuple[str, ...] = ()
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    target: Target | None = None

    def example(self, seed: int) -> Example:
        """The point with the arrays of a seed."""
        return Example(case=self.case, params=self.params, inputs=self.inputs, seed=seed)


def load_points(cases: Mapping[str, Case], file: Path | None = None) -> tuple[Point, ...]:
    """The points of a file; those of the suite when None.

    Raises:
      LoadError: not JSON, not of the schema, or names what is not there.
    """
    file = file or bundled("cases") / "benchmarks.json"
    points, seen = [], set()
    for row in data_rows(file, "benchmark"):
        if (row["case"], row["id"]) in seen:
            raise LoadError(f"{file}: benchmark {row['id']!r} of {row['case']} is there twice")
        seen.add((row["case"], row["id"]))
        points.append(_point(row, cases, file))
    return tuple(points)


def _point(row: Mapping[str, Any], cases: Mapping[str, Case], file: Path) -> Point:
    where = f"{file}: benchmark {row['id']!r}"
    if row["case"] not in cases:
        raise LoadError(f"{where}: no case {row['case']!r}")
    case = cases[row["case"]]
    try:
        check_params(case, row["params"])
    except ValueError as e:
        raise LoadError(f"{where}: {e}") from e
    legal = case.inputs(row["params"])
    if row["inputs"] not in legal:
        raise LoadError(f"{where}: inputs {row['inputs']!r} is not one of {', '.join(legal)}")
    return Point(
        id=row["id"],
        case=case.name,
        params=row["params"],
        inputs=row["inputs"],
        kernels=tuple(row.get("kernels", ())),
        parts={part: tuple(results) for part, results in row.get("parts", {}).items()},
    )


def points_of(
    kernel: Kernel,
    chip: str,
    case: Case,
    kernels: Sequence[Kernel],
    points: Sequence[Point],
    targets: Sequence[Target],
) -> list[Point]:
    """The points at which a kernel is timed on a chip, those with a target first.

    A target is for the kernel of its name; where the subject's `kernels` have none of that name,
    for every kernel of the case.
    """
    names = {k.name for k in kernels if k.case == case.name}
    found: dict[str, Point] = {}
    for target in targets:
        here = (target.case, target.chip) == (case.name, chip) and target.kernel != XLA
        if here and (target.kernel == kernel.name or target.kernel not in names):
            found[_key(target.params)] = _of_target(target, case)
    for point in points:
        only = set(point.kernels) & names or names
        if point.case == case.name and kernel.name in only:
            found.setdefault(_key(point.params), point)
    return list(found.values())


def _key(params: Params) -> str:
    return repr(sorted(params.items()))


def _of_target(target: Target, case: Case) -> Point:
    """Normally distributed operands where the contract allows them, as the guides have them."""
    legal = case.inputs(target.params)
    return Point(
        id=target.id,
        case=case.name,
        params=target.params,
        inputs="normal" if "normal" in legal else legal[0],
        target=target,
    )


def parts(kernel: Kernel, point: Point) -> tuple[Part, ...]:
    """What is timed: the function, and of one that has a gradient the pullback and both."""
    if point.parts:
        return tuple(Part(name=name, results=results) for name, results in point.parts.items())
    names = PARTS if "grad" in kernel.properties else (FORWARD,)
    return tuple(Part(name=name) for name in names)


def xla_target(case: Case, params: Params, chip: str, targets: Sequence[Target]) -> Target | None:
    """The published time of XLA's own code for a contract; it does not depend on blocks."""

    def contract(values: Params) -> dict[str, Any]:
        return {name: v for name, v in values.items() if case.params[name].kind != "block"}

    for target in targets:
        here = (target.case, target.chip, target.kernel) == (case.name, chip, XLA)
        if here and contract(target.params) == contract(params):
            return target
    return None
