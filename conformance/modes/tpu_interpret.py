"""Mode `tpu-interpret`: Pallas' simulator of TPU memories, DMAs and cores.

Uninitialised memory is NaN. A kernel with a `parallel` grid axis runs on three cores with race
detection. The order in which such axes are walked is random: pinned examples run under two
orders and must give the same bits; generated ones under one, which differs from point to point.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax._src import dispatch
from jax.experimental.pallas import tpu as pltpu

from conformance import console
from conformance.modes import Call, _cores, _fetches, _staging
from conformance.modes.interpret import ENVIRONMENT
from conformance.numerics import INTERPRETED
from conformance.verdict import Failure, Outcome, Status

CORES = 3
ORDER_SEEDS = (0, 1)

_RACE = "RACE DETECTED"
_SEMAPHORE = "has non-zero count"


@dataclass(frozen=True)
class _Program:
    compiled: Any
    params: Any
    pallas_calls: int
    counter: _fetches.Counter | None
    uncounted: bool  # fetches were asked for, and cannot be counted


class TpuInterpret:
    name = "tpu-interpret"
    arithmetic = INTERPRETED
    chips: tuple[str, ...] = ()
    default_chips: tuple[str, ...] = ()
    default = True
    phases = frozenset({"prepare", "trace", "finish"})
    in_process = False
    values = True
    xla = False

    def __init__(self) -> None:
        _cores.compile_once()
        self._programs = _staging.Programs()

    def environment(self) -> Mapping[str, str | None]:
        return ENVIRONMENT

    def unavailable(self, chip: str | None) -> str | None:
        return None

    def probe(self) -> str | None:
        return None

    def run(self, call: Call, chip: str | None) -> Outcome:
        try:
            args = _staging.prepared(call)
            shapes = tuple((a.shape, str(a.dtype)) for a in args)
            programs = self._programs.get((call.key, shapes), lambda: _build(call, args))
        except _staging.PhaseError as e:
            return _staging.failed(e.failure())
        outcome = _run(call, programs[0], args)
        for program in programs[1:]:
            if outcome.failure is None:
                outcome = _same(outcome, _run(call, program, args))
        return outcome


def _run(call: Call, program: _Program, args: tuple[Any, ...]) -> Outcome:
    """One run. Races and left-over semaphores arrive as printed text."""
    evidence: dict[str, Any] = {"pallas_calls": program.pallas_calls}
    console.new_text()
    try:
        with pltpu.force_tpu_interpret_mode(program.params):
            if program.counter is not None:
                program.counter.start()
            values = _staging.execute(call, program.compiled, args)
            if program.counter is not None:
                evidence["fetches"] = program.counter.fetches(args)
            elif program.uncounted:
                evidence["fetches"] = None
    except _staging.PhaseError as e:
        pltpu.reset_tpu_interpret_mode_state()
        dispatch.runtime_tokens.clear()  # else the failure is raised again by every later run
        return _staging.failed(e.failure(_status(e)))
    failure = printed_failure(console.new_text())
    if failure is not None:
        return _staging.failed(failure)
    return Outcome(values=values, evidence=evidence)


def _status(error: _staging.PhaseError) -> Status:
    """The simulator raises for out-of-bounds accesses and the like; what it cannot do, or what
    the host stage raises, says nothing about values."""
    if error.phase == "finish" or "NotImplementedError" in str(error):
        return Status.REJECTED
    return Status.WRONG


def _same(first: Outcome, second: Outcome) -> Outcome:
    """The second outcome, or WRONG when the order of the parallel axes changed the results."""
    if second.values is None or first.values is None:
        return second
    for number, (a, b) in enumerate(zip(first.values, second.values, strict=True)):
        if a.tobytes() != b.tobytes():
            return _staging.failed(
                _wrong(f"result {number} depends on the order of the parallel grid axes")
            )
    return second


def _build(call: Call, args: tuple[Any, ...]) -> list[_Program]:
    """The programs of a call: one on one core, or race-checked ones on three cores."""
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        traced = _staging.trace(call, args)
        _staging.require_interpreted(traced)
        _staging.require_inputs_unwritten(traced)
    if not traced.parallel:
        return [_program(call, args, {})]
    return [
        _program(
            call,
            args,
            {"num_cores_or_threads": CORES, "detect_races": True, "random_seed": seed},
        )
        for seed in _order_seeds(call)
    ]


def _order_seeds(call: Call) -> tuple[int, ...]:
    if call.example.pinned is not None:
        return ORDER_SEEDS
    return (zlib.crc32(repr(call.example.params).encode()) % 1000,)


def _program(call: Call, args: tuple[Any, ...], settings: dict[str, Any]) -> _Program:
    counter = None
    if call.case.fetches is not None:
        counter = _fetches.Counter(call.kernel.operands)
        settings = settings | {"grid_point_recorder": counter.record}
    params = _params(settings)
    with pltpu.force_tpu_interpret_mode(params):
        traced = _staging.trace(call, args)
        if counter is not None and traced.prefetched is not None:
            counter.watch(traced.pallas_calls[0], traced.prefetched)
        else:
            counter = None
        asked = call.case.fetches is not None and bool(call.kernel.operands)
        compiled = _staging.compile_traced(traced)
        calls = len(traced.pallas_calls)
        return _Program(compiled, params, calls, counter, asked and counter is None)


def _params(settings: dict[str, Any]) -> Any:
    """InterpretParams; races are printed rather than raised where the version lets us choose."""
    if "on_race" in inspect.signature(pltpu.InterpretParams).parameters:
        settings = settings | {"on_race": "warn"}
    return pltpu.InterpretParams(uninitialized_memory="nan", **settings)


def printed_failure(text: str) -> Failure | None:
    """What the simulator only prints: a race, or a semaphore left signalled."""
    for line in text.splitlines():
        if _RACE in line:
            tail = text[text.index(line) :].splitlines()
            return _wrong("race: " + " ".join(part.strip() for part in tail[1:3]))
        if _SEMAPHORE in line:
            return _wrong(f"a semaphore was left signalled: {line.strip()}")
    return None


def _wrong(message: str) -> Failure:
    return Failure(status=Status.WRONG, phase="run", error="", message=message)


MODE = TpuInterpret()
