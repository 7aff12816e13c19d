"""Predicted cycles: the parser on stored dumps of two libtpu versions, and the model by hand.

The dumps in tests/data/bundles are of real compiles, with the vector instructions taken out. The
`matmul` ones of v5e are of a matmul of 1024^3, bf16, in blocks of 128; the others of small ones.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import chips, scalar_core, schedule
from conformance.bundles import parse
from conformance.compiler import Bundles
from conformance.roofline import Blocked, moved
from conformance.scalar_core import DELAY_SLOTS, GRANULE_BYTES, Undetermined

DUMPS = Path(__file__).parent / "data" / "bundles"
STORED = sorted(path.stem for path in DUMPS.glob("*.txt"))
MATMULS = ("0.0.42-v5e-matmul", "0.0.50-v5e-matmul")
SPARSE = ("0.0.42-v5e-sparse", "0.0.50-v5e-sparse")
V5E = chips.get("v5e")


def text_of(name):
    return (DUMPS / f"{name}.txt").read_text()


def chip_of(name):
    return chips.get(name.split("-")[1])


def dumped(text, kernel=True):
    return Bundles(hlo="kernel", kernel=kernel, count=parse(text).count, text=text)


def compiled(text):
    return SimpleNamespace(bundles=(dumped(text),))


def operation(text, chip=V5E, scalars=None, **options):
    return schedule.operation(dumped(text), chip, scalars or {}, **options)


# ------------------------------------------------------------------ stored dumps


@pytest.mark.parametrize("name", STORED)
def test_every_bundle_is_seen(name):
    text = text_of(name)
    addresses = re.findall(r"^ *(?:0x)?([0-9a-f]+) .*?: ", text, re.M)
    assert parse(text).count == len(addresses) == int(addresses[-1], 16) + 1


@pytest.mark.parametrize("name", MATMULS)
def test_regions_run_as_often_as_the_grid_says(name):
    """8 x 8 x 8 steps: cleared where k starts, stored where it ends, two more turns to drain."""
    found = operation(text_of(name))
    assert found.steps == 8**3 + 2
    runs = [region.runs for region in found.regions]
    assert runs == [1, 514, 512, 64, 512, 64, 512, 514, 1]
    assert found.cycles == sum(region.bundles * region.runs for region in found.regions)


@pytest.mark.parametrize("name", MATMULS)
def test_dmas_are_those_of_the_index_maps(name):
    block = 128 * 128 * 2
    windows = (
        Blocked(bytes=block, index=lambda i, j, k: (i, k)),
        Blocked(bytes=block, index=lambda i, j, k: (k, j)),
        Blocked(bytes=block, index=lambda i, j, k: (i, j)),
    )
    assert operation(text_of(name)).moved == moved((8, 8, 8), windows)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize(
    ("rows", "columns", "fetched", "written"),
    [
        ([0, 0, 1, 1], [0, 1, 0, 1], 8, 4),
        ([0, 0, 0, 0], [0, 0, 0, 0], 2, 2),
        ([0, 1, 1, 1], [1, 1, 0, 0], 4, 4),
    ],
)
def test_scalar_prefetch_steers(name, rows, columns, fetched, written):
    """Grid (2, 4), blocks (16, 128) of x and of the result, (128, 128) of y, float32."""
    found = operation(text_of(name), scalars={0: np.array(rows), 1: np.array(columns)})
    y, out = 128 * 128 * 4, 16 * 128 * 4
    blocks = fetched * y + written * out + _x_bytes(name, out)
    assert 0 <= found.moved - blocks < 2048  # the indices
    assert found.steps == 2 * 4 + 2


def _x_bytes(name, block):
    """Of the stored blocks; 0 where XLA has put them into VMEM."""
    placed = {o.index: o.memory for o in parse(text_of(name)).operands.values()}
    return 8 * block if placed[2] == "hbm" else 0


@pytest.mark.parametrize("name", SPARSE)
def test_without_its_numbers_there_is_no_prediction(name):
    said = schedule.predict(compiled(text_of(name)), V5E)
    assert isinstance(said, schedule.Unpredicted)
    assert "prefetched number" in said.reason and said.label == "predicted"


def test_dmas_that_are_described_in_memory():
    """Before v5 a DMA's size stands in SMEM. (16, 256) x (256, 256), float32."""
    found = operation(text_of("0.0.50-v2-matmul"), chips.get("v2"))
    assert found.moved > 0 and found.moved % (8 * 128 * 4) == 0


def test_loops_within_the_loop_run_their_trip_count():
    found = operation(text_of("0.0.50-tpu7x-matmul"), chips.get("tpu7x"))
    assert found.steps == 2 * 2 * 2 + 2
    assert max(r.runs for r in found.regions) == 36


def test_quotient_and_remainder_choose_the_buffer():
    """XLA's broadcast of 0 to 16384 x 16384 in bf16, through six buffers."""
    found = schedule.operation(dumped(text_of("0.0.50-v5e-broadcast"), kernel=False), V5E, {})
    assert found.moved == 16384 * 16384 * 2


@pytest.mark.parametrize("name", STORED)
def test_branches_take_effect_when_the_table_says(name):
    """A region of the text ends with the last bundle that a branch out of it still runs."""
    text = re.sub(r"/\*(?:(?!/\*).)*?\*/", lambda m: "@" * ("End region" in m[0]), text_of(name))
    lines = [line for line in text.splitlines() if re.match(r" *(0x)?[0-9a-f]+ .*?:", line)]
    found = set()
    for number, line in enumerate(lines):
        target = re.search(r"sbr\.rel.* bundleno = (\d+)", line)
        if target and int(target[1]) > number:
            found.add(next(n for n, after in enumerate(lines[number + 1 :], 1) if "@" in after))
    assert not found or max(found) == DELAY_SLOTS[chip_of(name).info.generation]


@pytest.mark.parametrize("name", [n for n in STORED if "matmul" in n])
def test_granules_have_the_size_that_the_table_says(name):
    text = text_of(name)
    sizes = re.findall(
        r"size_in_granules=\*/(\d+),[^;]*?window_bounds: \(([\d, ]+)\).*?"
        r"element_size_in_bytes: (\d+)",
        text,
        re.S,
    )
    for granules, window, element in sizes:
        size = int(np.prod([int(n) for n in window.split(",")])) * int(element)
        assert size == int(granules) * GRANULE_BYTES[chip_of(name).info.generation]
    assert sizes or "v2" in name or "v4" in name


# ------------------------------------------------------------------ the model, by hand

LEGEND = "LB: loop body\n= control target key end\n\n"
X = "%s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, shape index: {}]"


def code(*lines, labels=None):
    labels = labels or {}
    rows = (f"{n:#6x} {labels.get(n, '  ')}: {{ {line} }}" for n, line in enumerate(lines))
    return LEGEND + "\n".join(rows) + "\n"


def start(granules, flag=5, predicate=""):
    return (
        f"%2 = dma.hbm_to_vmem [thread:$0] {predicate} %s1_s0, {granules}, %s1_s0, "
        f"[#allocation{flag}]"
    )


def wait(granules, flag=5):
    return f"%4 = dma.done.wait [#allocation{flag}], {granules}"


FREQUENCY = schedule.clock(V5E).value
LATENCY = schedule.DMA_LATENCY.value * FREQUENCY
RATE = FREQUENCY / schedule.bandwidth(V5E).value  # cycles a byte


def close(a, b):
    return abs(a - b) < 1e-6 * max(abs(a), abs(b), 1)


def test_the_clock_is_peak_by_cells():
    assert close(FREQUENCY, 197e12 / (2 * 4 * 128 * 128))
    assert {schedule.clock(c).kind for c in chips.ALL} == {"derived"}


def test_code_takes_a_cycle_a_bundle():
    found = operation(code(*[""] * 7))
    assert (found.cycles, found.stalled, found.moved) == (7, 0, 0)


def test_a_wait_takes_latency_and_transfer():
    found = operation(code(X, start(128), wait(128), ""))
    assert found.cycles == 4
    assert close(found.stalled, LATENCY + 4096 * RATE - 1)
    assert found.moved == 4096


def test_code_hides_a_transfer():
    found = operation(code(X, start(128), *[""] * 2000, wait(128)))
    assert (found.cycles, found.stalled) == (2003, 0)


def test_transfers_share_the_memory_but_not_the_latency():
    found = operation(code(X, start(128), start(128, flag=6), wait(128), wait(128, flag=6)))
    assert close(found.stalled, LATENCY + 2 * 4096 * RATE - 3)


def test_a_loop_runs_as_often_as_it_counts():
    """Four bundles after the branch run in every turn."""
    loop = code(
        "%s9_s1 = smov 0",
        "%s10_s1 = sphi %s9_s1, %s11_s1  ;;  %s11_s1 = sadd.s32 1, %s10_s1",
        "%p12_p0 = scmp.ge.s32.totalorder %s11_s1, 10",
        "%13 = sbr.rel (!%p12_p0) target bundleno = 1 (0x1), region = 2",
        *[""] * 4,
        "",
        labels={1: "LB"},
    )
    assert operation(loop).cycles == 1 + 10 * 7 + 1
    assert [r.runs for r in operation(loop).regions] == [1, 10, 1]


def test_a_branch_leaves_out_its_region():
    def taken(value):
        return code(
            f"%s9_s1 = smov {value}",
            "%p12_p0 = scmp.ne.s32.totalorder %s9_s1, 0",
            "%13 = sbr.rel (%p12_p0) target bundleno = 9 (0x9), region = 2",
            *[""] * 4,
            "",
            "",
            "",
            labels={9: "PF"},
        )

    assert operation(taken(0)).cycles == 10
    assert operation(taken(1)).cycles == 8


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["%s9_s1 = spop %8", "%p1_p0 = scmp.eq.s32.totalorder %s9_s1, 0"], "vector unit"),
        (["%p1_p0 = sweird %p2_p1"], "instruction sweird"),
        (["%p1_p0 = scmp.eq.f32.partialorder %s2_s2, 0"], "instruction scmp.eq.f32"),
    ],
)
def test_what_is_not_understood_is_said_if_it_decides(lines, reason):
    decides = code(X, *lines, start(128, predicate="(%p1_p0)"))
    with pytest.raises(Undetermined, match=reason):
        operation(decides)
    said = schedule.predict(compiled(decides), V5E)
    assert isinstance(said, schedule.Unpredicted) and reason in said.reason
    operation(code(X, *lines, start(128)))  # decides nothing


def test_a_wait_for_nothing_is_said():
    with pytest.raises(Undetermined, match="from elsewhere"):
        operation(code(X, wait(1)))


BOTH_CORES = (
    "%s9_s1 = smov [#allocation5]",
    "%s10_s2 = sor.u32 24576, %s9_s1",
    "%s11_s2 = sshll.u32 %s10_s2, 16",
    "%s12_s2 = sor.u32 %s11_s2, %s9_s1",
    "%2 = dma.hbm_to_vmem [thread:$0] %s1_s0, 128, %s1_s0, %s12_s2",
)


def test_a_fetch_for_both_cores_costs_each_half():
    found = operation(code(X, *BOTH_CORES, wait(128)), chips.get("v5p"))
    assert (found.moved, found.shared) == (2048, True)
    assert not operation(code(X, start(128), wait(128)), chips.get("v5p")).shared


def test_a_fetch_for_both_cores_is_a_limit():
    assert any("both cores" in limit for limit in limits_of(code(X, *BOTH_CORES, wait(128))))


def test_an_endless_loop_is_said(monkeypatch):
    monkeypatch.setattr(scalar_core, "MOST_TURNS", 1000)
    turn = "%13 = sbr.rel target bundleno = 1 (0x1), region = 2"
    with pytest.raises(Undetermined, match="more than 1000 times"):
        operation(code("", "", turn, *[""] * 4, labels={1: "LB"}))


@pytest.mark.parametrize("text", ["", "nothing", LEGEND + "   0x1   : { }\n"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"legend of labels|bundle 0x0 is missing"):
        found = parse(text)
        assert found.count == 0


# ------------------------------------------------------------------ validity


def limits_of(text, chip=V5E, scalars=None):
    return schedule.predict(compiled(text), chip, scalars).limits


def test_within_the_model_there_is_no_limit():
    assert limits_of(code(X, start(128), *[""] * 20000, wait(128))) == ()


@pytest.mark.parametrize("name", MATMULS)
def test_small_blocks_wait_for_latency(name):
    (limit,) = limits_of(text_of(name))
    assert "latency" in limit


def test_large_transfers_wait_for_bandwidth():
    (limit,) = limits_of(code(X, start(10**6), wait(10**6)))
    assert "bandwidth" in limit


@pytest.mark.parametrize(
    ("chip", "limits"),
    [("v6e", ["no published timing"]), ("v5p", ["no published timing", "one of two cores"])],
)
def test_chips_without_published_times(chip, limits):
    found = limits_of(code(*[""] * 9), chips.get(chip))
    assert len(found) == len(limits)
    assert all(wanted in said for wanted, said in zip(limits, found, strict=True))


def test_operands_that_xla_has_placed_in_vmem():
    found = limits_of(text_of("0.0.50-tpu7x-matmul"), chips.get("tpu7x"))
    assert any("placed operands in VMEM" in said for said in found)


def test_numbers_that_steer_are_part_of_the_prediction():
    scalars = {0: np.array([0, 0, 1, 1]), 1: np.array([0, 1, 0, 1])}
    found = limits_of(text_of(SPARSE[1]), scalars=scalars)
    assert any("for these numbers only" in said for said in found)


def test_a_prediction_says_what_it_is():
    found = schedule.predict(compiled(code(*[""] * 1503)), V5E)
    assert found.label == "predicted"
    assert close(found.seconds, 1503 / FREQUENCY)
    assert close(found.wall_seconds, found.seconds + schedule.DISPATCH.value)
    assert {schedule.DMA_LATENCY.kind, schedule.DISPATCH.kind} == {"fitted"}
    assert {found.clock.kind, found.bandwidth.kind} == {"derived"}


def test_latency_can_be_another():
    text = code(X, start(128), wait(128))
    none = operation(text, latency=replace(schedule.DMA_LATENCY, value=0.0))
    assert close(operation(text).stalled - none.stalled, LATENCY)
