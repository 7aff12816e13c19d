"""What properties that are tried in the interpreter share: a process with two devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from conformance.case import Arrays, Case, Example, Kernel
from conformance.modes import Call, _staging
from conformance.modes.interpret import ENVIRONMENT
from conformance.numerics import INTERPRETED, Reference
from conformance.properties import References
from conformance.strategies import make_arrays
from conformance.verdict import Failure, Outcome, Status, Use

DEVICES = 2


class Interpreted:
    """A property whose parts are values, computed by Pallas' HLO interpreter."""

    chip: str | None = None
    data = True

    def __init__(self) -> None:
        self._programs = _staging.Programs()

    def environment(self) -> Mapping[str, str | None]:
        flag = f"--xla_force_host_platform_device_count={DEVICES}"
        return {**ENVIRONMENT, "XLA_FLAGS": f"{ENVIRONMENT['XLA_FLAGS']} {flag}"}

    def unavailable(self, chip: str | None) -> str | None:
        return None

    def probe(self) -> str | None:
        return None

    def lacks(self, case: Case, kernel: Kernel) -> str | None:
        return None

    def run(self, call: Call) -> Outcome:
        try:
            with pltpu.force_tpu_interpret_mode(True):  # type: ignore[arg-type]
                return Outcome(parts=self.parts(call, _staging.prepared(call)))
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        except Broken as e:
            return _staging.failed(e.failure)

    def parts(self, call: Call, args: tuple[jax.Array, ...]) -> tuple[Use, ...]:
        """The results of each use; PhaseError or Broken."""
        raise NotImplementedError

    def references(self, case: Case, example: Example) -> References:
        raise NotImplementedError

    def baseline(self, case: Case, example: Example) -> tuple[Use, ...]:
        return ()

    def jitted(self, call: Call, what: Any, make: Callable[[], Any]) -> Any:
        """A jitted function, made once for the calls that compile to the same program."""
        return self._programs.get((what, call.key), make)


class Broken(Exception):
    """The kernel breaks the property in a way that is not a wrong result."""

    def __init__(self, message: str, part: str = "") -> None:
        super().__init__(message)
        self.failure = Failure(
            status=Status.WRONG, phase="run", error="", message=message, part=part
        )


def device_stage(call: Call) -> Callable[..., Any]:
    """`fn` with its options bound; a new function each time, for JAX's caches."""
    bound = functools.partial(call.kernel.fn, **call.options)

    def fn(*arrays: Any) -> Any:
        return bound(*arrays)

    return fn


def jit(fn: Callable[..., Any], **how: Any) -> Any:
    """`jax.jit`, compiled quickly: what it makes runs a few times on little data."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0}, **how)


def called(call: Call, part: str, fn: Callable[..., Any], *args: Any) -> Any:
    """What a use of the kernel returns, waited for; a PhaseError that names the use."""
    with _staging.part(part):
        return _staging.in_phase("run", lambda: jax.block_until_ready(fn(*args)))


def expected(case: Case, example: Example, arrays: Arrays | None = None) -> tuple[Reference, ...]:
    """What the contract asks of the interpreters, for the example's arrays or others."""
    arrays = make_arrays(case, example) if arrays is None else arrays
    return case.reference(example.params, example.inputs, arrays, INTERPRETED)


def positions(call: Call, args: Sequence[Any]) -> tuple[int | None, ...]:
    """Where each array of the example is among `fn`'s arguments; None for one that `prepare`
    turned into something else."""
    if call.kernel.prepare is None:
        return tuple(range(len(call.arrays)))
    left = list(range(len(args)))
    found: list[int | None] = []
    for array in call.arrays:
        same = next((n for n in left if _same(array, np.asarray(args[n]))), None)
        found.append(same)
        if same is not None:
            left.remove(same)
    return tuple(found)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()
