"""Reading and writing parts of references: slices, strides, single rows, masks, scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._build import (
    DTYPES,
    booleans,
    by,
    folder,
    integers,
    movable,
    on_refs,
    on_values,
    smem,
    struct,
    vmem,
)
from ._record import Program

_program = folder(__name__)

# Where a scalar comes from that the compiler does not know.
SCALAR_FIRST = [smem(), vmem()]


def _whole() -> Iterator[Program]:
    shapes = (
        (64, 128),
        (32, 128),
        (8, 128),
        (5, 130),
        (1, 128),
        (24, 384),
        (2, 16, 128),
        (2, 3, 8, 128),
    )
    for dtype in DTYPES:
        for shape in shapes if dtype in ("f32", "bf16", "i8") else shapes[:1] + shapes[3:4]:
            yield _program(
                f"copy_{dtype}_{by(shape)}", on_values(lambda x: x), movable(dtype, *shape)
            )
    for dtype, size in (("f32", 1024), ("f32", 128), ("f32", 300), ("bf16", 2048), ("i32", 1024)):
        yield _program(f"copy_{dtype}_{size}", on_values(lambda x: x), movable(dtype, size))


# Two starts and two sizes, of the last two dimensions of what is sliced.
SLICES = (
    (0, 0, 8, 128),
    (8, 128, 16, 128),
    (3, 0, 5, 256),
    (1, 0, 1, 256),
    (0, 5, 24, 100),
    (7, 130, 9, 50),
    (13, 127, 3, 2),
    (23, 255, 1, 1),
)


def _copy_slice(r: int, c: int, m: int, n: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[r : r + m, c : c + n]

    return kernel


def _store_slice(r: int, c: int, m: int, n: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[r : r + m, c : c + n] = x_ref[...]

    return kernel


def _static() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i8", "i16"):
        for r, c, m, n in SLICES:
            where = f"{r}_{c}_{by((m, n))}_{dtype}"
            yield _program(
                f"load_{where}",
                on_refs(_copy_slice(r, c, m, n), struct(dtype, m, n)),
                movable(dtype, 24, 256),
            )
            yield _program(
                f"store_{where}",
                on_refs(_store_slice(r, c, m, n), struct(dtype, 24, 256)),
                movable(dtype, m, n),
            )
            yield _program(
                f"slice_value_{where}",
                on_values(lambda x, r=r, c=c, m=m, n=n: x[r : r + m, c : c + n]),
                movable(dtype, 24, 256),
            )


def _row(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(i_ref[0], 1), :]


def _squeezed_row(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[0] = x_ref[i_ref[0]]


def _rows(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(i_ref[0], o_ref.shape[0]), :]


def _aligned_rows(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    m = o_ref.shape[0]
    o_ref[...] = x_ref[pl.ds(pl.multiple_of(i_ref[0] * m, m), m), :]


def _aligned_columns(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[:, pl.ds(pl.multiple_of(i_ref[0] * 128, 128), 128)]


def _page(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[i_ref[0]]


def _row_of_page(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[i_ref[0], pl.ds(i_ref[1], 1), :]


def _store_row(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[pl.ds(i_ref[0], 1), :] = x_ref[...]


def _store_rows(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[pl.ds(i_ref[0], x_ref.shape[0]), :] = x_ref[...]


def _store_aligned_columns(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[:, pl.ds(pl.multiple_of(i_ref[0] * 128, 128), 128)] = x_ref[...]


def _store_page(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[i_ref[0]] = x_ref[...]


# kernel, shape of the input, of the output, greatest index
DYNAMIC: dict[str, tuple[Callable[..., None], tuple[int, ...], tuple[int, ...], int]] = {
    "row": (_row, (24, 128), (1, 128), 23),
    "row_of_256": (_row, (24, 256), (1, 256), 23),
    "ragged_row": (_row, (13, 130), (1, 130), 12),
    "squeezed_row": (_squeezed_row, (24, 128), (1, 128), 23),
    "rows": (_rows, (64, 128), (8, 128), 56),
    "few_rows": (_rows, (24, 128), (3, 128), 21),
    "many_rows": (_rows, (64, 128), (32, 128), 32),
    "aligned_rows": (_aligned_rows, (96, 256), (32, 256), 2),
    "aligned_8_rows": (_aligned_rows, (64, 256), (8, 256), 7),
    "aligned_columns": (_aligned_columns, (16, 512), (16, 128), 3),
    "page": (_page, (5, 16, 128), (16, 128), 4),
    "ragged_page": (_page, (3, 5, 130), (5, 130), 2),
    "row_of_page": (_row_of_page, (4, 16, 128), (1, 128), 3),
    "store_row": (_store_row, (1, 128), (24, 128), 23),
    "store_rows": (_store_rows, (8, 128), (64, 128), 56),
    "store_few_rows": (_store_rows, (3, 128), (24, 128), 21),
    "store_aligned_columns": (_store_aligned_columns, (16, 128), (16, 512), 3),
    "store_page": (_store_page, (16, 128), (4, 16, 128), 3),
}


def _dynamic() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16", "i8"):
        for name, (kernel, shape, out, highest) in DYNAMIC.items():
            yield _program(
                f"dynamic_{name}_{dtype}",
                on_refs(kernel, struct(dtype, *out), in_specs=SCALAR_FIRST),
                integers("i32", 2, low=0, high=highest),
                movable(dtype, *shape),
            )


def _strided_load(start: int, size: int, stride: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(start, size, stride), :]

    return kernel


def _strided_store(start: int, size: int, stride: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[pl.ds(start, size, stride), :] = x_ref[...]

    return kernel


def _strided_pages(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[:, pl.ds(1, 5, 3), :]


def _dynamic_stride(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(i_ref[0], 8, 3), :]


def _strided() -> Iterator[Program]:
    for dtype in ("f32", "i32", "bf16"):
        for start, size, stride in (
            (0, 8, 2),
            (1, 8, 3),
            (3, 5, 2),
            (0, 16, 4),
            (5, 3, 7),
            (2, 2, 31),
        ):
            where = f"{start}_{size}_{stride}_{dtype}"
            yield _program(
                f"strided_load_{where}",
                on_refs(_strided_load(start, size, stride), struct(dtype, size, 128)),
                movable(dtype, 64, 128),
            )
            yield _program(
                f"strided_store_{where}",
                on_refs(_strided_store(start, size, stride), struct(dtype, 64, 128)),
                movable(dtype, size, 128),
            )
    yield _program(
        "strided_pages_f32",
        on_refs(_strided_pages, struct("f32", 2, 5, 128)),
        movable("f32", 2, 16, 128),
    )
    yield _program(
        "strided_load_dynamic_f32",
        on_refs(_dynamic_stride, struct("f32", 8, 128), in_specs=SCALAR_FIRST),
        integers("i32", 2, low=0, high=40),
        movable("f32", 64, 128),
    )


def _masked_store(mask_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.full_like(o_ref, 7)
    pltpu.store(o_ref, x_ref[...], mask=mask_ref[...] != 0)


def _masked_columns(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.full_like(o_ref, 7)
    column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
    pltpu.store(o_ref, x_ref[...], mask=column < 77)


def _masked_slice(mask_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.full_like(o_ref, 7)
    pltpu.store(o_ref.at[pl.ds(8, 8)], x_ref[pl.ds(0, 8)], mask=mask_ref[pl.ds(0, 8)] != 0)


def _oracle_masked(mask: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where(mask != 0, x, x.dtype.type(7))


def _oracle_masked_columns(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(x.shape[1]) < 77, x, x.dtype.type(7))


def _masks() -> Iterator[Program]:
    for dtype in ("f32", "i32", "u32"):
        for shape in ((8, 128), (16, 256)):
            yield _program(
                f"masked_store_{dtype}_{by(shape)}",
                on_refs(_masked_store, struct(dtype, *shape)),
                integers("i32", *shape, low=0, high=1),
                movable(dtype, *shape),
                expected=_oracle_masked,
            )
        yield _program(
            f"masked_columns_{dtype}",
            on_refs(_masked_columns, struct(dtype, 16, 128)),
            movable(dtype, 16, 128),
            expected=_oracle_masked_columns,
        )
    yield _program(
        "masked_slice_f32",
        on_refs(_masked_slice, struct("f32", 16, 128)),
        integers("i32", 16, 128, low=0, high=1),
        movable("f32", 16, 128),
    )


def _scalars_of_smem(s_ref: Any, o_ref: Any) -> None:
    row = lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
    result = jnp.zeros_like(o_ref)
    for i in range(8):
        result = jnp.where(row == i, s_ref[i], result)
    o_ref[...] = result


def _reversed_in_smem(s_ref: Any, o_ref: Any) -> None:
    def move(i: Any, _: Any) -> Any:
        o_ref[7 - i] = s_ref[i]
        return 0

    lax.fori_loop(0, 8, move, 0)


def _transposed_in_smem(s_ref: Any, o_ref: Any) -> None:
    for i in range(3):
        for j in range(5):
            o_ref[j, i] = s_ref[i, j] + 1


def _scalar_of_vmem(i_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.full_like(o_ref, x_ref[i_ref[0], 5])


def _element_into_smem(x_ref: Any, o_ref: Any) -> None:
    for i in range(4):
        o_ref[i] = x_ref[i, 3 * i + 1]


def _indirect(i_ref: Any, s_ref: Any, o_ref: Any) -> None:
    for k in range(8):
        o_ref[k] = s_ref[i_ref[k]]


def _scalars() -> Iterator[Program]:
    for dtype in ("f32", "i32", "u32", "bf16", "i8", "i16", "u8"):
        yield _program(
            f"smem_to_vector_{dtype}",
            on_refs(_scalars_of_smem, struct(dtype, 8, 128), in_specs=[smem()]),
            movable(dtype, 8),
        )
        yield _program(
            f"smem_reversed_{dtype}",
            on_refs(_reversed_in_smem, struct(dtype, 8), in_specs=[smem()], out_specs=smem()),
            movable(dtype, 8),
        )
        yield _program(
            f"smem_indirect_{dtype}",
            on_refs(_indirect, struct(dtype, 8), in_specs=[smem(), smem()], out_specs=smem()),
            integers("i32", 8, low=0, high=15),
            movable(dtype, 16),
        )
    for dtype in ("f32", "i32"):
        yield _program(
            f"smem_transposed_{dtype}",
            on_refs(_transposed_in_smem, struct(dtype, 5, 3), in_specs=[smem()], out_specs=smem()),
            movable(dtype, 3, 5),
        )
        yield _program(
            f"vmem_scalar_{dtype}",
            on_refs(_scalar_of_vmem, struct(dtype, 8, 128), in_specs=SCALAR_FIRST),
            integers("i32", 2, low=0, high=15),
            movable(dtype, 16, 128),
        )
        yield _program(
            f"vmem_to_smem_{dtype}",
            on_refs(_element_into_smem, struct(dtype, 4), out_specs=smem()),
            movable(dtype, 8, 128),
        )


def _reversed_rows(x_ref: Any, o_ref: Any) -> None:
    for i in range(8):
        o_ref[7 - i, :] = x_ref[i, :]


def _reversed_rows_by_loop(x_ref: Any, o_ref: Any) -> None:
    def move(i: Any, _: Any) -> Any:
        o_ref[pl.ds(15 - i, 1), :] = x_ref[pl.ds(i, 1), :]
        return 0

    lax.fori_loop(0, 16, move, 0)


def _columns_swapped(x_ref: Any, o_ref: Any) -> None:
    o_ref[:, :128] = x_ref[:, 128:]
    o_ref[:, 128:] = x_ref[:, :128]


def _overwritten(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]
    o_ref[3:5, 10:20] = jnp.zeros((2, 10), x_ref.dtype)
    o_ref[4:6, 15:140] = x_ref[0:2, 0:125]


def _view_of_view(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref.at[8:24].at[4:12, :][...]


def _page_view(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref.at[1].at[8:16][...]


def _through_scratch(x_ref: Any, o_ref: Any, scratch_ref: Any) -> None:
    scratch_ref[...] = x_ref[...]
    scratch_ref[0:1, :] = scratch_ref[5:6, :]
    o_ref[...] = scratch_ref[...]


def _bitcast_ref(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref.bitcast(jnp.int32)[...]


def _reshaped_ref(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref.reshape(4, 8, 128)[2]


def _patterns() -> Iterator[Program]:
    for dtype in ("f32", "bf16", "i8"):
        rows: dict[str, tuple[Callable[..., None], tuple[int, ...], tuple[int, ...]]] = {
            "reversed_rows": (_reversed_rows, (8, 128), (8, 128)),
            "reversed_rows_by_loop": (_reversed_rows_by_loop, (16, 128), (16, 128)),
            "columns_swapped": (_columns_swapped, (16, 256), (16, 256)),
            "overwritten": (_overwritten, (16, 256), (16, 256)),
            "view_of_view": (_view_of_view, (32, 128), (8, 128)),
            "page_view": (_page_view, (3, 32, 128), (8, 128)),
            "reshaped_ref": (_reshaped_ref, (32, 128), (8, 128)),
        }
        for name, (kernel, shape, out) in rows.items():
            yield _program(
                f"{name}_{dtype}", on_refs(kernel, struct(dtype, *out)), movable(dtype, *shape)
            )
        yield _program(
            f"through_scratch_{dtype}",
            on_refs(
                _through_scratch,
                struct(dtype, 16, 128),
                scratch_shapes=[pltpu.VMEM((16, 128), DTYPES[dtype])],
            ),
            movable(dtype, 16, 128),
        )
    for dtype, rows_ in (("f32", 16), ("bf16", 8), ("i8", 4), ("u32", 16)):
        yield _program(
            f"bitcast_ref_{dtype}",
            on_refs(_bitcast_ref, struct("i32", rows_, 128)),
            movable(dtype, 16, 128),
        )
    for shape in ((32, 128), (5, 130)):
        yield _program(
            f"bool_ref_{by(shape)}",
            on_refs(_invert, struct("bool", *shape)),
            booleans(*shape),
        )


def _invert(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.logical_not(x_ref[...])


PROGRAMS: tuple[Program, ...] = (
    *_whole(),
    *_static(),
    *_dynamic(),
    *_strided(),
    *_masks(),
    *_scalars(),
    *_patterns(),
)
