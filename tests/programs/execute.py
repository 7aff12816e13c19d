"""Executes programs as compiler IR for a chip and prints, a line of JSON each, what came out.

python tests/programs/execute.py CHIP,CHIP... NAME...

Runs in a process with the compiler's environment; some programs might abort it, so the caller
reads which lines are missing.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from conformance.modes._emulation import Executor
from conformance.verdict import Outcome, Status
from tests.programs import PROGRAMS, Program

SEEDS = (0,)
BRANCHING = (0, 1, 2)  # enough to go both ways


def reports(program: Program, executor: Executor, chips: Sequence[str]) -> Iterator[dict[str, str]]:
    """Name, chip, status ("AGREES", "DIFFERS" or a Status) and why, of the first failing seed."""
    seeds = BRANCHING if program.name.startswith("control_flow/") else SEEDS
    inputs = [program.make(np.random.default_rng(seed)) for seed in seeds]
    expected: list[tuple[np.ndarray, ...]] = []
    for chip in chips:
        yield {"name": program.name, "chip": chip} | _report(
            program, executor, chip, inputs, expected
        )


def report(program: Program, executor: Executor, chip: str) -> dict[str, str]:
    """The report of one chip."""
    (row,) = reports(program, executor, [chip])
    return row


def _report(
    program: Program,
    executor: Executor,
    chip: str,
    inputs: Sequence[Sequence[np.ndarray]],
    expected: list[tuple[np.ndarray, ...]],
) -> dict[str, str]:
    """Status and why; `expected` is filled when it is first needed, and serves all chips."""
    for number, arrays in enumerate(inputs):
        arguments = tuple(jax.numpy.asarray(a) for a in arrays)
        outcome = executor.outcome(program.name, program.fn, arguments, chip)
        if outcome.failure is not None:
            return {"status": str(outcome.failure.status), "why": outcome.failure.message[:600]}
        if number == len(expected):
            expected.append(reference(program, arrays))
        why = disagreement(program, outcome, expected[number])
        if why:
            return {"status": "DIFFERS", "why": why}
    return {"status": "AGREES", "why": ""}


def reference(program: Program, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """What the program must give: its oracle, or else the HLO interpreter."""
    if program.expected is not None:
        results = program.expected(*arrays)
    else:
        with pltpu.force_tpu_interpret_mode(True):  # type: ignore[arg-type]
            results = jax.jit(program.fn)(*arrays)
    return tuple(np.asarray(r) for r in jax.tree.leaves(results))


def disagreement(program: Program, outcome: Outcome, expected: Sequence[np.ndarray]) -> str:
    """The first difference, at the first level that shows one; "" when there is none."""
    for stage in outcome.stages:
        for number, (got, want) in enumerate(zip(stage.values, expected, strict=True)):
            wrong = _wrong(program, got, want)
            if wrong.any():
                index = tuple(int(i) for i in np.argwhere(wrong)[0])
                return (
                    f"result {number}, {int(wrong.sum())} of {wrong.size} elements, at "
                    f"{list(index)}: got {got[index]}, expected {want[index]}; {stage.blame}"
                )
    return ""


def _wrong(program: Program, got: np.ndarray, want: np.ndarray) -> Any:
    if got.shape != want.shape or got.dtype != want.dtype:
        return np.array([True])
    if got.dtype.kind in "iub" or "int" in got.dtype.name:
        same = got == want
        return ~same if program.exact else ~_near(program, got, want)
    both_nan = (got != got) & (want != want)
    if program.exact:
        return ~(both_nan | ((got == want) & (np.signbit(got) == np.signbit(want))))
    return ~(both_nan | _near(program, got, want))


def _near(program: Program, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    return (a == b) | (error <= program.tolerance * np.maximum(np.abs(b), 1.0))


def main() -> None:
    chips, names = sys.argv[1].split(","), set(sys.argv[2:])
    executor = Executor()
    for program in PROGRAMS:
        if program.name in names:
            print(json.dumps({"begins": program.name}), flush=True)
            try:
                for row in reports(program, executor, chips):
                    print(json.dumps(row), flush=True)
            except Exception:
                row = {"name": program.name, "chip": "", "status": "ENGINE_ERROR"}
                print(json.dumps(row | {"why": traceback.format_exc()[-1500:]}), flush=True)


__all__ = ["Status", "report"]

if __name__ == "__main__":
    main()
