"""Which examples a case is judged on: pinned rows, generated points, a replayed id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from hypothesis import HealthCheck, given, settings

from conformance.case import TIERS, Case, Example, Params
from conformance.loading import check_params
from conformance.strategies import rng_of

# Generated points for each tier; pinned rows come first and do not count.
GENERATED = {"smoke": 2, "ci": 4, "full": 60}
# Draws from which the points of a run are chosen; some are refused by the domain's filters.
_POOL = 120
_BYTES = 512  # for each draw, more than any domain uses
# Seeds for each point and distribution: a new seed costs no compile.
SEEDS = {"smoke": 1, "ci": 1, "full": 4}
_SEED_STRIDE = 1000  # between the seeds of a point; the first does not depend on the tier


def pinned(case: Case, tier: str) -> tuple[Example, ...]:
    """The pinned examples of a tier and the smaller ones, every distribution a row names."""
    wanted = TIERS[: TIERS.index(tier) + 1]
    examples: list[Example] = []
    for row in case.rows:
        if row["tier"] in wanted:
            examples += _of_row(case, row)
    return tuple(examples)


def _of_row(case: Case, row: Mapping[str, Any]) -> Iterable[Example]:
    for inputs in row.get("inputs", case.inputs(row["params"])):
        yield Example(
            case=case.name,
            params=row["params"],
            inputs=inputs,
            seed=row.get("seed", 0),
            pinned=row["id"],
            tier=row["tier"],
            modes=tuple(row.get("modes", ())),
        )


def generated(case: Case, count: int, tier: str) -> tuple[Example, ...]:
    """`count` distinct points of the domain, each with all its distributions.

    Drawn once per case with an inner `@given`, so that every kernel, mode and process sees
    the same examples whatever the node id of its test. Smaller tiers are contained in larger.
    """
    examples = []
    for number, params in enumerate(_points(case, count)):
        for inputs in case.inputs(params):
            for seed in range(SEEDS[tier]):
                examples.append(
                    Example(
                        case=case.name,
                        params=params,
                        inputs=inputs,
                        seed=1 + number + _SEED_STRIDE * seed,
                        tier=tier,
                    )
                )
    return tuple(examples)


_points_cache: dict[tuple[str, int], list[Params]] = {}


def _points(case: Case, count: int) -> list[Params]:
    """`count` points; the first ones are the same for every count."""
    points = _drawn(case, _POOL)
    if count > len(points):
        more = {repr(p): p for p in (*points, *_drawn(case, 4 * count))}
        points = list(more.values())
    return points[:count]


def _drawn(case: Case, tries: int) -> list[Params]:
    key = (case.name, tries)
    if key not in _points_cache:
        _points_cache[key] = _spread(case, _draw(case, tries))
    return _points_cache[key]


def _spread(case: Case, points: list[Params]) -> list[Params]:
    """The points in an order in which the first few show as many parameter values as possible.

    Greedy: next comes the point with most values that neither its predecessors nor the pinned
    examples show, a dtype or a contract option counting as much as two lengths. A run affords
    few points, and each should earn its place.
    """
    left, ordered = list(points), []
    seen = {item for row in case.rows if row["tier"] != "full" for item in row["params"].items()}
    while left:
        gains = [_gain(case, point, seen) for point in left]
        if not any(gains) and seen:
            seen.clear()
            continue
        point = left.pop(gains.index(max(gains)))
        ordered.append(point)
        seen.update(point.items())
    return ordered


def _gain(case: Case, point: Params, seen: set[tuple[str, Any]]) -> int:
    weight = {"dtype": 2, "choice": 2, "size": 1, "count": 1, "block": 0}
    return sum(weight[case.params[item[0]].kind] for item in point.items() if item not in seen)


def _draw(case: Case, tries: int) -> list[Params]:
    """Distinct points among so many draws.

    From bytes of a seeded generator, through `fuzz_one_input`: hypothesis' own generator mixes
    in constants that it finds in the modules loaded at the time, so that it would draw other
    examples for another subject, or in another worker.
    """
    found: dict[str, Params] = {}

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case.domain())
    def collect(params: dict[str, Any]) -> None:
        ordered = {name: params[name] for name in case.params}
        check_params(case, ordered)
        found.setdefault(repr(ordered), ordered)

    rng, test = rng_of(0), cast(Any, collect)
    for _ in range(tries):
        test.hypothesis.fuzz_one_input(rng.bytes(_BYTES))
    return list(found.values())


def for_case(case: Case, tier: str, max_examples: int | None) -> tuple[Example, ...]:
    """Pinned rows of the tier, then generated points (`max_examples` or the tier's number)."""
    count = GENERATED[tier] if max_examples is None else max_examples
    return pinned(case, tier) + generated(case, count, tier)


def for_properties(case: Case) -> tuple[Example, ...]:
    """The first smoke example (or, without any, the first generated one): one probe whose
    results are exact, and full-mantissa numbers."""
    found = pinned(case, "smoke") or generated(case, 1, "smoke")
    point = [e for e in found if e.params == found[0].params]
    probes = [e for e in point if e.inputs in ("exact", "position")][:1]
    normal = [e for e in point if e.inputs == "normal"]
    return tuple(probes + normal) or tuple(point[:1])


# --------------------------------------------------------------------------- replay


class ReplayError(ValueError):
    """A replay id that names nothing."""


def parse_id(cases: Mapping[str, Case], text: str) -> tuple[Example, ...]:
    """The examples that an id means.

    `case/pinned-id`, `case/pinned-id,inputs=normal` or, for generated points,
    `case/m=100,...,inputs=normal,seed=3`. Without `inputs` it means all distributions.

    Raises:
      ReplayError: naming the part of the id that is wrong.
    """
    name, _, rest = text.partition("/")
    if name not in cases:
        raise ReplayError(f"--replay {text}: no case {name!r}; known: {', '.join(cases)}")
    case = cases[name]
    fields: dict[str, str] = {}
    point = None
    for number, part in enumerate(filter(None, rest.split(","))):
        key, eq, value = part.partition("=")
        if not eq and number == 0:
            point = key
        elif not eq:
            raise ReplayError(f"--replay {text}: {part!r} is not of the form name=value")
        elif key in fields:
            raise ReplayError(f"--replay {text}: {key!r} is there twice")
        else:
            fields[key] = value
    inputs, seed = fields.pop("inputs", None), _seed(text, fields.pop("seed", None))
    if point is not None:
        if fields:
            raise ReplayError(f"--replay {text}: {next(iter(fields))!r} after a pinned id")
        return _replay_pinned(case, text, point, inputs, seed)
    params = _parse_params(case, text, fields)
    kinds = _kinds(case, text, params, inputs)
    return tuple(Example(case=case.name, params=params, inputs=k, seed=seed or 0) for k in kinds)


def _replay_pinned(
    case: Case, text: str, point: str, inputs: str | None, seed: int | None
) -> tuple[Example, ...]:
    for row in case.rows:
        if row["id"] == point:
            found = list(_of_row(case, row))
            if seed not in (None, found[0].seed):
                raise ReplayError(
                    f"--replay {text}: seed {seed} is not that of the pinned row, {found[0].seed}"
                )
            if inputs is None:
                return tuple(found)
            if any(e.inputs == inputs for e in found):
                return tuple(e for e in found if e.inputs == inputs)
            kinds = ", ".join(e.inputs for e in found)
            raise ReplayError(f"--replay {text}: inputs {inputs!r} is not one of {kinds}")
    raise ReplayError(f"--replay {text}: {case.name} has no pinned example {point!r}")


def _parse_params(case: Case, text: str, fields: Mapping[str, str]) -> Params:
    params: dict[str, Any] = {}
    for key, value in fields.items():
        kind = case.params[key].kind if key in case.params else "choice"
        numeric = kind in ("size", "count", "block")
        params[key] = _integer(text, key, value) if numeric else _choice(case, key, value)
    ordered = {k: params[k] for k in case.params if k in params}
    try:
        check_params(case, ordered | params)
    except ValueError as e:
        raise ReplayError(f"--replay {text}: {e}") from e
    return ordered


def _choice(case: Case, key: str, value: str) -> Any:
    """The choice whose text is `value` (True for "True"), or the text itself."""
    choices = case.params[key].choices if key in case.params else ()
    return next((c for c in choices if str(c) == value), value)


def _seed(text: str, value: str | None) -> int | None:
    seed = None if value is None else _integer(text, "seed", value)
    if seed is not None and seed < 0:
        raise ReplayError(f"--replay {text}: seed must not be negative, got {seed}")
    return seed


def _integer(text: str, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ReplayError(f"--replay {text}: {key} must be an integer, got {value!r}") from None


def _kinds(case: Case, text: str, params: Params, inputs: str | None) -> tuple[str, ...]:
    legal = case.inputs(params)
    if inputs is None:
        return legal
    if inputs not in legal:
        raise ReplayError(f"--replay {text}: inputs {inputs!r} is not one of {', '.join(legal)}")
    return (inputs,)
