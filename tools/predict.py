"""Predicted against published times: docs/predicted.md, and the fit of the model's constants.

    python tools/predict.py         the page
    python tools/predict.py --fit   the fitted constants, from the rows they are fitted to

Everything is compiled in child processes, once with the dumps that the schedule is read from, and
once with libtpu's static profile, for a second opinion. Nothing here is measured.
"""

from __future__ import annotations

import functools
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import measure
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from conformance import chips, compiler, schedule
from conformance.compiler import profile
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.roofline import matmul_work, roofline, utilization
from conformance.targets import XLA, Target, load_targets

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 1800.0

# --------------------------------------------------------------------------- what is compiled


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A function for a chip.

    Attributes:
      fn: of arrays.
      avals: their shapes and dtypes.
      scalars: by position among the kernel's operands, the integers that steer it.
    """

    fn: Callable[..., Any]
    avals: Sequence[Any]
    chip: str = "v5e"
    scalars: dict[int, np.ndarray] = field(default_factory=dict)


def aval(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@functools.cache
def subject() -> Any:
    return load_subject(DEFAULT_SUBJECT, tuple(load_cases()))


def of_target(target: Target) -> Workload:
    """The published kernel as the reference kernels have it, its operands laid out as it wants."""
    p = target.params
    m, k, n = p["m"], p["k"], p["n"]
    blocks = {name: p[name] for name in ("bm", "bk", "bn")}
    x, y = aval((m, k), p["dtype"]), aval((k, n), p["dtype"])
    if target.case == "masked_matmul":
        return masked(target, x, y, blocks)
    if target.kernel == XLA:
        return Workload(fn=lambda x, y: x @ y, avals=(x, y))
    fn = subject().find(target.case, target.kernel).fn
    if target.case == "matmul_transpose_rhs":
        y = aval((n, k), p["dtype"])
    if target.case == "matmul_activation":
        fn = functools.partial(fn, activation=p["activation"])
    return Workload(fn=functools.partial(fn, **blocks), avals=(x, y))


def masked(target: Target, x: Any, y: Any, blocks: dict[str, int]) -> Workload:
    """The masked product, or XLA's product times the mask."""
    shape = (x.shape[0], y.shape[1])
    if target.kernel == XLA:
        return Workload(fn=lambda x, y, mask: mask * (x @ y), avals=(x, y, aval(shape, "int32")))
    kernel = subject().find(target.case, target.kernel)
    rows, columns = shape[0] // blocks["bm"], shape[1] // blocks["bn"]
    maps = [np.asarray(a) for a in lower_triangle(kernel, rows, columns)]
    avals = [x, y, *(aval(a.shape, "int32") for a in maps)]
    avals.append(aval((2, blocks["bm"], blocks["bn"]), "int32"))
    return Workload(
        fn=functools.partial(kernel.fn, **blocks), avals=avals, scalars=dict(enumerate(maps))
    )


def lower_triangle(kernel: Any, rows: int, columns: int) -> Sequence[Any]:
    """The kernel's block maps of a lower triangle, from a mask with the smallest legal blocks."""
    bm, bn = 8, 128
    i, j = np.indices((rows * bm, columns * bn))
    mask = (j // bn < i // bm) | ((j // bn == i // bm) & (j % bn <= i % bm))
    x, y = np.zeros((rows * bm, bn), np.float32), np.zeros((bn, columns * bn), np.float32)
    prepared = kernel.prepare(x, y, mask, bm=bm, bk=bn, bn=bn)
    return prepared[2:6]


def stored_blocks(partitionable: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the sparse guide's blocks, as JAX draws them now or drew them then.

    `jax_threefry_partitionable` became the default, and other numbers with it.
    """
    with jax.threefry_partitionable(partitionable):
        key, _ = jax.random.split(jax.random.key(0))
        mask = jax.random.bernoulli(key, p=0.1, shape=(32, 32))
    rows, columns = np.nonzero(np.asarray(mask))
    return rows, columns


def sparse(target: Target, rows: np.ndarray, columns: np.ndarray) -> Workload:
    """The suite's block-sparse kernel for given stored blocks."""
    p, nnz = target.params, len(rows)
    fn = functools.partial(subject().find(target.case, target.kernel).fn, m=p["m"], bn=p["bn"])
    avals = [aval((nnz,), "int32")] * 2
    avals += [aval((nnz, p["bm"], p["bk"]), p["dtype"]), aval((p["k"], p["n"]), p["dtype"])]
    return Workload(fn=fn, avals=avals, scalars={0: rows, 1: columns})


def sparse_as_published(target: Target, rows: np.ndarray, columns: np.ndarray) -> Workload:
    """As the guide builds it: all operands in HBM, the zeros through a window and copied first."""
    p, nnz = target.params, len(rows)
    bm, bk, bn = p["bm"], p["bk"], p["bn"]

    def kernel(i_ref, k_ref, x_ref, y_ref, zeros_ref, o_ref, acc_ref):
        step, last = pl.program_id(1), pl.num_programs(1) - 1
        row = i_ref[step]

        @pl.when((step == 0) | (row != i_ref[jnp.maximum(step - 1, 0)]))
        def clear():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[0], y_ref[...], preferred_element_type=jnp.float32)

        @pl.when((step == last) | (row != i_ref[jnp.minimum(step + 1, last)]))
        def store():
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    def out_map(j, step, rows, columns):
        return rows[step], j

    def fn(rows, columns, blocks, y, zeros):
        # Today XLA puts the stored blocks into VMEM, where it finds room for all of them.
        blocks = pltpu.with_memory_space_constraint(blocks, pltpu.HBM)
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(p["n"] // bn, nnz),
                in_specs=[
                    pl.BlockSpec((1, bm, bk), lambda j, step, rows, columns: (step, 0, 0)),
                    pl.BlockSpec((bk, bn), lambda j, step, rows, columns: (columns[step], j)),
                    pl.BlockSpec((bm, bn), out_map),
                ],
                out_specs=pl.BlockSpec((bm, bn), out_map),
                scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            ),
            out_shape=aval((p["m"], p["n"]), p["dtype"]),
            input_output_aliases={4: 0},
        )(rows, columns, blocks, y, zeros)

    whole = aval((p["m"], p["n"]), p["dtype"])
    avals = [aval((nnz,), "int32")] * 2
    avals += [aval((nnz, bm, bk), p["dtype"]), aval((p["k"], p["n"]), p["dtype"]), whole]
    return Workload(fn=fn, avals=avals, scalars={0: rows, 1: columns})


GUIDE_BLOCKS = {"bm": 512, "bk": 1024, "bn": 1024}
SIZES = (4096, 8192)
OTHER_CHIPS = ("v5p", "v6e", "tpu7x")
# The kernel `peeled` in the blocks that it takes by itself.
TUNED = "tuned"
KINDS = ("pallas", TUNED, XLA)


def sparse_of_size(block: int, tiles: bool, bn: int) -> Workload:
    """16384^3, a tenth of the left operand stored, in square blocks; v5e, bf16.

    Args:
      tiles: a tenth of the 128 x 128 tiles is other than zero, at random, and every block with
        such a tile is stored; otherwise a tenth of the blocks is stored, whatever their size.
      bn: columns of the result in a step.
    """
    size, tile = 16384, 128 if tiles else block
    found = np.random.default_rng(0).random((size // tile, size // tile)) < 0.1
    ratio = block // tile
    stored = found.reshape(size // block, ratio, size // block, ratio).any(axis=(1, 3))
    rows, columns = np.nonzero(stored)
    target = targets()["sparse-16384"]
    params = {**target.params, "bm": block, "bk": block, "bn": bn}
    work = sparse(replace(target, params=params), rows, columns)

    def fn(rows: Any, columns: Any, blocks: Any, y: Any) -> Any:
        # XLA would put few stored blocks into VMEM, and sizes could not be compared.
        return work.fn(rows, columns, pltpu.with_memory_space_constraint(blocks, pltpu.HBM), y)

    return replace(work, fn=fn)


BLOCK_SIZES = (128, 256, 512, 1024)
COLUMNS = {128: 2048, 256: 2048, 512: 2048, 1024: 1024}


def block_sizes() -> dict[str, Workload]:
    """What the size of a stored block costs, and what it saves; and wider steps of the guide's."""
    found = {}
    for block in BLOCK_SIZES:
        for kind in ("tiles", "blocks"):
            found[f"{kind} {block}"] = sparse_of_size(block, kind == "tiles", COLUMNS[block])
    rows, columns = stored_blocks(True)
    target = targets()["sparse-16384"]
    wide = replace(target, params={**target.params, "bn": 2048})
    masks = targets()["masked-16384"].params
    x, blocks = aval((masks["m"],) * 2, masks["dtype"]), {"bm": 512, "bk": 4096, "bn": 512}
    return found | {
        "wide": sparse(wide, rows, columns),
        "long": masked(targets()["masked-16384"], x, x, blocks),
    }


def square(kernel: str, size: int, dtype: str, chip: str = "v5e") -> Workload:
    """An unpublished matmul: in the guide's large blocks, "tuned", or XLA's."""
    x = aval((size, size), dtype)
    out = "int32" if dtype == "int8" else dtype
    if kernel == XLA:
        fn = functools.partial(jnp.dot, preferred_element_type=jnp.dtype(out))
        return Workload(fn=fn, avals=(x, x), chip=chip)
    case = "matmul_int8" if dtype == "int8" else "matmul"
    if kernel == TUNED:
        return Workload(fn=subject().find(case, "peeled").fn, avals=(x, x), chip=chip)
    found = subject().find(case, "scratch_accumulator").fn
    return Workload(fn=functools.partial(found, **GUIDE_BLOCKS), avals=(x, x), chip=chip)


@functools.cache
def targets() -> dict[str, Target]:
    return {t.id: t for t in load_targets(load_cases())}


@functools.cache
def workloads() -> dict[str, Workload]:
    """Everything on the page, by name; published rows by the id of their target."""
    found = {}
    for name, target in targets().items():
        if target.case != "dsd":
            found[name] = of_target(target)
            continue
        for partitionable in (True, False):
            rows, columns = stored_blocks(partitionable)
            found[f"{name} guide {len(rows)}"] = sparse_as_published(target, rows, columns)
            found[f"{name} suite {len(rows)}"] = sparse(target, rows, columns)
    for size in SIZES:
        found[f"{TUNED} {size}"] = square(TUNED, size, "bfloat16")
        for kernel in KINDS:
            found[f"int8 {kernel} {size}"] = square(kernel, size, "int8")
    for chip in OTHER_CHIPS:
        for kernel in KINDS:
            found[f"{chip} {kernel} 8192"] = square(kernel, 8192, "bfloat16", chip)
    return found | block_sizes()


# --------------------------------------------------------------------------- child processes


def compile_all(names: Sequence[str]) -> dict[str, Any]:
    """In the child: name -> `compiler.Compiled`."""
    found = {}
    for name in names:
        work = workloads()[name]
        result = compiler.compile_for(
            work.fn, work.avals, chips.get(work.chip), compiler.dump_dir()
        )
        if isinstance(result, compiler.Refused):
            raise RuntimeError(f"{name}: {result.message}")
        found[name] = result
    return found


def profile_all(names: Sequence[str]) -> dict[str, Any]:
    """In the other child: name -> cycles by operation."""
    found = {}
    for name in names:
        work = workloads()[name]
        found[name] = profile.estimated_cycles(work.fn, work.avals, chips.get(work.chip))
    return found


TASKS = {"compile": compile_all, "profile": profile_all}
ENVIRONMENTS = {"compile": compiler.environment, "profile": profile.environment}


def in_child(task: str, names: Sequence[str]) -> dict[str, Any]:
    """The result of a task in a process of its own, which alone loads libtpu."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        environment = os.environ | ENVIRONMENTS[task](folder) | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, __file__, "--child", task, str(answer), *names]
        subprocess.run(
            command,
            check=True,
            timeout=TIMEOUT,
            cwd=ROOT,
            env={k: v for k, v in environment.items() if v is not None},
        )
        return pickle.loads(answer.read_bytes())


def child(task: str, answer: str, *names: str) -> None:
    Path(answer).write_bytes(pickle.dumps(TASKS[task](names)))


# --------------------------------------------------------------------------- predictions


@dataclass(frozen=True, kw_only=True)
class Found:
    """Predictions and estimates by name."""

    predictions: dict[str, schedule.Prediction | schedule.Unpredicted]
    estimates: dict[str, dict[str, int]]


def predict_all() -> Found:
    names = list(workloads())
    predictions = {}
    for name, result in in_child("compile", names).items():
        work = workloads()[name]
        predicted = schedule.predict(result, chips.get(work.chip), work.scalars)
        if isinstance(predicted, schedule.Unpredicted) and name in targets():
            raise RuntimeError(f"{name}: {predicted.reason}")
        predictions[name] = predicted
    return Found(predictions=predictions, estimates=in_child("profile", ESTIMATED))


LARGE_BLOCKS = tuple(
    f"{kind}-512x1024x1024-{size}" for kind in ("plain", "transposed", "relu") for size in SIZES
)
XLA_ROWS = tuple(f"xla-{size}" for size in SIZES)
COMPUTE_BOUND = (*LARGE_BLOCKS, *XLA_ROWS, "masked-16384")
# The static profile keeps every step that it walks: 4 GB for these sizes, eight times as much for
# the next.
ESTIMATED = (
    *(name for name in (*LARGE_BLOCKS, *XLA_ROWS) if name.endswith("-4096")),
    "plain-128x128x128-1024",
)

LATENCY_ROW = "plain-128x128x128-4096"
DISPATCH_ROWS = (
    "plain-512x1024x1024-1024",
    "transposed-512x1024x1024-1024",
    "relu-512x1024x1024-1024",
    "xla-1024",
)
FITTED = {LATENCY_ROW: "latency"} | dict.fromkeys(DISPATCH_ROWS, "dispatch")


def fit() -> tuple[float, float]:
    """Latency of a DMA and time of a dispatch, in seconds, that fit their rows.

    The time of dispatch is what the rows with hardly any work take beyond it, on average; then
    the latency is found by bisection, since the predicted time grows with it.
    """
    compiled = in_child("compile", [LATENCY_ROW, *DISPATCH_ROWS])
    chip = chips.get("v5e")

    def seconds(row: str, latency: float) -> float:
        constant = replace(schedule.DMA_LATENCY, value=latency)
        predicted = schedule.predict(compiled[row], chip, latency=constant)
        assert isinstance(predicted, schedule.Prediction)
        return predicted.seconds

    def dispatch(latency: float) -> float:
        return statistics.fmean(targets()[r].value - seconds(r, latency) for r in DISPATCH_ROWS)

    low, high = 0.0, 2e-6
    for _ in range(24):
        middle = (low + high) / 2
        short = seconds(LATENCY_ROW, middle) + dispatch(middle) < targets()[LATENCY_ROW].value
        low, high = (middle, high) if short else (low, middle)
    return low, dispatch(low)


# --------------------------------------------------------------------------- the page


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published time and what is predicted for it, in seconds.

    Attributes:
      constant: what FLOPs by 94 % of peak, and 107 us, come to; None where the work is not that
        of a dense matmul.
      estimate: libtpu's own, None where it must not be asked.
    """

    name: str
    published: float
    predicted: float
    constant: float | None
    estimate: float | None
    limits: tuple[str, ...]

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def constant_error(self) -> float | None:
        return None if self.constant is None else self.constant / self.published - 1

    @property
    def estimate_error(self) -> float | None:
        return None if self.estimate is None else self.estimate / self.published - 1


CONSTANT_SHARE, CONSTANT_OVERHEAD = 0.94, 107e-6


def rows(found: Found) -> list[Row]:
    return [_row(found, name) for name in found.predictions if name.partition(" ")[0] in targets()]


def _row(found: Found, name: str) -> Row:
    target = targets()[name.partition(" ")[0]]
    p, prediction = target.params, found.predictions[name]
    constant = None
    if target.kernel != "prefetch_maps" and target.case != "dsd":
        limits = roofline(
            matmul_work(p["m"], p["k"], p["n"], p["dtype"]), chips.get(target.chip), p["dtype"]
        )
        constant = limits.compute_seconds / CONSTANT_SHARE + CONSTANT_OVERHEAD
    return Row(
        name=name,
        published=target.value,
        predicted=prediction.wall_seconds,
        constant=constant,
        estimate=_estimate(found, name),
        limits=prediction.limits,
    )


def _estimate(found: Found, name: str) -> float | None:
    """libtpu's cycles, but no less than the bytes take; with dispatch."""
    cycles, prediction = found.estimates.get(name), found.predictions[name]
    if not cycles:
        return None
    least = prediction.moved / prediction.bandwidth.value
    return max(sum(cycles.values()) / prediction.clock.value, least) + schedule.DISPATCH.value


def percent(share: float | None, signed: bool = True) -> str:
    if share is None:
        return ""
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.4g}"


def summary(name: str, errors: Sequence[float]) -> str:
    """A line of the table of errors."""
    sizes = sorted(abs(e) for e in errors)
    fast = sum(e < 0 for e in errors)
    return (
        f"| {name} | {len(sizes)} | {percent(statistics.median(sizes), False)} "
        f"| {percent(sizes[-1], False)} | {percent(statistics.fmean(errors))} "
        f"| {fast} of {len(errors)} |"
    )


def accuracy(table: Sequence[Row]) -> Iterator[str]:
    """Errors by group of rows."""
    by_name = {row.name: row for row in table}
    chosen = [by_name[name] for name in COMPUTE_BOUND]
    dense = [row for row in chosen if row.constant is not None]
    small = [r for r in table if "128x128x128" in r.name and r.name not in FITTED]
    yield "| rows, none of them fitted to | rows | median error | largest | mean | too fast |"
    yield "|---|---|---|---|---|---|"
    yield summary("bound by arithmetic", [r.error for r in chosen])
    yield summary("those of them that are dense", [r.error for r in dense])
    yield summary("the same, constant model", [r.constant_error or 0.0 for r in dense])
    asked = [r for r in dense if r.estimate_error is not None]
    yield summary("those that libtpu was asked for", [r.error for r in asked])
    yield summary("the same, libtpu's estimate", [r.estimate_error or 0.0 for r in asked])
    yield summary("blocks 128/128/128", [r.error for r in small])
    yield summary("the same, constant model", [r.constant_error or 0.0 for r in small])
    yield summary("all, the sparse kernel with 107 blocks", [r.error for r in table if _asked(r)])


def _asked(row: Row) -> bool:
    """Whether the row is built as the published one was, and is not fitted to."""
    like = not row.name.startswith("sparse-16384") or row.name == "sparse-16384 guide 107"
    return like and row.name not in FITTED


def table_of(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| kernel | published ms | predicted ms | error | constant model | libtpu's estimate "
        "| fitted | limits |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.name} | {milliseconds(row.published)} | {milliseconds(row.predicted)} "
            f"| {percent(row.error)} | {percent(row.constant_error)} "
            f"| {percent(row.estimate_error)} "
            f"| {FITTED.get(row.name, '')} | {'; '.join(row.limits)} |"
        )


RATIOS = (
    ("fused transpose / plain", "transposed-512x1024x1024-8192", "plain-512x1024x1024-8192"),
    ("fused relu / plain", "relu-512x1024x1024-8192", "plain-512x1024x1024-8192"),
    ("Pallas / XLA, 4096", "plain-512x1024x1024-4096", "xla-4096"),
    ("Pallas / XLA, 8192", "plain-512x1024x1024-8192", "xla-8192"),
    ("dense / masked", "masked-dense-16384", "masked-16384"),
)


def ratios(table: Sequence[Row]) -> Iterator[str]:
    """Ratios of wall times, which say more than the times: most of the model cancels."""
    by_name = {row.name: row for row in table}
    pairs = [(label, by_name[above], by_name[below]) for label, above, below in RATIOS]
    pairs += [
        (f"dense / sparse, {name.removeprefix('sparse-16384 ')} blocks", dense, by_name[name])
        for dense in (by_name["sparse-dense-16384"],)
        for name in by_name
        if name.startswith("sparse-16384")
    ]
    yield "| ratio of wall times | published | predicted |"
    yield "|---|---|---|"
    for label, above, below in pairs:
        published, predicted = above.published / below.published, above.predicted / below.predicted
        yield f"| {label} | {published:.4f} | {predicted:.4f} |"


def unpublished(found: Found) -> Iterator[str]:
    """Device times of XLA and of the guide's blocks where nothing is published."""
    yield "| matmul | Pallas ms | of peak | XLA ms | of peak | Pallas / XLA | limits |"
    yield "|---|---|---|---|---|---|---|"
    pairs = [
        (f"v5e bfloat16 {s}{label}", name, f"xla-{s}")
        for s in SIZES
        for label, name in (("", f"plain-512x1024x1024-{s}"), (" tuned", f"{TUNED} {s}"))
    ]
    pairs += [
        (f"v5e int8 {s}{label}", f"int8 {kind} {s}", f"int8 {XLA} {s}")
        for s in SIZES
        for label, kind in (("", "pallas"), (" tuned", TUNED))
    ]
    pairs += [
        (f"{c} bfloat16 8192{label}", f"{c} {kind} 8192", f"{c} {XLA} 8192")
        for c in OTHER_CHIPS
        for label, kind in (("", "pallas"), (" tuned", TUNED))
    ]
    for label, kernel, baseline in pairs:
        ours, theirs = found.predictions[kernel], found.predictions[baseline]
        ratio = why = ""
        if isinstance(ours, schedule.Prediction):
            limits = dict.fromkeys(ours.limits)
            if isinstance(theirs, schedule.Prediction):
                limits |= dict.fromkeys(theirs.limits)
                ratio = f"{ours.seconds / theirs.seconds:.4f}"
            why = "; ".join(limits)
        yield f"| {label} | {_cells(label, ours)} | {_cells(label, theirs)} | {ratio} | {why} |"


def _cells(label: str, prediction: schedule.Prediction | schedule.Unpredicted) -> str:
    """Time, and operations a second by the peak of the device."""
    if isinstance(prediction, schedule.Unpredicted):
        return f"not predicted: {prediction.reason} | "
    return f"{milliseconds(prediction.seconds)} | {_share(label, prediction)}"


def _share(label: str, prediction: schedule.Prediction) -> str:
    chip, dtype, size = label.split()[:3]
    work = matmul_work(int(size), int(size), int(size), dtype)
    limits = roofline(work, chips.get(chip), dtype)
    used = utilization(limits, prediction.seconds)
    return percent(used.flops_share, False) if used.valid else "INVALID"


def trade(found: Found) -> Iterator[str]:
    """The block-sparse product by the size of its blocks, beside the dense one."""
    dense = found.predictions["sparse-dense-16384"].seconds
    yield "| blocks | bn | a tenth of the tiles: stored | ms | a tenth of the blocks: stored | ms |"
    yield "|---|---|---|---|---|---|"
    for block in BLOCK_SIZES:
        cells = []
        for kind in ("tiles", "blocks"):
            name = f"{kind} {block}"
            share = len(workloads()[name].scalars[0]) / (16384 // block) ** 2
            prediction = found.predictions[name]
            if isinstance(prediction, schedule.Unpredicted):
                cells.append(f"{percent(share, False)} | not predicted: {prediction.reason}")
            else:
                cells.append(f"{percent(share, False)} | {milliseconds(prediction.seconds)}")
        yield f"| {block} x {block} | {COLUMNS[block]} | {' | '.join(cells)} |"
    wide = found.predictions["wide"]
    yield ""
    yield (
        f"Dense is {milliseconds(dense)} ms. The guide's 107 blocks of 512 x 512 take "
        f"{milliseconds(wide.seconds)} ms with bn = 2048 instead of 512, "
        f"{dense / wide.seconds:.2f} times as fast as dense: a stored block is fetched, and its "
        "accumulator cleared and written, once for every bn columns."
    )
    masked_dense, long = (found.predictions[n] for n in ("masked-dense-16384", "long"))
    yield ""
    yield (
        f"The masked product takes {milliseconds(long.seconds)} ms with bk = 4096 instead of 1024, "
        f"{masked_dense.seconds / long.seconds:.2f} times as fast as the dense one with its mask."
    )


def constants() -> Iterator[str]:
    frequency = schedule.clock(chips.get("v5e"))
    bandwidth = schedule.bandwidth(chips.get("v5e"))
    yield "| constant | value | | from |"
    yield "|---|---|---|---|"
    for name, c in (
        ("clock of v5e", frequency),
        ("HBM bandwidth of v5e", bandwidth),
        ("latency of a DMA", schedule.DMA_LATENCY),
        ("dispatch", schedule.DISPATCH),
    ):
        yield f"| {name} | {c.value:.4g} {c.unit} | {c.kind} | {c.source} |"


PAGE = """# Predicted times

Every time on this page is predicted, by compiling for a chip that is not here, except those
called published. Made by `python tools/docs.py predicted` with jax {jax}, libtpu {libtpu}.

Published times are wall times of one call on a v5e, dispatch included
([matmul](https://docs.jax.dev/en/latest/pallas/tpu/matmul.html),
[sparse](https://docs.jax.dev/en/latest/pallas/tpu/sparse.html)), of kernels compiled by the libtpu
of their day; predictions are for the suite's kernels, built alike, and today's. The model is
described in [conformance/schedule.py](../conformance/schedule.py). Two constants are fitted, to
the rows marked so:

{constants}

## How wrong it is

{accuracy}

The constant model is operations / (94 % of peak) + 107 us. It was made from these large dense
rows, and says nothing of block sizes. libtpu's estimate knows no limit of bandwidth; it is capped
by bytes / bandwidth here, and must not be asked where scalar prefetch steers.

## Ratios

{ratios}

## All published rows

{table}

The sparse guide draws its stored blocks at random and does not say how many they were: today's
JAX draws 107, with `jax_threefry_partitionable` off it is 86. The published time agrees
with 107, which is why 107 is counted above: chosen by the result, not known beforehand.

"guide" is built as published: all operands lie in HBM, zeros pass through a window of their own,
and the aliased operand, which the caller keeps, is copied first. "suite" is the reference kernel,
which leaves the zeros where they are, and whose stored blocks today's XLA puts into VMEM;
comparing it with the published time shows what that is worth.

## Unpublished

Device times, dispatch left out; of one core where two are one device. Nothing tells how wrong
they are.

{unpublished}

"tuned" is the reference kernel `peeled` in the blocks that it takes by itself, which are the best
of a sweep (`python tools/tune.py`) by the same predictions; the others are in the guide's
512/1024/1024.

## Size of stored blocks

Device times on v5e of a product of 16384^3 in bf16, a tenth of whose left operand is stored.
Larger blocks are faster for what they hold, and hold more zeros.

{trade}
"""


def pages() -> dict[str, str]:
    """Texts of docs/ by file name: the page, and what the README shows of it."""
    found = predict_all()
    table = rows(found)
    short = "\n".join(["", *accuracy(table), "", *table_of(table)])
    return {"predicted.md": _page(found, table), "predicted-rows.md": f"{short.strip()}\n"}


def _page(found: Found, table: Sequence[Row]) -> str:
    return PAGE.format(
        jax=jax.__version__,
        libtpu=measure.libtpu_version(),
        constants="\n".join(constants()),
        accuracy="\n".join(accuracy(table)),
        ratios="\n".join(ratios(table)),
        table="\n".join(table_of(table)),
        unpublished="\n".join(unpublished(found)),
        trade="\n".join(trade(found)),
    )


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--child"]:
        child(*arguments[1:])
    elif arguments == ["--fit"]:
        latency, dispatch = fit()
        print(f"latency of a DMA {latency:.4g} s, dispatch {dispatch:.4g} s")
    else:
        print(pages()["predicted.md"], end="")


if __name__ == "__main__":
    main(sys.argv[1:])
