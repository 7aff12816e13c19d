"""What is wrong with each kernel of `mutants.py`, and how it must show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mutants import CONTROLS, KERNELS, NO_KERNEL

from conformance import Kernel

__all__ = ["CHIPS", "COMPILER_REFUSES", "CONTROLS", "MODES", "MUTANTS", "NO_KERNEL", "Mutant"]

MODES = ("interpret", "tpu-interpret", "emulate")
# The chip whose compiler's IR is executed.
CHIPS = {"emulate": "v5e"}
# The HLO interpreter has one core and no DMA, keeps output blocks, and clamps indices.
HLO_MISSES = ("interpret",)

# How a verdict begins: wrong numbers, or what the simulator raises.
VALUES = "^WRONG: .*elements wrong"
REVISITED = "^WRONG: .*Revisited block"
OUTSIDE = "^WRONG: .*Out-of-bounds"
RACE = "^WRONG: race"
FETCHES = "^WRONG: values are right, but .* blocks of "

# In compiled arithmetic float32 operands may be rounded to bfloat16; block fetches are counted by
# the simulator alone.
EMULATE_MISSES = frozenset(
    {
        "masked_matmul/empty_mask_fetched",
        "masked_matmul/fetches_for_nothing",
        "masked_matmul/last_block_fetched",
        "matmul_f32/bfloat16_operands",
    }
)
# Not accepted by the compiler, in part or only by some versions of JAX; a static index out of
# range may abort it.
COMPILER_REFUSES = frozenset(
    {
        "add/bfloat16_operands",
        "add/raises",
        "add/towards_zero",
        "attention/bfloat16_logits",
        "attention/bfloat16_values",
        "dsd/bfloat16_accumulator",
        "gated_linear_unit/erf_gelu",
        "grouped_matmul/group_by_group",
        "grouped_matmul/tail_kept",
        "matmul/bfloat16_accumulator",
        "masked_matmul/published_listing",
        "matmul/bfloat16_terms",
        "matmul/tail_by_bfloat16",
        "matmul_activation/erf_gelu",
        "matmul_activation/rounded_first",
        "matmul_f32/bfloat16_operands",
        "matmul_int8/float32_accumulator",
        "matmul_int8/int16_accumulator",
        "matmul_int8/no_preferred_type",
        "matmul_int8/without_the_least",
        "matmul_prologue/bfloat16_functions",
        "sum/at_once",
        "sum_narrow/narrow_accumulator",
    }
)

Params = Mapping[str, Any]
Predicate = Callable[[Params], Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A wrong kernel.

    Attributes:
      defect: what is wrong with it.
      by: input kinds each of which must condemn it on some example; "negative" stands for the
        case's negative examples.
      survives: modes that miss it: there, no example may fail.
      shows: the points where the defect makes a difference.
      says: regular expression that a verdict, "STATUS: why", must match; a dot is any character.
    """

    kernel: Kernel
    defect: str
    by: tuple[str, ...]
    survives: tuple[str, ...]
    shows: Predicate
    says: str

    @property
    def name(self) -> str:
        """Of its kernel, with the case."""
        return f"{self.kernel.case}/{self.kernel.name}"

    @property
    def killed_in(self) -> tuple[str, ...]:
        """The modes that must condemn it."""
        return tuple(mode for mode in MODES if mode not in self.missed_in and self._seen_by(mode))

    @property
    def missed_in(self) -> tuple[str, ...]:
        """The modes that are known to miss it: no example fails there."""
        missed = self.name in EMULATE_MISSES
        return self.survives + (("emulate",) if missed else ())

    def _seen_by(self, mode: str) -> bool:
        """Whether the mode judges any of the inputs that show it: bad input is for interpreters."""
        return mode != "emulate" or self.by != ("negative",)

    def pattern(self, mode: str) -> str:
        """What a verdict of the mode must match.

        The executor of compiler IR finds some defects by two executions that disagree; some
        mutants no compiler accepts.
        """
        if mode != "emulate":
            return self.says
        return "^(WRONG|REJECTED|CRASH): " if self.name in COMPILER_REFUSES else "^WRONG: "

    def kinds(self, mode: str) -> tuple[str, ...]:
        """The input kinds that must condemn it in a mode."""
        return tuple(kind for kind in self.by if mode != "emulate" or kind != "negative")


def mutant(
    name: str,
    defect: str,
    *,
    by: str,
    survives: tuple[str, ...] = (),
    shows: Predicate = lambda p: True,
    says: str = VALUES,
) -> Mutant:
    """A row: `name` is "case/kernel", `by` a list of kinds with commas."""
    return Mutant(
        kernel=next(k for k in KERNELS if f"{k.case}/{k.name}" == name),
        defect=defect,
        by=tuple(by.split(", ")),
        survives=survives,
        shows=shows,
        says=says,
    )


# ---------------------------------------------------------------------------- points


def ragged(*dims: str) -> Predicate:
    """Points where a block does not divide one of the dimensions."""
    return lambda p: any(p[d] % p[f"b{d}"] for d in dims)


def several(*dims: str) -> Predicate:
    """Points with more than one block along each of the dimensions."""
    return lambda p: all(p[d] > p[f"b{d}"] for d in dims)


def several_tiles(p: Params) -> bool:
    return p["m"] > p["bm"] or p["n"] > p["bn"]


def narrow_integer(p: Params) -> bool:
    return p["dtype"] in ("int8", "int16", "uint8", "uint16")


def many_terms(p: Params) -> bool:
    return p["b"] > 1


def many_tiles_and_terms(p: Params) -> bool:
    return p["b"] > 1 and several_tiles(p)


def steps(p: Params) -> bool:
    return p["k"] > p["bk"]


def smooth(p: Params) -> bool:
    return p["activation"] in ("gelu", "silu")


def square(p: Params) -> bool:
    return p["m"] == p["k"] == p["n"] > 1


def inside(p: Params) -> bool:
    """Starts inside a block along some axis."""
    return p["start_m"] % p["bm"] > 0 or p["start_n"] % p["bn"] > 0


def moved(p: Params) -> bool:
    return p["start_m"] > 0 or p["start_n"] > 0


def stores(p: Params) -> bool:
    return p["pattern"] != "none"


def full_rows(p: Params) -> bool:
    return p["pattern"] in ("full", "random") and p["m"] > p["bm"] and p["k"] > p["bk"]


def in_groups(p: Params) -> bool:
    """Several groups with rows, which cannot all begin with a block."""
    return p["groups"] > 1 and p["pattern"] in ("ragged", "zeros", "short") and p["m"] % 3 > 0


def left_over(p: Params) -> bool:
    return p["pattern"] in ("short", "none")


def masked_by_position(p: Params) -> bool:
    return p["mask"] in ("causal", "local")


def key_blocks(p: Params) -> bool:
    """Queries that attend to keys of more than one block."""
    return p["s"] > p["bk"] and (p["t"] > p["bk"] or p["mask"] == "none")


def no_key_left(p: Params) -> bool:
    """Queries without a key: of a window that is past all keys, of an arbitrary mask."""
    if "window" in p:
        return p["mask"] == "local" and p["t"] > p["s"] + p["window"]
    return p["mask"] == "random" or (p["mask"] == "padding" and p["b"] > 1)


def skips(p: Params) -> bool:
    return p["mask"] in ("causal", "local", "blocks", "trailing", "none") and several_tiles(p)


# ---------------------------------------------------------------------------- rows


ADD = (
    mutant(
        "add/towards_zero",
        "cuts off the bits that a narrow float cannot hold instead of rounding",
        by="normal",
        shows=lambda p: p["dtype"] == "bfloat16" or p["dtype"].startswith("float8"),
    ),
    mutant(
        "add/through_float32",
        "adds 32-bit integers in float32, which has 24 bits",
        by="exact",
        shows=lambda p: p["dtype"] in ("int32", "uint32"),
    ),
    mutant(
        "add/saturates",
        "narrow integers stop at their limits instead of wrapping",
        by="exact",
        shows=narrow_integer,
    ),
    mutant(
        "add/bfloat16_operands",
        "adds float32 in bfloat16; small integers do not show it",
        by="normal, wide",
        shows=lambda p: p["dtype"] == "float32",
    ),
    mutant(
        "add/y_blocks_swapped",
        "takes block (j, i) of y where (i, j) belongs",
        by="exact, position, normal",
        shows=several_tiles,
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "add/last_blocks_missing",
        "the grid is rounded down: the ragged last blocks are never visited",
        by="exact, normal",
        shows=lambda p: ragged("m", "n")(p) and several_tiles(p),
    ),
    mutant(
        "add/output_pinned",
        "every row of blocks is written over the first",
        by="exact, normal",
        shows=several("m"),
        says=f"{VALUES}|{REVISITED}",
    ),
    mutant(
        "add/writes_every_other_block",
        "leaves every other block of the output unwritten",
        by="exact, normal",
        shows=several_tiles,
    ),
    mutant(
        "add/float32_out",
        "returns float32 whatever it is given",
        by="exact",
        shows=lambda p: p["dtype"] != "float32",
        says="dtype float32, expected",
    ),
    mutant(
        "add/whole_blocks_out",
        "returns the padding of its last blocks as well",
        by="exact",
        shows=ragged("m", "n"),
        says="shape .* expected",
    ),
    mutant(
        "add/shared_output",
        "cores that run in parallel write into one output block",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=several("m"),
        says=RACE,
    ),
    mutant(
        "add/scratch_set_once",
        "prepares scratch in the first step, which only one of the cores runs",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=several("m"),
    ),
    mutant(
        "add/dma_wait_missing",
        "reads what a copy has not brought yet",
        by="exact, normal",
        survives=HLO_MISSES,
        says="nan|semaphore",
    ),
    mutant(
        "add/dma_wait_twice",
        "waits for a second copy that nobody started",
        by="exact",
        survives=HLO_MISSES,
        says="^TIMEOUT",
    ),
    mutant(
        "add/semaphore_left",
        "ends with a semaphore that nobody waited for",
        by="exact",
        survives=HLO_MISSES,
        says="semaphore was left signalled",
    ),
    mutant(
        "add/x_overwritten",
        "returns the right sum and leaves zeros in the caller's x",
        by="exact",
        says="^WRONG: .*writes to its input",
    ),
    mutant(
        "add/raises",
        "raises while it is traced",
        by="exact",
        says="^REJECTED: NotImplementedError: no vector layout",
    ),
    mutant(
        "add/built_at_import",
        "calls pallas_call when it is imported, where no interpreter can be chosen",
        by="exact",
        says="^REJECTED: .*call pl.pallas_call inside fn",
    ),
)


SUM = (
    mutant(
        "sum/naive",
        "the guide's naive_sum: adds to a block that nobody cleared",
        by="exact, position, normal",
        shows=lambda p: p["dtype"] == "float32",
    ),
    mutant(
        "sum/naive_int32",
        "the same for integers, which have no NaN that would show it",
        by="exact",
        shows=lambda p: p["dtype"] == "int32",
    ),
    mutant("sum/cleared_at_second_step", "clears the accumulator one step too late", by="exact"),
    mutant(
        "sum/cleared_under_wrong_axis",
        "clears in every step of the first row of blocks, and in no other row",
        by="exact, position",
        shows=many_tiles_and_terms,
    ),
    mutant(
        "sum/reduction_axis_first",
        "comes back to an output block that has been written out: the pipeline does not reload it",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=many_tiles_and_terms,
        says=REVISITED,
    ),
    mutant(
        "sum/parallel_reduction",
        "lets several cores add to one block",
        by="exact",
        survives=HLO_MISSES,
        shows=many_terms,
        says=RACE,
    ),
    mutant(
        "sum/bfloat16_accumulator",
        "adds up in bfloat16",
        by="exact, normal",
        shows=lambda p: p["b"] > 1 and p["dtype"] == "float32",
    ),
    mutant(
        "sum/skips_nan",
        "leaves NaN out of the sum",
        by="special",
        shows=lambda p: p["dtype"] == "float32",
    ),
    mutant(
        "sum_narrow/narrow_accumulator",
        "adds up in the dtype of the terms",
        by="exact",
        shows=many_terms,
    ),
    mutant(
        "sum_narrow/first_term_twice",
        "starts from the first term and then adds it",
        by="exact, position",
    ),
    mutant(
        "sum_narrow/unsigned",
        "widens signed integers without their sign",
        by="exact",
        shows=lambda p: p["dtype"].startswith("int"),
    ),
)


MATMUL = (
    mutant(
        "matmul_f32/reduction_axis_first",
        "comes back to an output block that has been written out: the pipeline does not reload it",
        by="exact, normal",
        survives=HLO_MISSES,
        shows=lambda p: steps(p) and several_tiles(p),
        says=REVISITED,
    ),
    mutant(
        "matmul_f32/y_blocks_swapped",
        "takes block (j, k) of y where (k, j) belongs",
        by="exact, position, normal",
        shows=lambda p: steps(p) or p["n"] > p["bn"],
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "matmul_f32/bfloat16_operands",
        "rounds float32 operands to bfloat16, which no interpreter does; integers do not show it",
        by="normal, cancel, wide",
    ),
    mutant(
        "matmul_f32/block_scaled",
        "stores x as 16-bit integers and one scale a block, too coarse for the small rows",
        by="wide",
        shows=lambda p: p["m"] > 1,
    ),
    mutant(
        "matmul/bfloat16_accumulator",
        "adds up in bfloat16",
        by="exact, position",
        shows=lambda p: steps(p) and not p["dtype"].startswith("float8"),
    ),
    mutant(
        "matmul/bfloat16_terms",
        "rounds the product of each step of k to bfloat16 before it adds it in float32",
        by="exact, normal",
        shows=lambda p: p["k"] >= 16 * p["bk"],
    ),
    mutant(
        "matmul/tail_kept",
        "multiplies what the last block of k holds beyond the array",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_times_zero",
        "multiplies the tail of k by zero, and 0 * NaN is NaN",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_of_x_only",
        "clears the tail of k in x only",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "matmul/tail_by_bfloat16",
        "finds the tail of k by bfloat16 indices, which are exact up to 256 only",
        by="exact",
        shows=lambda p: ragged("k")(p) and p["k"] > 256,
    ),
    mutant(
        "matmul/loop_overshoots",
        "a loop over slices of k runs past its end in the last step",
        by="exact, normal",
        shows=lambda p: ragged("k")(p) and steps(p),
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "matmul/tail_dropped",
        "rounds the number of steps down: the ragged end of k is left out",
        by="exact, position, normal",
        shows=lambda p: ragged("k")(p) and steps(p),
    ),
    mutant(
        "matmul/stored_at_first_step",
        "writes the accumulator out before it is complete",
        by="exact, position, normal",
        shows=steps,
    ),
    mutant(
        "matmul/cut_off",
        "cuts the sum to bfloat16 instead of rounding it",
        by="exact, normal, cancel",
        shows=lambda p: p["dtype"] == "bfloat16",
    ),
    mutant(
        "matmul/checks_nothing",
        "takes operands and blocks that its contract refuses",
        by="negative",
        says="^WRONG: (accepted|refused with)",
    ),
    mutant(
        "matmul/unhelpful_message",
        "refuses bad input without naming what is bad",
        by="negative",
        says="^WRONG: refused with ValueError.*bad input",
    ),
    mutant(
        "matmul_transpose_rhs/square_forgotten",
        "forgets the transpose where the shapes do not ask for it",
        by="exact, position",
        shows=lambda p: p["n"] == p["k"] > 1,
    ),
    mutant(
        "matmul_transpose_rhs/tail_of_other_axis",
        "clears rows of y where it should clear the tail of k",
        by="exact",
        shows=ragged("k"),
    ),
)


FUSED = (
    mutant(
        "matmul_activation/every_step",
        "applies the activation to every partial sum",
        by="exact, normal, cancel",
        shows=steps,
    ),
    mutant(
        "matmul_activation/before_last_step",
        "applies the activation one step too early",
        by="exact, normal",
        shows=steps,
    ),
    mutant(
        "matmul_activation/applied_twice",
        "applies the activation twice",
        by="normal",
        shows=smooth,
    ),
    mutant(
        "matmul_activation/rounded_first",
        "rounds the sum to bfloat16 before the activation",
        by="normal",
        shows=smooth,
    ),
    mutant(
        "matmul_activation/erf_gelu",
        "computes GELU from erf, where the contract has its tanh form",
        by="normal",
        shows=lambda p: p["activation"] == "gelu",
    ),
    mutant(
        "matmul_template/identity_only",
        "ignores the activation",
        by="exact, normal",
        shows=lambda p: p["activation"] != "identity",
    ),
    mutant(
        "matmul_prologue/functions_swapped",
        "applies f to y and g to x",
        by="exact, normal",
        shows=lambda p: p["f"] != p["g"],
    ),
    mutant(
        "matmul_prologue/bfloat16_functions",
        "computes f and g in bfloat16",
        by="normal, cancel",
        shows=lambda p: p["dtype"] == "float32",
    ),
)


INT8 = (
    mutant(
        "matmul_int8/int16_accumulator",
        "adds up in int16, which wraps",
        by="exact",
        shows=lambda p: p["k"] >= 100,
    ),
    mutant(
        "matmul_int8/no_preferred_type",
        "leaves preferred_element_type out: each product wraps in int8",
        by="exact, position",
    ),
    mutant(
        "matmul_int8/without_the_least",
        "takes -128 for -127",
        by="exact",
        shows=lambda p: p["k"] >= 256,
    ),
)


GRAD = (
    mutant(
        "matmul_grad/x_instead_of_y",
        "multiplies dz by x where y belongs, if their shapes allow it",
        by="exact",
        shows=square,
    ),
    mutant(
        "matmul_grad/transpose_missing",
        "forgets to transpose x, if its shape allows it",
        by="exact, position",
        shows=square,
    ),
    mutant("matmul_grad/scaled", "one gradient is twice too large", by="exact, normal"),
    mutant("matmul_grad/cotangent_ignored", "takes dz for ones", by="exact, normal"),
    mutant(
        "matmul_grad/tail_of_n_kept",
        "multiplies what the last block of n holds beyond the array",
        by="exact, normal",
        shows=ragged("n"),
    ),
)


SLICE = (
    mutant(
        "dynamic_slice/next_block",
        "takes the block after the right one",
        by="position, normal",
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "dynamic_slice/axes_swapped",
        "takes the start of each axis for the other's",
        by="position",
        shows=lambda p: moved(p) and p["start_m"] != p["start_n"],
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "dynamic_slice/starts_ignored", "always takes the first block", by="position", shows=moved
    ),
    mutant(
        "dynamic_slice/unsigned_zero",
        "loses the sign of zero",
        by="special",
        shows=lambda p: p["dtype"] != "int32",
    ),
    mutant(
        "dynamic_slice/clamps",
        "moves bad starts into range instead of raising",
        by="negative",
        says="accepted, but",
    ),
    mutant(
        "dynamic_slice/columns_unchecked",
        "checks the start of the first axis only",
        by="negative",
        says="accepted, but",
    ),
    mutant(
        "dynamic_slice_blocked/divided_by_size",
        "the guide's index: counts starts in slices, not in blocks",
        by="position",
        shows=lambda p: any(
            p[f"start_{d}"] // p[f"size_{d}"] != p[f"start_{d}"] // p[f"b{d}"] for d in "mn"
        ),
    ),
    mutant(
        "dynamic_slice_blocked/blocks_transposed",
        "walks the blocks of x by columns and those of the slice by rows",
        by="position",
        shows=lambda p: p["size_m"] > p["bm"] or p["size_n"] > p["bn"],
        says=f"{VALUES}|{OUTSIDE}",
    ),
    mutant(
        "dynamic_slice_unaligned/one_too_far",
        "rotates by one element too many",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/through_float32",
        "rotates int32 as float32, which has 24 bits",
        by="exact",
        shows=lambda p: p["dtype"] == "int32",
    ),
    mutant(
        "dynamic_slice_unaligned/own_neighbour",
        "ends every block in the block it begins in",
        by="position",
        shows=inside,
    ),
    mutant(
        "dynamic_slice_unaligned/neighbour_past_the_end",
        "fetches a neighbour for an aligned start too, and so past the end of x",
        by="position",
        survives=HLO_MISSES,
        shows=lambda p: any(
            p[f"start_{d}"] % p[f"b{d}"] == 0 and p[f"start_{d}"] + p[f"size_{d}"] == p[d]
            for d in "mn"
        ),
        says=OUTSIDE,
    ),
)


DSD = (
    mutant(
        "dsd/reads_past_the_indices",
        "the guide's listing: the last step reads one past the end of indices_i",
        by="exact",
        survives=HLO_MISSES,
        shows=stores,
        says=OUTSIDE,
    ),
    mutant(
        "dsd/empty_rows_unwritten",
        "without the alias nobody writes the rows that store nothing",
        by="exact, normal",
        shows=lambda p: p["pattern"] in ("gaps", "last") and p["m"] > p["bm"],
    ),
    mutant(
        "dsd/rows_run_together",
        "does not clear the accumulator where the row changes",
        by="exact, normal",
        shows=lambda p: stores(p) and p["m"] > p["bm"] and p["pattern"] not in ("last",),
    ),
    mutant(
        "dsd/last_block_of_row_dropped",
        "stores a row before its last block is added",
        by="exact, normal",
        shows=stores,
    ),
    mutant(
        "dsd/bfloat16_accumulator", "adds up in bfloat16", by="exact, position", shows=full_rows
    ),
    mutant(
        "dsd/columns_put_in_order",
        "takes the columns of a row as if they were stored in order",
        by="exact",
        shows=full_rows,
    ),
    mutant(
        "dsd/parallel_blocks",
        "lets several cores share the blocks of a row",
        by="exact",
        survives=HLO_MISSES,
        shows=full_rows,
        says=RACE,
    ),
    mutant(
        "dsd/times_zeros",
        "multiplies the zeros between the blocks too, and 0 * inf is NaN",
        by="special",
        shows=lambda p: p["pattern"] not in ("full",),
    ),
    mutant(
        "dsd/takes_unsorted_rows",
        "does not ask whether block rows are in order",
        by="negative",
        says="accepted, but",
    ),
)


MASK = (
    mutant(
        "masked_matmul/masks_compared_as_printed",
        "the guide's sparsify_mask: str() of a large block shows dots, so unlike blocks look equal",
        by="exact",
        shows=lambda p: p["mask"] == "hole" and p["bm"] * p["bn"] > 1000 and several_tiles(p),
    ),
    mutant(
        "masked_matmul/published_listing",
        "the guide's sparsify_mask on a mask that its blocks do not divide",
        by="exact",
        shows=ragged("m", "n"),
        says="^(REJECTED|WRONG)",
    ),
    mutant(
        "masked_matmul/last_block_fetched",
        "the guide's prefetch maps: after the last computed block they fetch the grid's last",
        by="exact",
        survives=HLO_MISSES,
        shows=lambda p: p["mask"] == "trailing",
        says=f"{FETCHES}x",
    ),
    mutant(
        "masked_matmul/fetches_for_nothing",
        "skips the arithmetic of empty blocks and fetches their operands all the same",
        by="exact",
        survives=HLO_MISSES,
        shows=skips,
        says=f"{FETCHES}[xy]",
    ),
    mutant(
        "masked_matmul/empty_mask_fetched",
        "stores and fetches a mask block of zeros for the blocks that it skips",
        by="exact",
        survives=HLO_MISSES,
        shows=lambda p: p["mask"] in ("causal", "local") and several_tiles(p),
        says=f"{FETCHES}mask",
    ),
    mutant(
        "masked_matmul/times_mask",
        "multiplies by the mask, and 0 * NaN is NaN",
        by="special",
        shows=lambda p: p["mask"] in ("causal", "local", "hole"),
    ),
    mutant(
        "masked_matmul/first_mask_only",
        "applies the same mask block everywhere",
        by="exact, position",
        shows=lambda p: p["mask"] in ("causal", "local", "hole") and several_tiles(p),
    ),
    mutant(
        "masked_matmul/partial_blocks_kept",
        "keeps all of a block that is true in part",
        by="exact, normal",
        shows=lambda p: p["mask"] in ("causal", "local", "hole"),
    ),
    mutant(
        "masked_matmul/skipped_blocks_stale",
        "stores the last computed block again where nothing was computed",
        by="exact, normal",
        shows=skips,
    ),
    mutant(
        "masked_matmul/ones_only",
        "keeps what has a 1 in the mask, not what has anything but 0",
        by="exact",
        shows=lambda p: p["mask_dtype"] != "bool" and p["mask"] in ("causal", "all"),
    ),
)


def narrow_lanes(p: Params) -> bool:
    """Rows that do not fill their last register."""
    return p["n"] > 1 and p["n"] % 128 > 0


def single(p: Params) -> bool:
    return p["dtype"] == "float32"


def single_row(p: Params) -> bool:
    return single(p) and p["n"] > 1


def active(p: Params) -> bool:
    return p["activation"] != "identity"


NORM = (
    mutant(
        "layer_norm/mean_kept",
        "divides by the root mean square: no mean is subtracted",
        by="exact, normal, cancel",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "layer_norm/one_mean_a_block",
        "subtracts the mean of all rows of a block",
        by="exact, normal, cancel",
        shows=lambda p: p["bm"] > 1,
    ),
    mutant(
        "layer_norm/bfloat16_mean",
        "rounds the mean to bfloat16",
        by="cancel",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "layer_norm/bfloat16_squares",
        "rounds squared deviations to bfloat16",
        by="exact, normal",
        shows=single_row,
    ),
    mutant(
        "layer_norm/difference_of_squares",
        "takes the mean square less the squared mean, which cancel",
        by="cancel",
        shows=single_row,
    ),
    mutant(
        "layer_norm/unbiased",
        "divides the squares by n - 1",
        by="exact, normal",
        shows=single_row,
    ),
    mutant(
        "layer_norm/padding_counted",
        "counts the lanes of padding in the variance",
        by="exact, normal, cancel",
        shows=narrow_lanes,
    ),
    mutant(
        "layer_norm/epsilon_outside",
        "adds epsilon to the root",
        by="wide",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "layer_norm/deviation_missing_root",
        "divides by the variance",
        by="exact, normal, wide",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "layer_norm/offset_scaled",
        "adds the offset before it multiplies by scale",
        by="exact, normal",
    ),
    mutant(
        "layer_norm/rounded_before_scale",
        "rounds to bfloat16 before scale and offset",
        by="normal",
        shows=single_row,
    ),
    mutant("layer_norm/skips_nan", "takes a NaN for 0", by="special"),
    mutant(
        "layer_norm/last_rows_missing",
        "never visits the ragged last block",
        by="exact, normal",
        shows=lambda p: ragged("m")(p) and several("m")(p),
    ),
    mutant(
        "layer_norm/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|refused with",
    ),
    mutant(
        "rms_norm/centred",
        "subtracts the mean",
        by="exact, normal",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "rms_norm/not_the_mean",
        "divides by the norm: the sum of squares, not their mean",
        by="exact, normal, wide",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "rms_norm/bfloat16_squares",
        "rounds squares to bfloat16",
        by="exact, normal",
        shows=single_row,
    ),
    mutant(
        "rms_norm/padding_counted",
        "counts the lanes of padding in the mean",
        by="exact, normal, cancel",
        shows=narrow_lanes,
    ),
    mutant("rms_norm/epsilon_outside", "adds epsilon to the root", by="wide"),
    mutant("rms_norm/larger_epsilon", "adds 1e-5, the default elsewhere", by="wide"),
    mutant(
        "rms_norm/one_plus_scale",
        "multiplies by 1 + scale, the convention of other models",
        by="exact, normal",
    ),
    mutant("rms_norm/skips_nan", "takes a NaN for 0", by="special"),
    mutant(
        "rms_norm/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|refused with",
    ),
)


SOFTMAX = (
    mutant(
        "softmax/nothing_subtracted",
        "raises what it is given, which overflows",
        by="exact, wide",
    ),
    mutant(
        "softmax/maximum_of_the_block",
        "subtracts the maximum of all rows of a block",
        by="exact, wide",
        shows=lambda p: p["bm"] > 1,
    ),
    mutant(
        "softmax/summed_over_rows",
        "divides by the sums of the columns",
        by="exact, normal",
        shows=lambda p: p["bm"] > 1,
    ),
    mutant(
        "softmax/padding_counted",
        "counts a zero for each lane of padding",
        by="normal",
        shows=narrow_lanes,
    ),
    mutant(
        "softmax/bfloat16_exponentials",
        "rounds exponentials to bfloat16",
        by="normal",
        shows=single_row,
    ),
    mutant(
        "softmax/bfloat16_sum",
        "rounds the sum to bfloat16",
        by="normal",
        shows=single_row,
    ),
    mutant(
        "softmax/approximate_reciprocal",
        "multiplies by a reciprocal of eight bits",
        by="exact, normal",
        shows=single_row,
    ),
    mutant(
        "softmax/masks_leak",
        "takes -inf for -20: a masked element keeps a share",
        by="special",
        shows=lambda p: p["n"] > 1,
    ),
    mutant("softmax/skips_nan", "takes a NaN for 0", by="special"),
    mutant(
        "softmax/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|refused with",
    ),
)


GATED = (
    mutant(
        "gated_linear_unit/swapped",
        "applies the activation to up",
        by="exact, position, normal",
        shows=active,
    ),
    mutant(
        "gated_linear_unit/interleaved",
        "takes every other column for the gate",
        by="exact, position, normal, wide",
        shows=lambda p: p["n"] > 1,
    ),
    mutant(
        "gated_linear_unit/activation_every_step",
        "applies the activation to every partial sum",
        by="exact, normal",
        shows=lambda p: steps(p) and active(p),
    ),
    mutant(
        "gated_linear_unit/product_every_step",
        "adds up the products of partial sums",
        by="exact, normal, cancel",
        shows=steps,
    ),
    mutant(
        "gated_linear_unit/activation_of_the_product",
        "applies the activation to the product",
        by="exact, normal",
        shows=active,
    ),
    mutant(
        "gated_linear_unit/identity_only",
        "ignores the activation",
        by="exact, normal",
        shows=active,
    ),
    mutant(
        "gated_linear_unit/rounded_first",
        "rounds both sums to bfloat16 before they are used",
        by="normal",
    ),
    mutant(
        "gated_linear_unit/bfloat16_sums",
        "adds up in bfloat16",
        by="exact",
        shows=lambda p: p["k"] >= 100 and p["activation"] in ("relu", "identity"),
    ),
    mutant(
        "gated_linear_unit/erf_gelu",
        "computes GELU from erf, where the contract has its tanh form",
        by="normal",
        shows=lambda p: p["activation"] == "gelu",
    ),
    mutant(
        "gated_linear_unit/up_cleared_once",
        "clears the second accumulator for the first block only",
        by="exact, normal",
        shows=several_tiles,
    ),
    mutant(
        "gated_linear_unit/tail_kept",
        "uses what its blocks hold beyond k",
        by="exact, normal",
        shows=ragged("k"),
    ),
    mutant(
        "gated_linear_unit/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|refused with",
    ),
)


ENTROPY = (
    mutant(
        "linear_softmax_cross_entropy/nothing_subtracted",
        "raises the logits as they are, which overflows",
        by="exact",
        shows=lambda p: p["h"] >= 100,
    ),
    mutant(
        "linear_softmax_cross_entropy/not_rescaled",
        "does not scale the sum when a block raises the maximum",
        by="exact, normal",
        shows=several("v"),
    ),
    mutant(
        "linear_softmax_cross_entropy/padding_counted",
        "counts a zero logit for each column beyond v",
        by="normal",
        shows=ragged("v"),
    ),
    mutant(
        "linear_softmax_cross_entropy/rows_past_the_end",
        "adds the losses of rows beyond b",
        by="exact, normal",
        shows=ragged("b"),
    ),
    mutant(
        "linear_softmax_cross_entropy/column_within_the_block",
        "looks for the label in every block of columns",
        by="exact, position, normal",
        shows=several("v"),
    ),
    mutant(
        "linear_softmax_cross_entropy/bfloat16_logits",
        "rounds logits to bfloat16",
        by="exact, normal",
        shows=lambda p: p["h"] >= 100,
    ),
    mutant(
        "linear_softmax_cross_entropy/negative",
        "returns the log probability, without its sign",
        by="exact, normal",
        shows=lambda p: p["v"] > 1,
    ),
    mutant(
        "linear_softmax_cross_entropy/label_forgotten",
        "returns the log of the sum",
        by="exact, normal",
    ),
    mutant(
        "linear_softmax_cross_entropy/always_the_sum",
        "ignores the reduction",
        by="exact, normal",
        shows=lambda p: p["reduction"] == "mean" and p["b"] > 1,
    ),
    mutant(
        "linear_softmax_cross_entropy/mean_over_the_vocabulary",
        "divides the sum by v",
        by="exact, normal",
        shows=lambda p: p["reduction"] == "mean" and p["b"] != p["v"],
    ),
    mutant(
        "linear_softmax_cross_entropy/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|refused with",
    ),
)


GROUPS = (
    mutant(
        "grouped_matmul/ends_one_row_later",
        "every group but the last ends a row too late",
        by="exact, position, normal",
        shows=lambda p: p["pattern"] in ("ragged", "equal") and p["groups"] > 1,
    ),
    mutant(
        "grouped_matmul/empty_groups_left_out",
        "numbers only the groups that have rows",
        by="exact, normal",
        shows=lambda p: p["pattern"] == "zeros",
    ),
    mutant(
        "grouped_matmul/rest_unwritten",
        "leaves the rows behind the last group as they are",
        by="exact, normal",
        shows=left_over,
    ),
    mutant(
        "grouped_matmul/last_group_takes_the_rest",
        "counts the rows behind the last group to it",
        by="exact, normal",
        shows=left_over,
    ),
    mutant(
        "grouped_matmul/matrix_of_first_group",
        "multiplies a block of rows by the matrix of the group that begins it",
        by="exact, position, normal",
        shows=in_groups,
    ),
    mutant(
        "grouped_matmul/one_visit_less",
        "has no room for a visit of the rows behind groups that all end inside a block",
        by="exact",
        shows=lambda p: p["pattern"] == "short" and p["m"] > p["bm"],
    ),
    mutant(
        "grouped_matmul/whole_blocks_stored",
        "stores a whole block for each group in it",
        by="exact, normal",
        shows=in_groups,
    ),
    mutant(
        "grouped_matmul/earlier_groups_erased",
        "stores zeros where a block belongs to other groups",
        by="exact, normal",
        shows=in_groups,
    ),
    mutant(
        "grouped_matmul/bfloat16_accumulator",
        "adds the blocks of k up in bfloat16",
        by="exact",
        shows=lambda p: p["dtype"] == "float32" and p["pattern"] != "none",
    ),
    mutant(
        "grouped_matmul/tail_kept",
        "multiplies what the last block of k holds beyond the arrays",
        by="exact, normal",
        shows=lambda p: ragged("k")(p) and p["pattern"] != "none",
    ),
    mutant(
        "grouped_matmul/cleared_once",
        "goes on adding from one group to the next",
        by="exact, normal, cancel, wide",
        shows=in_groups,
    ),
    mutant(
        "grouped_matmul/takes_any_sizes",
        "does not look at the numbers in group_sizes",
        by="negative",
        says="accepted, but",
    ),
)


ATTENTION = (
    mutant(
        "attention/causal_without_itself",
        "a query does not attend to its own position",
        by="exact, position",
        shows=masked_by_position,
    ),
    mutant(
        "attention/causal_one_too_far",
        "a query attends to the next position too",
        by="exact, position",
        shows=masked_by_position,
    ),
    mutant(
        "attention/causal_by_first_query",
        "masks a whole block of queries as its first one",
        by="exact, position, normal",
        shows=masked_by_position,
    ),
    mutant(
        "attention/causal_from_the_end",
        "aligns the last query with the last key",
        by="exact, position, normal",
        shows=lambda p: masked_by_position(p) and p["t"] != p["s"],
    ),
    mutant(
        "attention/query_block_forgotten",
        "counts positions of queries from the beginning of their block",
        by="exact, position, normal",
        shows=lambda p: masked_by_position(p) and p["t"] > p["bq"],
    ),
    mutant(
        "attention/window_one_wider",
        "a window of one key more",
        by="exact, position",
        shows=lambda p: p["mask"] == "local" and p["t"] > p["window"] + 1,
    ),
    mutant(
        "attention/window_to_both_sides",
        "the window reaches to the keys that follow",
        by="exact, position",
        shows=lambda p: p["mask"] == "local" and p["window"] > 0,
    ),
    mutant(
        "attention/causal_ignored",
        "attends to all keys",
        by="exact, position, normal, wide",
        shows=lambda p: masked_by_position(p) and p["s"] > 1,
    ),
    mutant(
        "attention/diagonal_block_skipped",
        "skips blocks of keys that are allowed in part",
        by="exact, position, normal",
        shows=lambda p: p["mask"] == "causal",
    ),
    mutant(
        "attention/largest_of_block",
        "subtracts the largest logit of the block instead of the largest so far",
        by="exact",
        shows=key_blocks,
    ),
    mutant(
        "attention/largest_not_subtracted",
        "takes exp of the logits as they are",
        by="exact",
    ),
    mutant(
        "attention/sum_not_rescaled",
        "does not rescale the sum of weights when the largest logit grows",
        by="exact, normal, wide",
        shows=key_blocks,
    ),
    mutant(
        "attention/values_not_rescaled",
        "does not rescale the sum of values when the largest logit grows",
        by="exact, normal, wide",
        shows=key_blocks,
    ),
    mutant(
        "attention/last_block_only",
        "forgets the values of earlier blocks",
        by="exact, normal",
        shows=key_blocks,
    ),
    mutant(
        "attention/heads_interleaved",
        "query heads take key heads in turn",
        by="exact, normal",
        shows=lambda p: p["h"] > p["hkv"] > 1,
    ),
    mutant(
        "attention/first_head_only",
        "all query heads attend to the first key head",
        by="exact, normal",
        shows=lambda p: p["hkv"] > 1,
    ),
    mutant(
        "attention/empty_rows_nan",
        "divides by the empty sum of a query without a key",
        by="exact, normal",
        shows=no_key_left,
    ),
    mutant(
        "attention/empty_rows_averaged",
        "averages over masked keys where a query has none",
        by="exact, position, normal",
        shows=no_key_left,
    ),
    mutant(
        "attention/scaled_twice",
        "applies the scale twice; a weight of 1 does not show it",
        by="normal, cancel, wide",
        shows=lambda p: p["scale"] != 1.0,
    ),
    mutant(
        "attention/not_scaled",
        "leaves out the scale",
        by="normal, wide",
        shows=lambda p: p["scale"] != 1.0,
    ),
    mutant(
        "attention/tail_of_keys_kept",
        "attends to what the last block of keys holds beyond the array",
        by="exact, normal",
        shows=lambda p: p["s"] % p["bk"] and p["mask"] == "none",
    ),
    mutant(
        "attention/tail_of_values_kept",
        "multiplies weights of 0 by what the last block of values holds beyond the array",
        by="exact, normal",
        shows=lambda p: p["s"] > p["bk"] and p["s"] % p["bk"],
    ),
    mutant(
        "attention/bfloat16_logits",
        "rounds logits to bfloat16",
        by="exact",
    ),
    mutant(
        "attention/bfloat16_values",
        "adds the values of earlier blocks up in bfloat16",
        by="position",
        shows=key_blocks,
    ),
    mutant(
        "attention/not_divided",
        "returns sums instead of means; a single weight of 1 does not show it",
        by="position, normal",
    ),
    mutant(
        "attention/checks_nothing",
        "takes whatever it is given",
        by="negative",
        says="accepted, but|ValueError|TypeError",
    ),
    mutant(
        "attention_masked/mask_of_first_batch",
        "masks every batch as the first one",
        by="exact, position, normal",
        shows=lambda p: p["b"] > 1,
    ),
    mutant(
        "attention_masked/mask_of_first_queries",
        "masks every block of queries as the first one",
        by="exact, position, normal",
        shows=lambda p: p["t"] > p["bq"] and p["mask"] != "padding",
    ),
    mutant(
        "attention_masked/minus_ten_thousand",
        "adds -10000 to masked logits, which is not enough for large ones",
        by="exact",
    ),
    mutant(
        "attention_masked/empty_rows_nan",
        "divides by the empty sum of a query without a key",
        by="exact, normal",
        shows=no_key_left,
    ),
    mutant(
        "attention_masked/empty_rows_averaged",
        "averages over masked keys where a query has none",
        by="exact, position, normal",
        shows=no_key_left,
    ),
    mutant(
        "attention_masked/mask_after_softmax",
        "subtracts the largest of all logits, masked ones too",
        by="exact",
    ),
)

MUTANTS = (
    *(*ADD, *SUM, *MATMUL, *FUSED, *INT8, *GRAD, *SLICE, *DSD, *MASK),
    *(*NORM, *SOFTMAX, *GATED, *ENTROPY),
    *(*GROUPS, *ATTENTION),
)
