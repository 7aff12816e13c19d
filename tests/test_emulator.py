"""What the executor of compiler IR makes of types, tiled memory and registers.

No compiler is needed, here and in the other test_emulator_*.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mosaic_operations import POISON, assert_same, function

from conformance.emulator import Unknown, memory
from conformance.emulator.memory import OutOfBounds, Ref, allocate, extent
from conformance.emulator.ops import vreg
from conformance.emulator.types import MemRef, Scalar, UnknownType, Vector, element, parse

few = settings(max_examples=60, derandomize=True, deadline=None, database=None)

F32 = np.float32


# --------------------------------------------------------------------------- types

F32_ELEMENT, BF16_ELEMENT = element("f32"), element("bf16")
TYPES = {
    "i32": Scalar(element("i32")),
    "index": Scalar(element("index")),
    "vector<8x128xf32>": Vector(F32_ELEMENT, (8, 128)),
    "vector<8x128x2xbf16>": Vector(BF16_ELEMENT, (8, 128, 2)),
    "vector<f32>": Vector(F32_ELEMENT, ()),
    "vector<8x128xi1>": Vector(element("i1"), (8, 128)),
    "memref<8x128xf32>": MemRef(F32_ELEMENT, (8, 128), (), (), "any"),
    "memref<8x?xbf16, #tpu.memory_space<vmem>>": MemRef(BF16_ELEMENT, (8, None), (), (), "vmem"),
    "memref<4x2xi32, #tpu.tiled<(1,128),[1,1]>, #tpu.memory_space<smem, tc>>": MemRef(
        element("i32"), (4, 2), ((1, 128),), (1, 1), "smem"
    ),
    "memref<3x16x256xbf16, #tpu.tiled<(8,128)(2,1),[4,2,1]>, #tpu.memory_space<hbm>>": MemRef(
        BF16_ELEMENT, (3, 16, 256), ((8, 128), (2, 1)), (4, 2, 1), "hbm"
    ),
    "memref<512xi16, #tpu.tiled<(256)(128)(2,1),[1]>, #tpu.memory_space<vmem>>": MemRef(
        element("i16"), (512,), ((256,), (128,), (2, 1)), (1,), "vmem"
    ),
    "memref<!tpu.dma_semaphore, #tpu.tiled<,[]>, #tpu.memory_space<semaphore_mem, tc>>": MemRef(
        element("!tpu.dma_semaphore"), (), (), (), "semaphore_mem", "!tpu.dma_semaphore"
    ),
    "memref<2x!tpu.semaphore, #tpu.memory_space<semaphore_mem>>": MemRef(
        element("!tpu.semaphore"), (2,), (), (), "semaphore_mem", "!tpu.semaphore"
    ),
}


@pytest.mark.parametrize("text", TYPES)
def test_types_are_read_from_their_text(text):
    assert parse(text) == TYPES[text]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("f64", "f64"),
        ("vector<8xcomplex<f32>>", "complex<f32>"),
        ("memref<8x128xf32, strided<[256, 1], offset: ?>, #tpu.memory_space<vmem>>", "strided"),
        ("memref<8x128xtf32>", "tf32"),
        ("tuple<i32>", "tuple<i32>"),
    ],
)
def test_unknown_types_are_named(text, says):
    with pytest.raises(UnknownType, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("name", "bits", "packing", "unsigned"),
    [
        ("f32", 32, 1, "uint32"),
        ("bf16", 16, 2, "uint16"),
        ("f8E4M3FN", 8, 4, "uint8"),
        ("i4", 4, 8, "uint4"),
        ("i1", 1, 32, "bool"),
        ("index", 32, 1, "uint32"),
    ],
)
def test_elements_know_their_width(name, bits, packing, unsigned):
    found = element(name)
    assert (found.bits, found.packing, found.unsigned.name) == (bits, packing, unsigned)


# --------------------------------------------------------------------------- layouts

Tiles = tuple[tuple[int, ...], ...]
TILINGS: tuple[tuple[str, Tiles], ...] = (
    ("f32", ((8, 128),)),
    ("f32", ((1, 128),)),
    ("f32", ((128,),)),
    ("bf16", ((8, 128), (2, 1))),
    ("bf16", ((16, 128), (2, 1))),
    ("bf16", ((256,), (128,), (2, 1))),
    ("i8", ((32, 128), (4, 1))),
    ("i8", ((512,), (128,), (4, 1))),
    ("i4", ((64, 128), (8, 1))),
)


def physical(shape: Sequence[int], tiles: Tiles) -> tuple[np.ndarray, int]:
    """Element address of every index, and the elements in all: XLA's definition, taken literally.

    Each tile replaces the last dimensions of the shape so far by their number of tiles, rounded
    up, followed by the tile itself (openxla.org/xla/tiled_layout). The rest is row-major.
    """
    index, sizes = list(np.indices(shape)), list(shape)
    for tile in tiles:
        kept = len(sizes) - len(tile)
        last, full = index[kept:], sizes[kept:]
        outer = [i // t for i, t in zip(last, tile, strict=True)]
        index = [*index[:kept], *outer, *(i % t for i, t in zip(last, tile, strict=True))]
        counts = [math.ceil(n / t) for n, t in zip(full, tile, strict=True)]
        sizes = [*sizes[:kept], *counts, *tile]
    address = np.zeros(shape, np.int64)
    for i, n in zip(index, sizes, strict=True):
        address = address * n + i
    return address, math.prod(sizes)


def row_major(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """Distances between tiles, in tiles, when nothing lies between them."""
    untiled = len(shape) - len(tile)
    counts = [*shape[:untiled], *(-(-n // t) for n, t in zip(shape[untiled:], tile, strict=True))]
    return tuple(math.prod(counts[d + 1 :]) for d in range(len(counts)))


def some(of: MemRef, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Any elements of a type, from random bits."""
    raw = np.random.default_rng(seed).integers(0, 1 << min(of.element.bits, 32), shape)
    if of.element.bits < 8:
        return memory.from_bits(raw.astype(np.uint8), of.element)
    return raw.astype(of.element.unsigned).view(of.element.dtype)


def bits(value: np.ndarray, of: MemRef) -> np.ndarray:
    return memory.to_bits(value, of.element)


@st.composite
def tiled(draw: st.DrawFn) -> tuple[MemRef, tuple[int, ...]]:
    """A memref type with a layout, and its shape: odd sizes, up to two leading dimensions."""
    name, tiles = draw(st.sampled_from(TILINGS))
    leading = draw(st.lists(st.integers(1, 3), max_size=2))
    inner = [draw(st.integers(1, 2 * t + 3)) for t in tiles[0]]
    shape = (*leading, *inner)
    return MemRef(element(name), shape, tiles, row_major(shape, tiles[0]), "vmem"), shape


def stored(ref: Ref) -> np.ndarray:
    """The bit patterns of all elements that a buffer has room for, by element address."""
    width = ref.element.bits
    if width >= 8:
        return ref.buffer.words.view(f"u{width // 8}")
    parts = [ref.buffer.words.view(np.uint8) >> n & ((1 << width) - 1) for n in range(0, 8, width)]
    return np.stack(parts, -1).reshape(-1)


@given(tiled())
@few
def test_addresses_are_those_of_repeated_tiling(case):
    of, shape = case
    expected, elements = physical(shape, of.tiles)
    ref, value = allocate(of, shape, POISON), some(of, shape)
    ref.write(value)
    np.testing.assert_array_equal(stored(ref)[expected], bits(value, of).view(stored(ref).dtype))
    assert extent(ref.dims) == elements <= len(stored(ref))
    for index in itertools.product(*({0, n // 2, n - 1} for n in shape)):
        assert ref.address(index) == expected[index]
        word, rest = divmod(int(expected[index]) * of.element.bits, 32)
        if not rest:
            assert ref.word(index) == word
            continue
        with pytest.raises(OutOfBounds, match="in the middle of a word"):
            ref.word(index)


def test_tile_strides_are_those_of_the_type():
    """A slice keeps the strides of what it is a slice of: here rows of 5 tiles, 2 of them seen."""
    of = parse("memref<16x256xf32, #tpu.tiled<(8,128),[5,1]>, #tpu.memory_space<vmem>>")
    ref = allocate(of, (16, 256), POISON)
    assert ref.address((3, 130)) == 1024 + 3 * 128 + 2
    assert ref.address((8, 0)) == 5 * 1024


def test_without_a_layout_rows_share_words_as_on_the_chip():
    """So that a change of the element type reads the same bits at either level."""
    dense = allocate(parse("memref<4x128xbf16>"), (4, 128), POISON)
    assert [dense.address(i) for i in [(0, 0), (1, 0), (0, 1), (2, 0)]] == [0, 1, 2, 256]
    assert allocate(parse("memref<7xbf16>"), (7,), POISON).address((3,)) == 3
    odd = allocate(parse("memref<3x5x128xi8>"), (3, 5, 128), POISON)
    addresses = {odd.address(i) for i in itertools.product(range(3), range(5), range(128))}
    assert len(addresses) == 3 * 5 * 128


# --------------------------------------------------------------------------- reading and writing

STORED = {"f32": ((8, 128),), "bf16": ((8, 128), (2, 1)), "i16": (), "i8": ((32, 128), (4, 1))}
STORED |= {"f8E5M2": (), "i4": ((8, 128), (8, 1)), "f4E2M1FN": (), "i2": ()}


@st.composite
def boxes(draw: st.DrawFn) -> tuple[MemRef, list[tuple[int, int, int]]]:
    """A memref type and a box in it: (start, size, stride) for each dimension."""
    name = draw(st.sampled_from(sorted(STORED)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 19)), draw(st.integers(1, 150)))
    tiles = STORED[name]
    strides = row_major(shape, tiles[0]) if tiles else ()
    box = []
    for n in shape:
        start, stride = draw(st.integers(0, n - 1)), draw(st.integers(1, 3))
        box.append((start, draw(st.integers(1, 1 + (n - 1 - start) // stride)), stride))
    return MemRef(element(name), shape, tiles, strides, "vmem"), box


@given(boxes(), st.booleans())
@few
def test_a_write_changes_its_box_and_nothing_else(case, masked):
    of, box = case
    starts, sizes, strides = (tuple(part) for part in zip(*box, strict=True))
    ref = allocate(of, of.shape, POISON)
    ref.write(some(of, of.shape))
    before, model = ref.buffer.words.copy(), ref.read()
    assert_same(bits(model, of), bits(some(of, of.shape), of))
    here = tuple(slice(s, s + (n - 1) * t + 1, t) for s, n, t in box)
    old, new = model[here].copy(), some(of, sizes, seed=1)
    mask = np.random.default_rng(2).random(sizes) < 0.5 if masked else None

    ref.write(new, starts, sizes, strides, mask)
    model[here] = new if mask is None else np.where(mask, new, old)
    assert_same(bits(ref.read(), of), bits(model, of))
    assert_same(bits(ref.read(starts, sizes, strides), of), bits(model[here], of))
    ref.write(old, starts, sizes, strides)
    np.testing.assert_array_equal(ref.buffer.words, before, "padding, or a neighbour, was hit")


def test_memory_is_undefined_until_it_is_written():
    of = parse("memref<3x5xf32, #tpu.tiled<(8,128),[1,1]>, #tpu.memory_space<vmem>>")
    ref = allocate(of, (3, 5), (1, 2))
    assert len(ref.buffer.words) == 1024
    ref.write(np.zeros((3, 5), F32))
    assert sorted(set(ref.buffer.words.tolist())) == [0, 1, 2]
    assert int((ref.buffer.words == 0).sum()) == 15


def test_what_is_read_is_a_copy():
    ref = allocate(parse("memref<8x128xf32>"), (8, 128), (0,))
    ref.read()[...] = 1
    assert not ref.read().any()


@pytest.mark.parametrize(
    ("starts", "sizes", "strides", "says"),
    [
        ((1, 0), (8, 128), (1, 1), "indices 1..8 of dimension 0, which has 8"),
        ((0, -1), (8, 1), (1, 1), "indices -1..-1 of dimension 1"),
        ((0, 0), (5, 128), (2, 1), "indices 0..8 of dimension 0"),
        ((0, 128), (8, 1), (1, 1), "indices 128..128 of dimension 1"),
    ],
)
def test_a_box_must_be_inside(starts, sizes, strides, says):
    ref = allocate(parse("memref<8x128xf32>"), (8, 128), POISON)
    with pytest.raises(OutOfBounds, match=says):
        ref.read(starts, sizes, strides)
    with pytest.raises(OutOfBounds, match=says):
        ref.write(np.zeros(sizes, F32), starts, sizes, strides)
    assert ref.read((0, 0), (4, 128), (2, 1)).shape == (4, 128)
    assert ref.read((8, 0), (0, 128)).shape == (0, 128)


def test_a_view_reads_the_same_words_as_another_type():
    source = allocate(parse("memref<2x128xf32>"), (2, 128), POISON)
    source.write(np.full((2, 128), 1.0, F32))
    of = parse("memref<4x128xi16, #tpu.tiled<(4,128)(2,1),[1,1]>, #tpu.memory_space<vmem>>")
    seen = memory.view(source, of, (4, 128))
    np.testing.assert_array_equal(seen.read()[:, 0], [0, 0x3F80] * 2)


# --------------------------------------------------------------------------- registers


def registers(name: str, packing: int, seed: int = 0) -> np.ndarray:
    shape = (8, 128, packing) if packing > 1 else (8, 128)
    return some(MemRef(element(name), shape, (), (), "any"), shape, seed)


@pytest.mark.parametrize("name", ["i32", "bf16", "i8", "i4"])
def test_rows_and_words_of_a_register(name):
    """The elements of a word are rows that follow each other, the first in the lowest bits."""
    packing, width = element(name).packing, element(name).bits
    x = registers(name, packing)
    by_row, of_words = vreg.rows(x), vreg.words(x, element(name))
    raw = memory.to_bits(x, element(name)).astype(np.uint64).reshape(8, 128, packing)
    for s, lane in [(0, 0), (3, 17), (7, 127)]:
        wanted = sum(int(raw[s, lane, t]) << (t * width) for t in range(packing))
        assert int(of_words[s, lane]) == wanted
        for t in range(packing):
            assert (
                by_row[s * packing + t, lane].tobytes()
                == x.reshape(8, 128, packing)[s, lane, t].tobytes()
            )
    assert vreg.register(by_row, x.shape).tobytes() == x.tobytes()
    again = vreg.from_words(of_words, Vector(element(name), x.shape))
    assert (again.dtype, again.tobytes()) == (x.dtype, x.tobytes())


@pytest.mark.parametrize(
    ("name", "tile"), [("f32", "(8,128)"), ("bf16", "(16,128)(2,1)"), ("i8", "(32,128)(4,1)")]
)
def test_a_native_tile_is_a_register(name, tile):
    """Memory's row order, seen through loads and stores of whole registers."""
    packing = element(name).packing
    native = f"vector<8x128{f'x{packing}' if packing > 1 else ''}x{name}>"
    text = f"memref<{16 * packing}x128x{name}, #tpu.tiled<{tile},[1,1]>, #tpu.memory_space<vmem>>"
    of = parse(text)
    ref = allocate(of, of.shape, POISON)
    array = some(of, of.shape)
    ref.write(array)
    all_lanes = f"array<i1: {', '.join(['true'] * 8)}>"
    load = function("tpu.load", [text, *["index"] * 2], [native], sublane_mask=all_lanes)
    store = function("tpu.store", [native, text, *["index"] * 2], [], sublane_mask=all_lanes)
    low, high = load(ref, 0, 0), load(ref, 8 * packing, 0)
    assert vreg.rows(low).tobytes() == array[: 8 * packing].tobytes()
    store(high, ref, 0, 0)
    assert ref.read((0, 0), (8 * packing, 128)).tobytes() == array[8 * packing :].tobytes()


RUNS = "memref<16x128xi32, #tpu.tiled<(1,128),[1,1]>, #tpu.memory_space<vmem>>"
MASK = "array<i1: true, true, false, true, true, true, true, true>"


def counting() -> Ref:
    of = parse(RUNS)
    ref = allocate(of, of.shape, POISON)
    ref.write(np.arange(2048, dtype=np.int32).reshape(16, 128))
    return ref


def test_sublanes_are_masked_and_strided():
    load = function(
        "tpu.load", [RUNS, "index", "index"], ["vector<8x128xi32>"], sublane_mask=MASK,
        sublane_stride="2 : i32",
    )  # fmt: skip
    found = load(counting(), 1, 0)
    assert found[:, 0].astype(np.uint32).tolist() == [
        *(128, 384, POISON[0], 896, 1152, 1408, 1664, 1920)
    ]
    past = load(counting(), 3, 0)  # the last sublane would be row 17
    assert int(past[7, 0].astype(np.uint32)) == POISON[0]

    ref = counting()
    store = function(
        "tpu.store", ["vector<8x128xi32>", RUNS, "index", "index"], [], sublane_mask=MASK
    )
    store(np.full((8, 128), -1, np.int32), ref, 4, 0)
    changed = [row for row in range(16) if (ref.read()[row] == -1).all()]
    assert changed == [4, 5, 7, 8, 9, 10, 11]
    assert int((ref.read() == -1).sum()) == 7 * 128
    with pytest.raises(OutOfBounds, match="a store to words"):
        store(np.zeros((8, 128), np.int32), ref, 9, 0)


# (narrow, wide): 32 to 16, 32 to 8 and 16 to 8 bits
PACKINGS = [("i16", "i32"), ("i8", "i32"), ("i8", "i16"), ("bf16", "f32")]


def native_text(name: str) -> str:
    packing = element(name).packing
    return f"vector<8x128x{packing}x{name}>" if packing > 1 else f"vector<8x128x{name}>"


def part_of(narrow: str, wide: str, kind: str) -> Callable[[int, int, int, int], tuple[int, int]]:
    """(index, sublane, subelement of the wide register) -> (sublane, subelement) of the narrow."""
    packing, wide_packing = element(narrow).packing, element(wide).packing
    ratio = packing // wide_packing

    def compressed(index: int, s: int, t: int) -> tuple[int, int]:
        row = index * 8 * wide_packing + s * wide_packing + t
        return row // packing, row % packing

    def interleaved(index: int, s: int, t: int) -> tuple[int, int]:
        return s, t * ratio + index

    return compressed if kind == "compressed" else interleaved


@pytest.mark.parametrize("kind", ["compressed", "interleaved"])
@pytest.mark.parametrize(("narrow", "wide"), PACKINGS)
def test_unpacking_and_packing(narrow, wide, kind):
    packing, wide_packing = element(narrow).packing, element(wide).packing
    ratio, place = packing // wide_packing, part_of(narrow, wide, kind)
    numbers = np.random.default_rng(0).integers(-100, 100, (8, 128, packing))
    x = numbers.astype(element(narrow).dtype)
    texts, form = (native_text(narrow), native_text(wide)), f"#tpu.pack_format<{kind}>"
    parts = []
    for index in range(ratio):
        unpack = function(
            "tpu.unpack_subelements", texts[:1], texts[1:], index=f"{index} : i32", pack_format=form
        )
        found = np.asarray(unpack(x))
        assert found.dtype == element(wide).dtype
        assert found.ndim == (3 if wide_packing > 1 else 2)
        parts.append(found)
        for s, t in itertools.product(range(8), range(wide_packing)):
            where, sub = place(index, s, t)
            got = found.reshape(8, 128, wide_packing)[s, :, t]
            np.testing.assert_array_equal(got.astype(np.int64), numbers[where, :, sub])

    def pack(positions: str, *given: np.ndarray) -> np.ndarray:
        operands = [texts[1]] * len(given)
        return function(
            "tpu.pack_subelements", operands, texts[:1], positions=positions, pack_format=form
        )(*given)

    order = range(ratio)
    positions = ", ".join(map(str, order))
    assert pack(f"array<i32: {positions}>", *parts).tobytes() == x.tobytes()
    # One part alone, in the last place: it stands there, and the rest is undefined.
    alone = pack(f"array<i32: {ratio - 1}>", parts[0])
    poison = np.array(POISON, np.uint32).view(x.dtype)
    for s, sub in itertools.product(range(8), range(packing)):
        sources = [(i, t) for i in range(8) for t in range(wide_packing)]
        filled = [(i, t) for i, t in sources if place(ratio - 1, i, t) == (s, sub)]
        if filled:
            i, t = filled[0]
            assert alone[s, 5, sub] == parts[0].reshape(8, 128, wide_packing)[i, 5, t]
        else:
            assert alone[s, 5, sub].tobytes() == poison[sub % len(poison)].tobytes()


def test_packing_converts():
    """Integers lose their high bits; floats become integers to nearest even, saturated."""
    form, positions = "#tpu.pack_format<interleaved>", "array<i32: 0, 1>"
    pack = function(
        "tpu.pack_subelements", ["vector<8x128xi32>"] * 2, ["vector<8x128x2xi16>"],
        positions=positions, pack_format=form,
    )  # fmt: skip
    found = pack(np.full((8, 128), 0x12345), np.full((8, 128), -1))
    assert found[0, 0].tolist() == [0x2345, -1]
    to_int8 = function(
        "tpu.pack_subelements", ["vector<8x128xf32>"] * 4, ["vector<8x128x4xi8>"],
        positions="array<i32: 0, 1, 2, 3>", pack_format=form,
    )  # fmt: skip
    found = to_int8(*(np.full((8, 128), v, F32) for v in (2.5, -3.5, 300.0, -129.0)))
    assert found[0, 0].tolist() == [2, -4, 127, -128]


@pytest.mark.parametrize(("flag", "expected"), [("true", 255), ("false", -1)])
def test_unpacking_extends_by_the_sign_unless_told_otherwise(flag, expected):
    unpack = function(
        "tpu.unpack_subelements", ["vector<8x128x4xi8>"], ["vector<8x128xi32>"], index="3 : i32",
        pack_format="#tpu.pack_format<compressed>", unsigned_integers=flag,
    )  # fmt: skip
    assert (unpack(np.full((8, 128, 4), -1, np.int8)) == expected).all()


def test_an_unknown_layout_is_named():
    with pytest.raises(
        Unknown, match=r"tpu\.roll_vectors with layout vpad<\"32,\{0,3\},\(8,128\)\">"
    ):
        function(
            "tpu.roll_vectors", ["vector<8x128xf32>"], ["vector<8x128xf32>"],
            out_layout='[#mosaic_tc.vpad<"32,{0,3},(8,128)">]',
        )  # fmt: skip
