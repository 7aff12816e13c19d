"""Published times: complete, loaded with their sources, and how a time stands against them."""

from __future__ import annotations

import json

import pytest

from conformance import chips
from conformance.loading import DEFAULT_SUBJECT, LoadError, load_subject
from conformance.roofline import matmul_work, roofline
from conformance.targets import XLA, Standing, load_targets, standing


@pytest.fixture(scope="module")
def targets(cases):
    return {t.id: t for t in load_targets(cases)}


def test_every_published_row_is_there(targets):
    wanted = {
        f"{kind}-{blocks}-{size}"
        for kind in ("plain", "transposed", "relu")
        for blocks in ("128x128x128", "512x1024x1024")
        for size in (1024, 4096, 8192)
    }
    wanted |= {f"xla-{size}" for size in (1024, 4096, 8192)}
    wanted |= {f"{n}-16384" for n in ("sparse", "sparse-dense", "masked", "masked-dense")}
    assert set(targets) == wanted


def test_ratios_that_the_guides_claim(targets):
    def ratio(above, below):
        return targets[above].value / targets[below].value

    plain = "plain-512x1024x1024-8192"
    assert round(ratio("transposed-512x1024x1024-8192", plain), 3) == 1.001
    assert round(ratio("relu-512x1024x1024-8192", plain), 3) == 1.005
    assert round(ratio("sparse-dense-16384", "sparse-16384"), 1) == 5.8
    assert round(ratio("masked-dense-16384", "masked-16384"), 2) == 1.74


def test_targets_name_kernels_that_are_there(targets, cases):
    subject = load_subject(DEFAULT_SUBJECT, tuple(cases))
    for target in targets.values():
        assert target.source.startswith("https://docs.jax.dev/")
        assert target.measured.startswith("wall time")
        if target.kernel != XLA:
            subject.find(target.case, target.kernel)


ROW = {
    "id": "a",
    "case": "matmul",
    "kernel": "xla",
    "params": {"m": 8, "k": 8, "n": 8, "bm": 8, "bk": 8, "bn": 8, "dtype": "float32"},
    "chip": "v5e",
    "value": 0.001,
    "unit": "s",
    "measured": "device time",
    "source": "https://example.org",
}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW | {"value": 0}], "target 0/value"),
        ([ROW | {"unit": "ms"}], "target 0/unit"),
        ([{k: v for k, v in ROW.items() if k != "source"}], "'source' is a required property"),
        ([ROW | {"chip": "v9"}], "unknown chip 'v9'"),
        ([ROW | {"case": "mat"}], "no case 'mat'"),
        ([ROW | {"params": ROW["params"] | {"m": 0}}], "m must be an integer"),
        ([ROW, ROW], "'a' is there twice"),
    ],
)
def test_a_bad_target_is_named(cases, tmp_path, rows, message):
    file = tmp_path / "targets.json"
    file.write_text(json.dumps(rows))
    with pytest.raises(LoadError, match=message):
        load_targets(cases, file)


@pytest.mark.parametrize("text", ["[", None])
def test_a_file_that_cannot_be_read(cases, tmp_path, text):
    file = tmp_path / "targets.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(LoadError, match="not readable as JSON"):
        load_targets(cases, file)


@pytest.mark.parametrize(
    ("seconds", "target", "expected"),
    [
        (0.0060, 0.0061, Standing.ON_TARGET),
        (0.0061, 0.0061, Standing.ON_TARGET),
        (0.0062, 0.0061, Standing.BELOW_TARGET),
        (0.0062, None, Standing.NO_TARGET),
        (0.0055, 0.0061, Standing.INVALID),
        (0.0055, None, Standing.INVALID),
    ],
)
def test_standing(seconds, target, expected):
    """At 8192^3 the roofline of v5e is 5.58 ms."""
    limits = roofline(matmul_work(8192, 8192, 8192, "bfloat16"), chips.get("v5e"), "bfloat16")
    assert standing(seconds, limits, target) is expected
