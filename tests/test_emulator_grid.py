"""What the executor of compiler IR does around a kernel's body: blocks, cores, copies."""

from __future__ import annotations

import numpy as np
import pytest
from mosaic_text import (
    AWAIT,
    BLOCK,
    BY_ROWS,
    COPY,
    DMA,
    FIRST,
    HBM,
    IN,
    INWARDS,
    ONE,
    OUT,
    PLAIN,
    PUT,
    SCALARS,
    SEMAPHORE,
    THREE,
    X_AND_O,
    Module,
    Values,
    accumulate,
    add,
    agree,
    by_rows,
    copying,
    execute,
    f32,
    load,
    looked_up,
    start,
    store,
    wait,
)

from conformance.emulator import Conditions, Defect, agreed, build, run
from conformance.emulator.dma import Hang
from conformance.emulator.grid import LeftOver
from conformance.emulator.memory import POISON_FINITE, OutOfBounds


def first_column(value: np.ndarray) -> list[float]:
    assert ((value == value[:, :1]) | np.isnan(value)).all()
    return value[:, 0].tolist()


# --------------------------------------------------------------------------- the grid


def half(code: str = "%i") -> tuple[tuple[int, ...], str]:
    """The block i / 2."""
    return ((8, 128), f"%h = arith.divsi {code}, %two : i32\nreturn %h, %zero : i32, i32")


MOVES = load("x", "v") + ONE + add("v", "one_f", "w") + store("w", "x") + store("w", "o")


def test_a_block_is_fetched_when_its_index_changes_and_only_then():
    """The body counts in its input's block; a fetch undoes that."""
    (found,) = execute(by_rows(MOVES, 4, half(), BY_ROWS), f32(16), rows=(32,))
    want = np.concatenate([f32(8) + 1, f32(8) + 2, f32(8, 8) + 1, f32(8, 8) + 2])
    np.testing.assert_array_equal(found, want)
    (always,) = execute(by_rows(MOVES, 4, BY_ROWS, BY_ROWS), f32(32), rows=(32,))
    np.testing.assert_array_equal(always, f32(32) + 1)


def test_a_block_of_a_result_stays_until_its_index_changes():
    (found,) = agree(by_rows(accumulate(), 3, BY_ROWS, FIRST), f32(24))
    np.testing.assert_array_equal(found, 3 * f32(8) + 24)


def test_a_block_that_is_left_and_comes_again_is_undefined():
    """Written back at the change: what was in it does not come back with it."""
    odd = "%h = arith.remsi %i, %two : i32\nreturn %h, %zero : i32, i32"
    module = by_rows(accumulate(), 3, BY_ROWS, ((8, 128), odd))
    (found,) = execute(module, f32(24), rows=(16,))
    assert np.isnan(found).all()
    with pytest.raises(Defect, match="never written"):
        agree(module, f32(24), rows=(16,))
    (found,) = execute(by_rows(COPY, 3, BY_ROWS, ((8, 128), odd)), f32(24), rows=(16,))
    np.testing.assert_array_equal(found, np.concatenate([f32(8, 16), f32(8, 8)]))


def test_the_last_axis_runs_fastest():
    row = "%t = arith.muli %i, %two : i32\n%h = arith.addi %t, %j : i32\n"
    row += "return %h, %zero : i32, i32"
    module = Module(
        arguments=X_AND_O, body=COPY, grid=(2, 2), windows=(((8, 128), row), FIRST)
    )  # fmt: skip
    (found,) = execute(module, f32(32))
    np.testing.assert_array_equal(found, f32(8, 24))


def test_without_a_grid_operands_are_whole():
    (found,) = agree(Module(arguments=X_AND_O, body=COPY), f32(8))
    np.testing.assert_array_equal(found, f32(8))


def test_a_dynamic_bound_is_the_first_operand():
    module = by_rows(accumulate(), None, BY_ROWS, FIRST)
    assert build(module.text).grid == (None,)
    for steps in (1, 3):
        (found,) = agree(module, np.int32(steps), f32(24))
        np.testing.assert_array_equal(found, f32(24)[: 8 * steps].reshape(steps, 8, 128).sum(0))


def test_the_bounds_are_known_to_the_body():
    code = f"%n = tpu.iteration_bound 1 : i32\nmemref.store %n, %o[%c0] : {SCALARS}"
    window = ((8,), "return %zero : i32")
    module = Module(arguments=(("o", SCALARS),), body=code, grid=(2, 5), windows=(window,))
    (found,) = run(build(module.text), [], [((8,), np.dtype(np.int32))], {}, PLAIN)
    assert found[0] == 5


def test_what_lies_outside_of_a_ragged_array_is_undefined():
    """x is 12 rows in blocks of 8. Copied, the 4 rows that are not there are not written back."""
    (found,) = agree(by_rows(COPY, 2), f32(12), rows=(12,))
    np.testing.assert_array_equal(found, f32(12))
    (summed,) = execute(by_rows(accumulate(), 2, BY_ROWS, FIRST), f32(12))
    np.testing.assert_array_equal(summed[:4], f32(8)[:4] + f32(12)[8:])
    assert np.isnan(summed[4:]).all()
    with pytest.raises(Defect, match=r"^result 0 depends on memory that was never written"):
        agree(by_rows(accumulate(), 2, BY_ROWS, FIRST), f32(12))


@pytest.mark.parametrize("poison", [PLAIN.poison, POISON_FINITE])
def test_a_fetch_leaves_nothing_of_the_block_before(poison):
    """The rows outside of a ragged last block are not those of the block before it."""
    conditions = Conditions(poison=poison)
    (summed,) = execute(by_rows(COPY, 2, BY_ROWS, FIRST), f32(12), conditions=conditions)
    assert not np.isin(summed[4:], f32(12)).all()


def test_a_result_that_nothing_writes_is_a_defect():
    only_first = "%first = arith.cmpi eq, %i, %zero : i32\nscf.if %first {\n" + COPY + "}\n"
    with pytest.raises(Defect, match="result 0 depends on memory that was never written"):
        agree(by_rows(only_first, 2), f32(16), rows=(16,))
    with pytest.raises(Defect, match="never written"):
        agree(by_rows(only_first, 0), f32(16), rows=(16,))


def test_scratch_is_undefined_at_first_and_kept_between_steps():
    arguments = (*X_AND_O, ("s", BLOCK))
    keeps = load("s", "v") + store("v", "o") + load("x", "w") + store("w", "s")
    module = Module(
        arguments=arguments, body=keeps, grid=(3,), windows=(BY_ROWS, FIRST), scratch=1
    )  # fmt: skip
    (found,) = agree(module, f32(24))
    np.testing.assert_array_equal(found, f32(8, 8))
    one_step = Module(
        arguments=arguments, body=keeps, grid=(1,), windows=(BY_ROWS, FIRST), scratch=1
    )  # fmt: skip
    with pytest.raises(Defect, match="never written"):
        agree(one_step, f32(8))


def test_an_aliased_result_begins_as_its_operand():
    """Only block 0 is written; the caller's array does not change."""
    x = f32(16, 5).copy()
    (found,) = agree(by_rows(COPY, 1, ((8, 128), "return %one, %zero : i32, i32"), FIRST), x,
                     rows=(16,), aliases={0: 0})  # fmt: skip
    np.testing.assert_array_equal(found, np.concatenate([f32(8, 13), f32(8, 13)]))
    np.testing.assert_array_equal(x, f32(16, 5))


@pytest.mark.parametrize("index", [2, -1, 100])
def test_a_block_index_must_be_inside(index):
    code = f"%h = arith.constant {index} : i32\nreturn %h, %zero : i32, i32"
    says = rf"block index \({index}, 0\) of an operand of shape \(16, 128\) in blocks of \(8, 128\)"
    with pytest.raises(OutOfBounds, match=says):
        execute(by_rows(COPY, 1, ((8, 128), code), FIRST), f32(16))
    with pytest.raises(Defect, match=f"^out of bounds: {says}"):
        agree(by_rows(COPY, 1, FIRST, ((8, 128), code)), f32(8), rows=(16,))


def test_index_maps_read_prefetched_scalars():
    order = np.array([2, 0, 2, *[0] * 5], np.int32)
    (found,) = agree(looked_up(), order, f32(24), rows=(24,))
    np.testing.assert_array_equal(found, np.concatenate([f32(8, 16), f32(8), f32(8, 16)]))
    assert build(looked_up().text).prefetch == 1
    with pytest.raises(Defect, match=r"out of bounds: block index \(7, 0\)"):
        agree(looked_up(), np.full(8, 7, np.int32), f32(24), rows=(24,))


def test_windows_may_count_elements():
    """From one row above the array; rows outside are undefined."""
    start = "%h = arith.muli %i, %two : i32\nreturn %h, %zero : i32, i32"
    module = by_rows(
        COPY, 3, ((8, 128), start), BY_ROWS, kinds={0: "#tpu.element_window<[1, 0], [5, 0]>"}
    )  # fmt: skip
    (found,) = execute(module, f32(8), rows=(24,))
    column = first_column(found)
    assert np.isnan(column[0]) and column[1:8] == [*range(7)]
    assert column[8:15] == [*range(1, 8)] and np.isnan(column[15])
    assert column[16:21] == [*range(3, 8)] and np.isnan(column[21:]).all()


# --------------------------------------------------------------------------- cores


def test_points_of_parallel_axes_share_nothing():
    (found,) = agree(by_rows(COPY, 3, semantics=("parallel",)), f32(24), rows=(24,))
    np.testing.assert_array_equal(found, f32(24))
    reduction = by_rows(accumulate(), 3, BY_ROWS, FIRST, semantics=("parallel",))
    with pytest.raises(Defect, match="`parallel` axes"):
        agree(reduction, f32(24))


def test_only_the_parallel_axis_is_divided():
    """j is arbitrary: a sum along it is right, and one along i is not."""
    sums = Module(
        arguments=X_AND_O,
        body=accumulate().replace("%i, %zero", "%j, %zero"),
        grid=(2, 3),
        semantics=("parallel", "arbitrary"),
        windows=(
            ((8, 128), "%t = arith.addi %i, %j : i32\nreturn %t, %zero : i32, i32"),
            BY_ROWS,
        ),
    )
    (found,) = agree(sums, f32(32), rows=(16,))
    np.testing.assert_array_equal(found, np.concatenate([3 * f32(8) + 24, 3 * f32(8) + 48]))


# --------------------------------------------------------------------------- copies


def test_a_copy_that_is_awaited_is_there():
    assert build(copying(IN + AWAIT + OUT).text).copies
    (found,) = agree(copying(IN + AWAIT + OUT), f32(8, 1))
    np.testing.assert_array_equal(found, f32(8, 1))
    (late,) = execute(copying(IN + AWAIT + OUT), f32(8, 1), conditions=Conditions(late_copies=True))
    np.testing.assert_array_equal(late, f32(8, 1))


def test_a_late_copy_happens_at_its_wait():
    early = copying(PUT + IN + OUT + AWAIT)
    (now,), (late,) = (
        execute(early, f32(8, 1), conditions=Conditions(late_copies=late)) for late in (False, True)
    )
    np.testing.assert_array_equal(now, f32(8, 1))
    assert (late == 3).all()
    with pytest.raises(Defect, match="a wait is missing"):
        agree(early, f32(8, 1))


WITHIN = (BLOCK, BLOCK)
SOURCE = PUT + start("s", "t", WITHIN) + ONE + store("one_f", "s") + wait("s", "t", WITHIN)


def test_a_source_that_changes_under_way_is_a_defect():
    with pytest.raises(Defect, match="what it copies is changed meanwhile"):
        agree(copying(SOURCE + load("t", "v") + store("v", "o")), f32(8))


def test_copies_on_one_semaphore_arrive_in_order():
    """A wait for one of two equal copies is not a wait for the other."""
    second = start("x", "t", INWARDS)
    both = PUT + THREE.replace("three_f", "again") + store("again", "t") + IN + second + AWAIT
    first_only = copying(both + load("t", "v") + store("v", "o") + wait("x", "t", INWARDS))
    (late,) = execute(first_only, f32(8), conditions=Conditions(late_copies=True))
    assert (late == 3).all()
    (right,) = agree(copying(both + OUT + wait("x", "t", INWARDS)), f32(8, 1))
    np.testing.assert_array_equal(right, f32(8, 1))


def test_waiting_twice_hangs():
    with pytest.raises(Hang, match="a wait for 4096 on a semaphore that stays at 0"):
        execute(copying(IN + AWAIT + AWAIT + OUT), f32(8))
    with pytest.raises(Defect, match="a wait for 4096"):
        agree(copying(IN + AWAIT + AWAIT + OUT), f32(8))


def test_never_waiting_leaves_something():
    with pytest.raises(LeftOver, match=r"semaphores were left at \[4096\]"):
        execute(copying(IN + OUT), f32(8))
    with pytest.raises(LeftOver, match="1 DMAs were started and never waited for"):
        execute(copying(IN + OUT), f32(8), conditions=Conditions(late_copies=True))
    with pytest.raises(Defect, match=r"never waited for|left at \[4096\]"):
        agree(copying(IN + OUT), f32(8))


def by_hand(*steps: tuple[str, int]) -> Module:
    """Signals, waits and reads of a regular semaphore; then x, by way of s, is o."""
    text = [f"tpu.sem_{op} %d, %n{n} : {SEMAPHORE}" for n, (op, _) in enumerate(steps)]
    amounts = [f"%n{n} = arith.constant {amount} : i32" for n, (_, amount) in enumerate(steps)]
    return copying("\n".join([*amounts, *text, ""]) + PUT + OUT, SEMAPHORE)


def test_regular_semaphores_are_counted_by_hand():
    agree(by_hand(("signal", 3), ("wait", 1), ("wait", 2)), f32(8))
    with pytest.raises(Hang, match="a wait for 2 on a semaphore that stays at 1"):
        execute(by_hand(("signal", 1), ("wait", 2)), f32(8))
    with pytest.raises(LeftOver, match=r"semaphores were left at \[1\]"):
        execute(by_hand(("signal", 2), ("wait", 1)), f32(8))
    with pytest.raises(Defect, match=r"semaphores were left at \[1\]"):
        agree(by_hand(("signal", 2), ("wait", 1)), f32(8))


def test_a_slice_of_an_array_in_hbm_is_copied_to_and_from():
    """Rows 8 to 16 of x become o."""
    sixteen, part = HBM.format(16), HBM.format(8)
    body = f"%p = tpu.memref_slice %x[%eight, %zero] : {sixteen} -> {part}\n"
    body += start("p", "s", INWARDS) + wait("p", "s", INWARDS) + OUT
    module = copying(body)
    sliced = Module(
        arguments=(("x", sixteen), *module.arguments[1:]), body=module.body, scratch=module.scratch
    )
    (found,) = agree(sliced, f32(16))
    np.testing.assert_array_equal(found, f32(8, 8))
    outside = Module(
        arguments=sliced.arguments, body=body.replace("%x[%eight,", "%x[%sixteen,"), scratch=3
    )
    outside = Module(
        arguments=sliced.arguments,
        body="%sixteen = arith.constant 16 : i32\n" + outside.body,
        scratch=3,
    )
    with pytest.raises(Defect, match=r"out of bounds: a slice of \(8, 128\) from \(16, 0\)"):
        agree(outside, f32(16))


def test_a_block_may_be_fetched_before_the_step_before_has_run():
    """Each step copies its block to where the next block of x comes from."""
    sixteen, part = HBM.format(16), HBM.format(8)
    body = f"%p = tpu.memref_slice %h[%eight, %zero] : {sixteen} -> {part}\n" + COPY
    body += start("x", "p", (BLOCK, part)) + wait("x", "p", (BLOCK, part))
    module = Module(
        arguments=(*X_AND_O, ("h", sixteen), ("d", DMA)),
        body=body,
        grid=(2,),
        windows=(BY_ROWS, BY_ROWS, ((16, 128), "return %zero, %zero : i32, i32")),
        scratch=1,
    )
    with pytest.raises(Defect, match="fetched after the steps just before have written it"):
        agree(module, f32(16), rows=(16, 16), aliases={0: 1})


def test_a_block_may_be_fetched_before_the_last_one_was_written_back():
    """Step i writes the block that step i + 2 reads: its way back and the fetch are concurrent."""
    code = "%t = arith.addi %i, %two : i32\nreturn %t, %zero : i32, i32"
    with pytest.raises(Defect, match="fetched after the steps just before have written it"):
        agree(by_rows(COPY, 3, BY_ROWS, ((8, 128), code)), f32(40), rows=(40,), aliases={0: 0})


def test_what_is_read_three_steps_after_it_was_written_is_there():
    code = "%t = arith.addi %i, %three : i32\nreturn %t, %zero : i32, i32"
    window = ((8, 128), f"%three = arith.constant 3 : i32\n{code}")
    (found,) = agree(by_rows(COPY, 6, BY_ROWS, window), f32(72), rows=(72,), aliases={0: 0})
    want = np.concatenate([f32(24), f32(24), f32(24)])
    np.testing.assert_array_equal(found, want)


# --------------------------------------------------------------------------- agreement


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("poison", "memory that was never written"),
        ("late_copies", "a wait is missing"),
        ("early_fetch", "a block being fetched"),
        ("own_cores", "`parallel` axes"),
    ],
)
def test_the_one_condition_that_shows_is_named(condition, says):
    def results(conditions: Conditions) -> Values:
        departs = getattr(conditions, condition) != getattr(PLAIN, condition)
        return np.zeros(3), np.array([int(departs)])

    with pytest.raises(Defect, match=f"^result 1 depends on .*{says}"):
        agreed(results)


def test_conditions_that_only_show_together_are_a_defect():
    def results(conditions: Conditions) -> Values:
        return (np.array([conditions.late_copies and conditions.own_cores]),)

    with pytest.raises(Defect, match="result 0 depends on conditions that the chip leaves open"):
        agreed(results)


def test_results_agree_whatever_the_payload_of_nan():
    def results(conditions: Conditions) -> Values:
        raw = 0x7FC00001 if conditions.late_copies else 0x7FC00002
        return (np.array([raw, 0x3F800000], np.uint32).view(np.float32),)

    (found,) = agreed(results)
    np.testing.assert_array_equal(found, [np.nan, 1])
