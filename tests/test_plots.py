"""Pictures of times: what is drawn where, and how it is marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.case import Case
from conformance.report import plots

MATMUL = {"m": 4096, "k": 4096, "n": 4096, "bm": 512, "bk": 1024, "bn": 1024, "dtype": "bfloat16"}
SLICE = {"m": 512, "n": 512, "size_m": 256, "size_n": 256, "start_m": 0, "start_n": 0}


def row(**fields: Any) -> dict[str, Any]:
    """A row of benchmarks.jsonl, as far as pictures read it."""
    return {
        "case": "matmul",
        "kernel": "scratch_accumulator",
        "params": MATMUL,
        "chip": "v5e",
        "label": "predicted",
        "median_seconds": 7.5e-4,
        "target_seconds": 7.8e-4,
    } | fields


def test_a_time_and_the_published_one_stand_under_the_roof(cases: Mapping[str, Case]) -> None:
    predicted, published = plots.points([row()], cases, "v5e")
    assert (predicted.label, published.label) == ("predicted", "published")
    assert predicted.rate == 2 * 4096**3 / 7.5e-4
    assert predicted.limits.intensity == published.limits.intensity == 2 * 4096**3 / (6 * 4096**2)
    assert predicted.rate < predicted.limits.peak


def test_what_has_no_place_under_a_roof_is_left_out(cases: Mapping[str, Case]) -> None:
    other_chip = row(chip="v6e")
    no_time = row(median_seconds=None, target_seconds=None)
    no_operations = row(
        case="dynamic_slice", params=SLICE | {"dtype": "float32"}, target_seconds=None
    )
    add = {"m": 64, "n": 128, "bm": 64, "bn": 128, "dtype": "int32"}
    no_peak = row(case="add", params=add)
    assert not plots.points([other_chip, no_time, no_operations, no_peak], cases, "v5e")


@pytest.mark.parametrize(
    ("label", "style"), [("predicted", "none"), ("measured", "full"), ("published", None)]
)
def test_what_was_not_measured_is_not_filled(label: str, style: str | None) -> None:
    assert plots._marker(label).get("fillstyle") == style
    assert (plots._marker(label)["marker"] == "x") == (label == "published")


def test_pictures_of_both_kinds_name_chip_cases_and_labels(
    cases: Mapping[str, Case], tmp_path: Path
) -> None:
    rows = [row(), row(label="measured"), row(chip="v6e", target_seconds=None)]
    names = sorted(p.name for p in plots.write_all(rows, cases, tmp_path))
    stems = ("against-published", "roofline-v5e", "roofline-v6e")
    assert names == [f"{s}.{kind}" for s in stems for kind in ("png", "svg")]
    assert all((tmp_path / n).read_bytes()[:4] == b"\x89PNG" for n in names if n.endswith("png"))
    comments = (tmp_path / "roofline-v5e.svg").read_text()
    ElementTree.fromstring(comments)
    for text in ("Roofline of v5e", "matmul", "predicted", "measured", "published"):
        assert f"<!-- {text} -->" in comments


def test_equal_rows_make_equal_pictures(cases: Mapping[str, Case], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        plots.write_all([row()], cases, tmp_path / folder)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
