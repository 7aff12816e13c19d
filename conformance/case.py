"""The records of the suite: Case, Example, Kernel and their parts. Data, no behaviour.

A case is one pattern's contract, an example one point of its domain, a kernel one
implementation claimed for it. Arrays are made from an example's seed and never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from conformance.numerics import Arithmetic, Reference

Params = Mapping[str, Any]
Arrays = tuple[np.ndarray, ...]
Axes = tuple[int | None, ...]

TIERS = ("smoke", "ci", "full")
PHASES = ("prepare", "trace", "lower", "compile", "run", "finish")


class DomainError(ValueError):
    """Parameters outside a case's domain; the message names the parameter and its value."""


@dataclass(frozen=True, kw_only=True)
class Param:
    """One parameter of a case.

    Attributes:
      kind: "size" (a length, >= 1), "count" (an integer >= 0), "block" (a block length, a hint
        that a kernel may leave out of its signature), "dtype" (a dtype name) or "choice".
      choices: the legal values of a "dtype" or a "choice".
      passed: whether the kernel's `fn` is given the parameter. Blocks are always passed to
        kernels that name them; other parameters only where they are part of the contract and
        not visible from the arrays (an activation's name, a slice's size).
    """

    kind: str
    choices: tuple[Any, ...] = ()
    passed: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the contract costs at least, independent of any kernel.

    Attributes:
      flops: floating-point (or integer multiply-add) operations; a multiply-add counts 2.
      bytes: bytes that must cross HBM when every operand is read once and written once.
    """

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """One point of a case's domain with one input distribution and one seed.

    Attributes:
      case: the case's name.
      params: shapes, dtypes, blocks and contract options, by name.
      inputs: the input distribution ("exact", "normal", ...; see `Case.inputs`).
      seed: the seed of the arrays.
      pinned: the stable id of the pinned row it comes from, if any.
      tier: the smallest tier that runs it.
      modes: the modes that can afford it; empty means all of them.
    """

    case: str
    params: Params
    inputs: str
    seed: int
    pinned: str | None = None
    tier: str = "ci"
    modes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The replay id: a pinned row's stable id or the parameters, then inputs and seed."""
        point = self.pinned or ",".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.case}/{point},inputs={self.inputs},seed={self.seed}"

    def __repr__(self) -> str:
        return f"--replay {self.id}"


@dataclass(frozen=True, kw_only=True)
class Negative:
    """Input that a kernel must refuse, and how.

    Attributes:
      name: short and unique within the case; part of the replay id.
      params: a legal or illegal point; not checked against the domain.
      phase: where the refusal happens, one of PHASES.
      error: what must arrive: the name of the exception type, the compiler's code, or the
        status RESOURCE.
      match: regular expression that the message must contain.
      arrays: makes the arrays from the params; the case's own `make` when None.
      inputs: the distribution for the case's own `make`.
      chips: chips on which it is refused (phases "lower" and "compile"); empty means all.
    """

    name: str
    params: Params
    phase: str
    error: str
    match: str
    arrays: Callable[[Params], Arrays] | None = None
    inputs: str = "exact"
    chips: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pattern's contract.

    Attributes:
      name: how `Kernel.case` and `--cases` call it.
      contract: one sentence: what a kernel must compute.
      spec: URL of the document that specifies the pattern.
      params: every parameter by name, in the order in which ids print them.
      domain: hypothesis strategy of legal parameter dictionaries.
      check: raises DomainError for parameters outside the domain.
      inputs: the distributions that a point is judged under.
      make: (params, inputs, rng) -> the arrays a kernel is given.
      reference: (params, inputs, arrays, arithmetic) -> one Reference per result.
      baseline: (params, *arrays) -> the same function in XLA at HIGHEST precision.
      work: least FLOPs and bytes of a point.
      fetches: (params, arrays) -> for each named operand the most block fetches that the
        contract allows a kernel which uses the given blocks; None when it says nothing.
      gradient: (params, inputs, arrays, cotangents, arithmetic) -> one Reference for each array,
        None for one that has no derivative; the cotangents are NumPy arrays, one for each result
        and of its dtype: integers of at most 4 in magnitude for inputs "exact" and "position",
        else normal numbers. Needed by kernels that claim the property "grad".
      split: params -> (axes of the arrays, axes of the results): cut in two along these axes
        (None: not cut), each half is a point of the domain, with the same blocks, whose results
        are those halves. None for a point that cannot be cut. Needed by kernels that claim the
        property "shard_map".
      negatives: input to be refused.
      rows: pinned examples as read from the JSON file beside the case.
    """

    name: str
    contract: str
    spec: str
    params: Mapping[str, Param]
    domain: Callable[[], SearchStrategy[dict[str, Any]]]
    check: Callable[[Params], None]
    inputs: Callable[[Params], tuple[str, ...]]
    make: Callable[[Params, str, np.random.Generator], Arrays]
    reference: Callable[[Params, str, Arrays, Arithmetic], tuple[Reference, ...]]
    baseline: Callable[..., Any]
    work: Callable[[Params], Work]
    fetches: Callable[[Params, Arrays], Mapping[str, int]] | None = None
    gradient: (
        Callable[[Params, str, Arrays, Arrays, Arithmetic], tuple[Reference | None, ...]] | None
    ) = None
    split: Callable[[Params], tuple[Axes, Axes] | None] | None = None
    negatives: tuple[Negative, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An implementation claimed for a case.

    Attributes:
      case: the case whose contract it claims.
      name: unique within the subject and the case.
      fn: the device stage. Called as `fn(*arrays, **options)` under `jax.jit`; must trace
        from shapes alone and call `pl.pallas_call` while it runs. Block sizes that its
        signature does not name are not passed.
      pallas: False for a fallback in plain XLA that a library offers beside its kernels. It must
        not call `pl.pallas_call`, and is judged where XLA itself runs or compiles: in
        `interpret`, `aot` and `tpu`.
      prepare: the host stage, `prepare(*arrays, **options)` with concrete NumPy arrays; raises
        the contract's errors and returns the tuple of `fn`'s arrays.
      finish: host stage after the run, takes and returns `fn`'s result.
      unsupported: (example, chip) -> reason or None; asked and checked where code is compiled.
      refuses: example -> the documented limit for which the kernel raises, or None. Asked in
        every mode, and checked: `prepare` or the tracing of `fn` must raise.
      configs: (example, chip) -> option dictionaries, the search space of a sweep.
      checks_inputs: whether the kernel promises the case's errors on bad input; only then are
        the case's negative examples run against it.
      operands: for kernels of a case with `fetches`: the name of each blocked operand of the
        first pallas_call, in order.
      properties: what else the kernel promises, by name ("vmap", "grad", ...; one module of
        `conformance.properties` each).
    """

    case: str
    name: str
    fn: Callable[..., Any]
    pallas: bool = True
    prepare: Callable[..., tuple[Any, ...]] | None = None
    finish: Callable[[Any], Any] | None = None
    unsupported: Callable[[Example, Any], str | None] | None = None
    refuses: Callable[[Example], str | None] | None = None
    configs: Callable[[Example, Any], Any] | None = None
    checks_inputs: bool = False
    operands: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
