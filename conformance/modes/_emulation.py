"""Executing a function's kernels as the IR that the compiler made of them for a chip.

Every pallas_call is compiled alone; its Mosaic module is executed as JAX lowered it, and as Mosaic
cut it into vector registers for the chip. XLA on this machine does what is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from conformance import compiler, emulator
from conformance.chips import get as chip_called
from conformance.compiler import process
from conformance.modes import _compiling, _jaxprs, _staging
from conformance.recent import Recent
from conformance.verdict import Failure, Outcome, Stage, Status

# In the order in which the compiler passes them; the last one is what it makes code of.
LEVELS: Mapping[str, str] = {"original": compiler.ORIGINAL, "vreg": compiler.VREG}


class _Refused(Exception):
    def __init__(self, refused: compiler.Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class Executor:
    """Executes functions; keeps what it traced, compiled and built for the last ones."""

    def __init__(self) -> None:
        self._traces = Recent(32)
        self._modules = Recent(64)
        self._programs = Recent(64)

    def outcome(
        self,
        key: Any,
        fn: Callable[..., Any],
        args: tuple[jax.Array, ...],
        chip: str,
        finish: Callable[[Any], Any] | None = None,
    ) -> Outcome:
        """The results of `fn(*args)` at every level, or why there are none.

        Args:
          key: equal for functions and shapes that trace to the same program.
          finish: host stage after the run.
        """
        stages: list[Stage] = []
        try:
            traced = self._traces.get((key, chip), lambda: _trace(fn, args, chip))
            for level in LEVELS:
                values = self._results(traced, args, chip, level, finish)
                stages.append(Stage(name=level, values=values, blame=_blame(level, chip)))
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        except _Refused as e:
            return _staging.failed(_compiling.refusal(e.refused))
        except emulator.Unknown as e:
            return _staging.failed(_unsupported(f"the executor does not know {e}", str(e)))
        except _jaxprs.NotEvaluated as e:
            return _staging.failed(_unsupported(f"not evaluated here: {e}", str(e)))
        except emulator.Defect as e:
            return _staging.failed(_defect(str(e), list(LEVELS)[len(stages)], chip))
        evidence = {
            "executes": "compiler IR, not hardware",
            "pallas_calls": len(traced.pallas_calls),
        }
        return Outcome(values=stages[-1].values, stages=tuple(stages), evidence=evidence)

    def _results(
        self,
        traced: _staging.Traced,
        args: tuple[Any, ...],
        chip: str,
        level: str,
        finish: Callable[[Any], Any] | None,
    ) -> tuple[np.ndarray, ...]:
        """The kernel's results at one level, under conditions that must not matter."""
        flat = jax.tree.leaves(args)

        def results(conditions: emulator.Conditions) -> tuple[np.ndarray, ...]:
            def pallas_call(params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
                return self._execute(params, operands, chip, level, conditions)

            found = _jaxprs.evaluate(traced.stage.jaxpr, flat, pallas_call)
            return tuple(np.asarray(value) for value in found)

        values = emulator.agreed(results)
        if finish is None:
            return values
        tree = jax.tree.unflatten(jax.tree.structure(traced.stage.out_info), values)
        tree = _staging.in_phase("finish", finish, tree)
        return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(tree))

    def _execute(
        self,
        params: dict[str, Any],
        operands: Sequence[Any],
        chip: str,
        level: str,
        conditions: emulator.Conditions,
    ) -> Sequence[Any]:
        arrays = [np.asarray(o) for o in operands]
        text = self._module(params, arrays, chip)[level]
        program = self._programs.get(text, lambda: emulator.build(text))
        results = [(tuple(a.shape), np.dtype(a.dtype)) for a in params["out_avals"]]
        aliases = dict(params["input_output_aliases"])
        return emulator.run(program, arrays, results, aliases, conditions)

    def _module(
        self, params: dict[str, Any], arrays: Sequence[np.ndarray], chip: str
    ) -> Mapping[str, str]:
        """The Mosaic texts of one pallas_call, by level."""
        from jax._src.pallas.pallas_call import pallas_call_p

        key = (id(params), chip)
        return self._modules.get(
            key, lambda: _texts(lambda *a: pallas_call_p.bind(*a, **params), arrays, chip, params)
        )["texts"]


def _trace(fn: Callable[..., Any], args: tuple[Any, ...], chip: str) -> _staging.Traced:
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args)
    with process.abstract_mesh(chip_called(chip)):
        traced = _staging.trace_function(fn, shapes)
    _staging.require_inputs_unwritten(traced)
    return traced


def _texts(
    fn: Callable[..., Any], arrays: Sequence[np.ndarray], chip: str, owner: Any
) -> dict[str, Any]:
    """The compiler's texts of a call that it accepts; `owner` stays alive with them."""
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    result, _ = _compiling.compiled(fn, shapes, chip)
    if isinstance(result, compiler.Refused):
        raise _Refused(result)
    texts = {level: result.texts(name) for level, name in LEVELS.items()}
    for level, found in texts.items():
        if len(found) != 1:
            raise RuntimeError(
                f"libtpu dumped {len(found)} modules after pass {LEVELS[level]!r} of one "
                "pallas_call, not 1: its dumps do not fit this version of the suite"
            )
    return {"texts": {level: found[0] for level, found in texts.items()}, "owner": owner}


def _unsupported(message: str, what: str) -> Failure:
    """Something that cannot be executed, named by the first word of `what`."""
    operation = what.split()[0].rstrip(",")
    return Failure(
        status=Status.UNSUPPORTED, phase="run", error="", message=message, code=operation
    )


def _defect(message: str, level: str, chip: str) -> Failure:
    text = f"{message}; {_blame(level, chip)}"
    return Failure(status=Status.WRONG, phase="run", error="", message=text)


def _blame(level: str, chip: str) -> str:
    """Whose fault it is when `level` is the first one that is wrong."""
    if level == "original":
        return "wrong already in the IR that JAX lowered: the kernel, or JAX's lowering"
    return f"right in the IR that JAX lowered, wrong in Mosaic's vector registers for {chip}"
