"""What the executor of compiler IR makes of control flow, constants, and what it does not know.

The modules are written by hand; only JAX's own MLIR bindings are needed to read them.
"""

from __future__ import annotations

import textwrap

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
    OUT,
    PLAIN,
    SCALARS,
    X_AND_O,
    Module,
    by_rows,
    copying,
    looked_up,
)

from conformance.emulator import Program, Unknown, build, run
from conformance.emulator.ops import Op, load_all
from conformance.emulator.types import parse

# --------------------------------------------------------------------------- control flow


def scalars(code: str, *given: int, functions: str = "") -> int:
    """What `code` makes of the numbers %a, %b and %n: it defines %r."""
    loads = [
        f"%i{n} = arith.constant {n} : index\n%{name} = memref.load %x[%i{n}] : {SCALARS}"
        for n, name in enumerate("abn")
    ]
    body = "\n".join([*loads, textwrap.dedent(code), f"memref.store %r, %o[%c0] : {SCALARS}"])
    module = Module(arguments=(("x", SCALARS), ("o", SCALARS)), body=body, functions=functions)
    x = np.array([*given, *[0] * (8 - len(given))], np.int32)
    (found,) = run(build(module.text), [x], [((8,), np.dtype(np.int32))], {}, PLAIN)
    return int(found[0])


IF = """
%p = arith.cmpi slt, %a, %b : i32
%r, %other = scf.if %p -> (i32, i32) {
  scf.yield %a, %b : i32, i32
} else {
  %q = arith.cmpi eq, %n, %one : i32
  %s = scf.if %q -> (i32) {
    scf.yield %eight : i32
  } else {
    scf.yield %b : i32
  }
  scf.yield %s, %a : i32, i32
}
"""


@pytest.mark.parametrize(("given", "want"), [((1, 2, 0), 1), ((3, 2, 0), 2), ((3, 2, 1), 8)])
def test_if_yields_the_values_of_the_branch_taken(given, want):
    assert scalars(IF, *given) == want


def test_if_without_else_only_has_effects():
    code = f"""
    %p = arith.cmpi sgt, %a, %zero : i32
    memref.store %one, %o[%c0] : {SCALARS}
    scf.if %p {{
      memref.store %eight, %o[%c0] : {SCALARS}
    }}
    %r = memref.load %o[%c0] : {SCALARS}
    """
    assert (scalars(code, 1), scalars(code, -1)) == (8, 1)


FIBONACCI = """
%r, %next = scf.for %i = %a to %b step %n iter_args(%p = %zero, %q = %one) -> (i32, i32) : i32 {
  %s = arith.addi %p, %q : i32
  scf.yield %q, %s : i32, i32
}
"""


@pytest.mark.parametrize(
    ("given", "want"), [((0, 10, 1), 55), ((0, 10, 3), 3), ((5, 5, 1), 0), ((7, 2, 1), 0)]
)
def test_for_carries_its_values_from_turn_to_turn(given, want):
    """All of them at once: each yield reads what the turn began with."""
    assert scalars(FIBONACCI, *given) == want


def test_loops_nest_and_see_each_others_values():
    code = """
    %r = scf.for %i = %zero to %a step %one iter_args(%s = %zero) -> (i32) : i32 {
      %t = scf.for %j = %zero to %i step %one iter_args(%u = %s) -> (i32) : i32 {
        %p = arith.muli %i, %j : i32
        %q = arith.addi %u, %p : i32
        scf.yield %q : i32
      }
      %even = arith.remsi %i, %two : i32
      %is = arith.cmpi eq, %even, %zero : i32
      %v = scf.if %is -> (i32) {
        scf.yield %t : i32
      } else {
        scf.yield %s : i32
      }
      scf.yield %v : i32
    }
    """
    assert scalars(code, 7) == sum(i * j for i in range(0, 7, 2) for j in range(i))


WHILE = """
%r, %last = scf.while (%p = %a, %q = %zero) : (i32, i32) -> (i32, i32) {
  %more = arith.cmpi sgt, %p, %b : i32
  %ten = arith.constant 10 : i32
  %seen = arith.addi %q, %ten : i32
  scf.condition(%more) %seen, %p : i32, i32
} do {
^bb0(%s: i32, %t: i32):
  %less = arith.subi %t, %two : i32
  scf.yield %less, %s : i32, i32
}
"""


@pytest.mark.parametrize(("given", "want"), [((5, 0), 40), ((6, 0), 40), ((0, 0), 10)])
def test_while_gives_what_its_condition_passes_on(given, want):
    """That may be in another order than its arguments, and is computed once more at the end."""
    assert scalars(WHILE, *given) == want


def test_a_function_is_called_and_gives_several_values():
    functions = """
    func.func @sum_and_difference(%x: i32, %y: i32) -> (i32, i32) {
      %s = arith.addi %x, %y : i32
      %d = func.call @difference(%x, %y) : (i32, i32) -> i32
      return %s, %d : i32, i32
    }
    func.func @difference(%x: i32, %y: i32) -> i32 {
      %d = arith.subi %x, %y : i32
      return %d : i32
    }
    """
    code = """
    %s, %d = func.call @sum_and_difference(%a, %b) : (i32, i32) -> (i32, i32)
    %r = arith.muli %s, %d : i32
    """
    assert scalars(code, 7, 3, functions=functions) == 40


@pytest.mark.parametrize(("given", "want"), [(0, 8), (5, 1), (-2, 2), (3, 0)])
def test_index_switch(given, want):
    code = """
    %which = arith.index_cast %a : i32 to index
    %r = scf.index_switch %which -> i32
    case 0 {
      scf.yield %eight : i32
    }
    case 5 {
      scf.yield %one : i32
    }
    case -2 {
      scf.yield %two : i32
    }
    default {
      scf.yield %zero : i32
    }
    """
    assert scalars(code, given) == want


def test_regions_that_only_group_run_in_place():
    code = """
    %t = "tpu.region"() ({
      %s = arith.addi %a, %one : i32
      "tpu.yield"(%s) : (i32) -> ()
    }) : () -> i32
    %r = arith.muli %t, %two : i32
    """
    assert scalars(code, 4) == 10


def constant(value: str, of: str, convert: str) -> int:
    return scalars(f"%v = arith.constant {value} : {of}\n%r = arith.{convert} %v : {of} to i32")


def test_constants_in_every_way_that_mlir_prints_them():
    assert constant("0x7F800000", "f32", "bitcast") == 0x7F800000
    assert constant("-2.500000e+00", "f32", "fptosi") == -2
    assert constant("0x7FC0", "bf16", "fptosi") == 0
    assert scalars("%v = arith.constant true\n%r = arith.extui %v : i1 to i32") == 1
    assert constant("-1", "i8", "extui") == 255
    code = """
    %v = arith.constant dense<{}> : vector<2x2xi32>
    %r = vector.extract %v[1, 0] : i32 from vector<2x2xi32>
    """
    assert scalars(code.format("[[1, -2], [-3, 4]]")) == -3
    assert scalars(code.format('"0x0100000002000000FDFFFFFF04000000"')) == -3
    assert scalars(code.format("7")) == 7


# --------------------------------------------------------------------------- not known


def test_an_unknown_operation_is_named_with_its_function():
    random = '%v = "tpu.prng_random_bits"() : () -> vector<8x128xi32>'
    with pytest.raises(Unknown, match=r"^tpu\.prng_random_bits in main$"):
        build(Module(arguments=X_AND_O, body=random).text)
    code = f"%v = math.ipowi %i, %i : i32\n{BY_ROWS[1]}"
    with pytest.raises(Unknown, match=r"^math\.ipowi in transform_0$"):
        build(by_rows(COPY, 1, ((8, 128), code), FIRST).text)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("%v = arith.constant 1.0 : f64", r"arith\.constant with element type f64"),
        ("%v = arith.sitofp %zero : i32 to f64", r"arith\.sitofp with element type f64"),
        (
            "%v = arith.constant dense<1> : vector<8xi32>\n"
            "%w = vector.reduction <minui>, %v : vector<8xi32> into i32",
            "reduction kind minui",
        ),
        (
            "%v = arith.constant dense<1> : vector<8xi32>\n"
            "%w = vector.extract %v[%c0] : i32 from vector<8xi32>",
            r"vector\.extract at a position known at run time",
        ),
        (
            f"%v = memref.cast %x : {BLOCK} to "
            "memref<8x128xf32, strided<[128, 1], offset: ?>, #tpu.memory_space<vmem>>",
            r"memref\.cast with memref with.*strided",
        ),
    ],
)
def test_unknown_forms_are_named(code, says):
    with pytest.raises(Unknown, match=says):
        build(Module(arguments=X_AND_O, body=code).text)


def test_an_argument_of_unknown_type_is_named():
    strange = "memref<8x128xf64, #tpu.memory_space<vmem>>"
    with pytest.raises(Unknown, match="f64"):
        build(Module(arguments=(("x", strange), ("o", BLOCK)), body="").text)


def test_an_attribute_that_is_not_there_is_named():
    numbers = (parse("i32"), parse("i32"))
    with pytest.raises(Unknown, match=r"arith\.cmpi without predicate"):
        load_all()["arith.cmpi"](Op("arith.cmpi", numbers, (parse("i1"),), {}))


def test_an_enumeration_that_is_not_there_is_named():
    name, types = "vector.multi_reduction", (parse("vector<2xi32>"), parse("i32"))
    with pytest.raises(Unknown, match=r"vector\.multi_reduction without kind"):
        load_all()[name](Op(name, types, types[1:], {"reduction_dims": "[0]"}))


def test_a_copy_to_another_device_is_named():
    types = ", ".join((HBM.format(8), DMA, BLOCK, DMA, "i32"))
    remote = f"""
    "tpu.enqueue_dma"(%x, %d, %s, %d, %zero)
        <{{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>}}> : ({types}) -> ()
    """
    with pytest.raises(Unknown, match=r"tpu\.enqueue_dma to another device or core"):
        build(copying(remote).text)


def test_a_module_without_a_kernel_is_named():
    with pytest.raises(Unknown, match="a module without a main function"):
        build("module { func.func @helper() { return } }")


def test_a_program_knows_what_it_is():
    program: Program = build(looked_up().text)
    assert (program.name, program.grid, program.semantics) == ("main", (3,), ("arbitrary",))
    assert (program.prefetch, program.scratch, program.copies) == (1, 0, False)
    assert program.in_hbm == (False, False, False)
    assert [w.bounds for w in program.windows] == [(8, 128), (8, 128)]
    assert build(copying(IN + AWAIT + OUT).text).in_hbm[:2] == (True, False)
    marked = (
        looked_up()
        .text.replace("@main", "@other")
        .replace("scalar_prefetch = 1 : i64", "scalar_prefetch = 1 : i64, tpu.main")
    )
    assert build(marked).name == "other"
