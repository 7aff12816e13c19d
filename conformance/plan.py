"""What a run judges: from the options, as plain values, to cases, kernels, modes and examples."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance import condition
from conformance.benchmarks import Point, load_points, parts, points_of
from conformance.case import TIERS, Case, Example, Kernel, Negative
from conformance.examples import GENERATED, ReplayError, for_case, for_properties, parse_id
from conformance.expectations import Expectation, ExpectationError
from conformance.expectations import load as load_expectations
from conformance.loading import (
    LoadError,
    Subject,
    check_properties,
    load_cases,
    load_subject,
    negative_example,
    subject_folder,
)
from conformance.modes import MODES
from conformance.properties import PROPERTIES
from conformance.targets import Target, load_targets
from conformance.timing import Part

Column = tuple[str, str | None]

# What `--properties` is told to leave all of them out.
_NO_PROPERTY = "none"


class PlanError(ValueError):
    """Options that name nothing; the message names the option and the value."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run as plain values, which an xdist worker is sent.

    Attributes:
      modes, properties, chips, cases, kernels, replay: as given, comma lists taken apart; paths
        absolute, because workers start in another directory.
    """

    modes: tuple[str, ...]
    chips: tuple[str, ...]
    subject: str
    cases: tuple[str, ...]
    kernels: tuple[str, ...]
    max_examples: int | None
    tier: str
    replay: tuple[str, ...]
    timeout: float
    expectations: str | None
    properties: tuple[str, ...] = ()
    benchmark: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run judges.

    Attributes:
      case_files: case files and folders besides the bundled ones.
      columns: (mode, chip) pairs.
      properties: names of those that are judged, where kernels claim them.
      modes_by_name, properties_by_name: what was asked for by name must be there.
      replay, replay_negatives: the only examples to judge, if any.
      points, targets: where kernels are timed, and published times; none without --benchmark.
      complete: nothing narrows the examples, so that an expectation which covers no verdict of
        its mode and chip is out of date.
    """

    cases: Mapping[str, Case]
    case_files: tuple[str, ...]
    subject: Subject
    kernels: tuple[Kernel, ...]
    columns: tuple[Column, ...]
    properties: tuple[str, ...]
    modes_by_name: bool
    properties_by_name: bool
    tier: str
    max_examples: int | None
    timeout: float
    replay: tuple[Example, ...]
    replay_negatives: tuple[tuple[str, str], ...]
    expectations: tuple[Expectation, ...]
    points: tuple[Point, ...]
    targets: tuple[Target, ...]
    complete: bool

    def columns_of(self, kernel: Kernel) -> tuple[Column, ...]:
        """The columns that can say something about a kernel."""
        return tuple(c for c in self.columns if kernel.pallas or MODES[c[0]].xla)

    def examples(self, kernel: Kernel, mode: str) -> list[Example]:
        """The examples of one kernel in one mode."""
        if self.replay or self.replay_negatives:
            return [e for e in self.replay if e.case == kernel.case]
        found = for_case(self.cases[kernel.case], self.tier, self.max_examples)
        found = tuple(e for e in found if not e.modes or mode in e.modes)
        return list(found) if MODES[mode].values else _one_each(found)

    def property_examples(self, kernel: Kernel, name: str) -> list[Example]:
        """The examples on which one property of one kernel is tried."""
        if self.replay or self.replay_negatives:
            return [e for e in self.replay if e.case == kernel.case]
        found = list(for_properties(self.cases[kernel.case]))
        return found if PROPERTIES[name].data else found[-1:]

    def claims(self) -> list[tuple[Kernel, str]]:
        """The properties to be judged, kernel by kernel, in the order of the claims."""
        return [(k, name) for k in self.kernels for name in k.properties if name in self.properties]

    def negatives(self, kernel: Kernel, mode: str, chip: str | None) -> list[Negative]:
        """The negative examples that this kernel promises and this mode can judge."""
        if not kernel.checks_inputs:
            return []
        found = [n for n in self.cases[kernel.case].negatives if n.phase in MODES[mode].phases]
        found = [n for n in found if not n.chips or chip in n.chips]
        if self.replay or self.replay_negatives:
            return [n for n in found if (kernel.case, n.name) in self.replay_negatives]
        return found

    def timed(self, kernel: Kernel, chip: str) -> list[tuple[Point, Part]]:
        """The points at which a kernel is timed on a chip, and what is timed there."""
        points = points_of(
            kernel,
            chip,
            self.cases[kernel.case],
            self.subject.kernels,
            self.points,
            self.targets,
        )
        if self.replay or self.replay_negatives:
            points = [_replayed_point(e, points) for e in self.replay if e.case == kernel.case]
        return [(point, part) for point in points for part in parts(kernel, point)]

    def left_out(self) -> list[str]:
        """Lines about pinned examples that the run cannot afford: nothing is skipped silently."""
        if self.replay or self.replay_negatives:
            return []
        rows = [r for name in {k.case for k in self.kernels} for r in self.cases[name].rows]
        bigger = sum(TIERS.index(r["tier"]) > TIERS.index(self.tier) for r in rows)
        modes = {mode for mode, _ in self.columns}
        other = sum(bool(r.get("modes")) and not modes & set(r["modes"]) for r in rows)
        lines = []
        if bigger:
            lines.append(f"{bigger} pinned examples belong to a larger --tier than {self.tier}")
        if other:
            lines.append(f"{other} pinned examples can only be afforded by other modes")
        return lines

    def covered_by(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether every kernel was judged in every column and about every property, and nothing
        narrowed the selection."""
        judged = {(r["case"], r["kernel"], r["mode"], r["chip"]) for r in rows}
        wanted = {(k.case, k.name, *column) for k in self.kernels for column in self.columns_of(k)}
        wanted |= {(k.case, k.name, p, PROPERTIES[p].chip) for k, p in self.claims()}
        return self.complete and judged == wanted


def _replayed_point(example: Example, points: Sequence[Point]) -> Point:
    """An example as a point to time kernels at; one of `points` if it is there."""
    for point in points:
        if point.params == example.params and point.inputs == example.inputs:
            return point
    text = example.pinned or ",".join(f"{k}={v}" for k, v in example.params.items())
    return Point(id=text, case=example.case, params=example.params, inputs=example.inputs)


def _one_each(examples: tuple[Example, ...]) -> list[Example]:
    """The first example of each point: for modes that look at no values."""
    return list({repr(sorted(e.params.items())): e for e in reversed(examples)}.values())[::-1]


def make_plan(options: Options) -> Plan:
    """The plan of a run; PlanError for the first option that is wrong."""
    case_files = tuple(c for c in options.cases if is_path(c))
    try:
        cases = load_cases(case_files)
        subject = load_subject(options.subject, tuple(cases))
        points = load_points(cases) if options.benchmark else ()
        targets = load_targets(cases) if options.benchmark else ()
        check_properties(subject, cases)
    except LoadError as e:
        raise PlanError(str(e)) from e
    if options.max_examples is not None and options.max_examples < 0:
        raise PlanError(f"--max-examples {options.max_examples}: must not be negative")
    if not options.timeout > 0:
        raise PlanError(f"--example-timeout {options.timeout:g}: must be positive")
    replay, negatives = _replayed(options.replay, cases)
    named = [c for c in options.cases if not is_path(c)]
    replayed = {e.case for e in replay} | {case for case, _ in negatives}
    wanted = _chosen("--cases", named, list(cases)) or sorted(replayed) or list(cases)
    columns, properties = _columns(options), _properties(options)
    kernels = _kernels(options, subject, wanted)
    _require_claimed(options, kernels)
    return Plan(
        cases=cases,
        case_files=case_files,
        subject=subject,
        kernels=kernels,
        columns=columns,
        properties=properties,
        modes_by_name=bool(options.modes) and "all" not in options.modes,
        properties_by_name=bool(options.properties) and "all" not in options.properties,
        tier=options.tier,
        max_examples=options.max_examples,
        timeout=options.timeout,
        replay=replay,
        replay_negatives=negatives,
        expectations=_expectations(options, cases),
        points=points,
        targets=targets,
        complete=not (
            options.cases
            or options.kernels
            or replay
            or negatives
            or options.tier == "smoke"
            or (options.max_examples is not None and options.max_examples < GENERATED[options.tier])
        ),
    )


def is_path(place: str) -> bool:
    """Whether a case or subject is given as a path rather than by name."""
    return "/" in place or place.partition(":")[0].endswith(".py")


def absolute(place: str) -> str:
    """A path made absolute, its `:ATTRIBUTE` kept; names of cases and modules as they are."""
    path, colon, attribute = place.partition(":")
    return f"{Path(path).resolve()}{colon}{attribute}" if is_path(place) else place


def _chosen(option: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """`given`, `all` spelled out; PlanError naming the first unknown value."""
    for name in given:
        if name not in known and name != "all":
            raise PlanError(f"{option} {name}: unknown; known: {', '.join(known)}")
    return list(known if "all" in given else given)


def _expectations(options: Options, cases: Mapping[str, Case]) -> tuple[Expectation, ...]:
    """Known failures of the file given, or of the one beside the subject, if there is one."""
    path = _expectation_file(options)
    if path is None:
        return ()
    try:
        entries = load_expectations(path, version("jax"))
    except ExpectationError as e:
        raise PlanError(f"--expectations {e}") from e
    columns = [(name, chip) for name, mode in MODES.items() for chip in mode.chips or (None,)]
    columns += [(name, one.chip) for name, one in PROPERTIES.items()]
    for entry in entries:
        if not any(entry.speaks_of(*column) for column in columns):
            raise PlanError(
                f"--expectations {path}: no mode and chip, and no property, is meant by: {entry}"
            )
        named = condition.names(entry.where or "0")
        meant = [c for c in cases.values() if fnmatch.fnmatchcase(c.name, entry.case)]
        if meant and not any(named <= set(case.params) for case in meant):
            lacks = ", ".join(sorted(named - set(meant[0].params)))
            raise PlanError(
                f"--expectations {path}: {meant[0].name} has no parameter {lacks}: {entry}"
            )
    return entries


def _expectation_file(options: Options) -> Path | None:
    """Beside `NAME.py` a file of its own, `NAME.expectations.toml`, goes before the folder's
    `expectations.toml`, so that several subjects can share a folder."""
    if options.expectations:
        return Path(options.expectations)
    folder = subject_folder(options.subject)
    subject = Path(options.subject.partition(":")[0])
    candidates = [folder / "expectations.toml"]
    if subject.is_file():
        candidates.insert(0, folder / f"{subject.stem}.expectations.toml")
    return next((path for path in candidates if path.is_file()), None)


def _replayed(
    ids: Sequence[str], cases: Mapping[str, Case]
) -> tuple[tuple[Example, ...], tuple[tuple[str, str], ...]]:
    """Examples, and (case, name) of negative examples, that replay ids name."""
    examples: list[Example] = []
    negatives: list[tuple[str, str]] = []
    for text in ids:
        case, _, rest = text.partition("/")
        known = cases[case].negatives if case in cases else ()
        names = {negative_example(cases[case], n).pinned: n.name for n in known}
        point = rest.split(",")[0]
        if point in names:
            negatives.append((case, names[point]))
            continue
        try:
            examples += parse_id(cases, text)
        except ReplayError as e:
            raise PlanError(str(e)) from e
    return tuple(examples), tuple(negatives)


def _kernels(options: Options, subject: Subject, cases: list[str]) -> tuple[Kernel, ...]:
    kernels = sorted(
        (k for k in subject.kernels if k.case in cases), key=lambda k: cases.index(k.case)
    )
    if not kernels:
        raise PlanError(f"--subject {subject.spec}: it has no kernel for case {', '.join(cases)}")
    names = {kernel: (kernel.name, f"{kernel.case}/{kernel.name}") for kernel in kernels}
    known = {name for pair in names.values() for name in pair}
    wanted = _chosen("--kernel", options.kernels, sorted(known))
    return tuple(k for k in kernels if not wanted or set(names[k]) & set(wanted))


def _columns(options: Options) -> tuple[Column, ...]:
    modes = _chosen("--mode", options.modes, list(MODES))
    known = list(dict.fromkeys(c for mode in MODES.values() for c in mode.chips))
    _chosen("--chip", options.chips, known)
    if not modes and (options.benchmark or set(options.properties) - {_NO_PROPERTY}):
        return ()
    modes = modes or [name for name, mode in MODES.items() if mode.default]
    if options.chips and not any(MODES[name].chips for name in modes):
        chips = ",".join(options.chips)
        raise PlanError(f"--chip {chips}: no chip is compiled for in mode {', '.join(modes)}")
    return tuple((name, chip) for name in modes for chip in _chips(name, options.chips))


def _properties(options: Options) -> tuple[str, ...]:
    """Those given; else all of them, unless the run was narrowed to modes or times."""
    given = [name for name in options.properties if name != _NO_PROPERTY]
    known = list(PROPERTIES)
    if given and len(given) < len(options.properties):
        raise PlanError(f"--properties {','.join(options.properties)}: none of them, or some")
    chosen = _chosen("--properties", given, known)
    if chosen or options.properties or options.modes or options.benchmark:
        return tuple(dict.fromkeys(chosen))
    return tuple(known)


def _require_claimed(options: Options, kernels: Sequence[Kernel]) -> None:
    """PlanError for a property that was asked for by name and that no kernel claims."""
    claimed = {name for kernel in kernels for name in kernel.properties}
    for name in options.properties:
        if name not in claimed and name not in ("all", _NO_PROPERTY):
            raise PlanError(f"--properties {name}: none of the selected kernels claims it")


def _chips(mode: str, given: Sequence[str]) -> Sequence[str | None]:
    """The chips of a mode: those given, or its own choice; None for a mode without any."""
    known = MODES[mode].chips
    if not known:
        return (None,)
    return _chosen("--chip", given, known) or MODES[mode].default_chips
