"""Replay ids, tiers, and what a generated set of examples is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.case import TIERS
from conformance.examples import (
    GENERATED,
    SEEDS,
    ReplayError,
    for_case,
    generated,
    parse_id,
    pinned,
)
from conformance.loading import load_cases

CASES = load_cases()
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))

ADD = {"m": 8, "n": 128, "bm": 8, "bn": 128, "dtype": "float32"}
ROWS = (
    {"id": "small", "why": "one tile", "params": ADD, "tier": "smoke"},
    {
        "id": "seeded",
        "why": "a seed and chosen inputs",
        "params": ADD | {"dtype": "int8"},
        "tier": "ci",
        "inputs": ["position"],
        "seed": 7,
        "modes": ["interpret"],
    },
    {"id": "big", "why": "for the full tier", "params": ADD | {"m": 16}, "tier": "full"},
)
PINNED = {"add": replace(CASES["add"], rows=ROWS)}


def identity(example):
    """What replaying must bring back; tiers and modes say only when it runs."""
    return example.case, dict(example.params), example.inputs, example.seed, example.pinned


@each_case
def test_ids_of_generated_examples_come_back(case):
    for example in generated(case, 6, "ci"):
        (back,) = parse_id(CASES, example.id)
        assert identity(back) == identity(example)
        assert list(back.params) == list(example.params) == list(case.params)
        assert repr(example) == f"--replay {example.id}"


@each_case
def test_ids_of_pinned_examples_come_back(case):
    for example in pinned(case, "full"):
        assert parse_id(CASES, example.id) == (example,)


def test_ids_of_synthetic_rows_come_back():
    found = pinned(PINNED["add"], "full")
    assert len(found) == 5 + 1 + 5
    for example in found:
        assert parse_id(PINNED, example.id) == (example,)


def test_ids_are_unique():
    for case in (*CASES.values(), *PINNED.values()):
        ids = [e.id for e in for_case(case, "full", 10)]
        assert len(set(ids)) == len(ids)


def test_an_id_without_inputs_means_all_of_them():
    assert [e.inputs for e in parse_id(PINNED, "add/small")] == list(CASES["add"].inputs(ADD))
    point = "add/m=8,n=128,bm=8,bn=128,dtype=int8"
    assert [e.inputs for e in parse_id(CASES, point)] == ["exact", "position"]
    assert [e.seed for e in parse_id(CASES, f"{point},seed=9")] == [9, 9]


def test_booleans_and_order_do_not_matter():
    """Parameters may be given in any order; ids print them in the case's."""
    (example,) = parse_id(CASES, "add/dtype=int8,bn=128,bm=8,n=128,m=8,seed=2,inputs=exact")
    assert example.id == "add/m=8,n=128,bm=8,bn=128,dtype=int8,inputs=exact,seed=2"


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("nope/m=1", "no case 'nope'; known: add$"),
        ("add", "parameter 'm' is missing"),
        ("add/", "parameter 'm' is missing"),
        ("add/unknown-row", "add has no pinned example 'unknown-row'"),
        ("add/small,m=8", "'m' after a pinned id"),
        ("add/small,inputs=ones", "inputs 'ones' is not one of exact, position"),
        ("add/m=8,128", "'128' is not of the form name=value"),
        ("add/m=eight", "m must be an integer, got 'eight'"),
        ("add/m=8,n=128,bm=8,bn=128", "parameter 'dtype' is missing"),
        ("add/m=8,n=128,bm=8,bn=128,dtype=float16", "dtype must be one of .*'float16'"),
        ("add/m=8,n=128,bm=3,bn=128,dtype=int8", "bm must be 8 .* got 3"),
        ("add/m=8,n=128,bm=8,bn=128,dtype=int8,k=4", "add has no parameter 'k'"),
        ("add/m=8,n=128,bm=8,bn=128,dtype=int8,inputs=normal", "inputs 'normal' is not one of"),
        ("add/m=8,n=128,bm=8,bn=128,dtype=int8,seed=x", "seed must be an integer, got 'x'"),
        ("add/m=8,n=128,bm=8,bn=128,dtype=int8,seed=-1", "seed must not be negative, got -1"),
        ("add/small,seed=3", "seed 3 is not that of the pinned row, 0"),
        ("add/m=8,m=9,n=128,bm=8,bn=128,dtype=int8", "'m' is there twice"),
    ],
)
def test_a_wrong_id_names_its_wrong_part(text, wrong):
    with pytest.raises(ReplayError, match=wrong) as caught:
        parse_id(PINNED, text)
    assert str(caught.value).startswith(f"--replay {text}: ")


def test_tiers_nest():
    case = PINNED["add"]
    by_tier = [{e.pinned for e in pinned(case, tier)} for tier in TIERS]
    assert by_tier == [{"small"}, {"small", "seeded"}, {"small", "seeded", "big"}]
    assert GENERATED["smoke"] < GENERATED["ci"] < GENERATED["full"]
    assert SEEDS["smoke"] <= SEEDS["ci"] <= SEEDS["full"]


@each_case
def test_generated_examples_of_smaller_tiers_are_in_the_larger(case):
    """A failure of a small run is there in a larger run, too."""
    ids = [
        {e.id for e in generated(case, count, tier)}
        for count, tier in (
            (1, "smoke"),
            (GENERATED["smoke"], "smoke"),
            (GENERATED["ci"], "ci"),
            (12, "full"),
        )
    ]
    assert ids[0] < ids[1] < ids[2] < ids[3]


def test_generated_examples_cover_all_distributions_of_a_point():
    case = CASES["add"]
    found = generated(case, 3, "full")
    for params in {repr(e.params): e.params for e in found}.values():
        of_point = [e for e in found if e.params == params]
        assert len({e.seed for e in of_point}) == SEEDS["full"]
        assert {e.inputs for e in of_point} == set(case.inputs(params))


def test_max_examples_counts_generated_points_only():
    case = PINNED["add"]
    assert for_case(case, "ci", 0) == pinned(case, "ci")
    assert len({repr(e.params) for e in for_case(case, "smoke", 3) if e.pinned is None}) == 3
