"""Runs calls where their mode wants them: in a child process, or in this one."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np

from conformance import serve
from conformance.case import Example, Kernel
from conformance.child import Child, ChildDied, ChildTimeout, EngineError
from conformance.modes import MODES
from conformance.verdict import Failure, Outcome, Status

# A worker stays below 2 GB with one child of this size beside it.
CHILD_MEMORY = 1_300_000_000

# The mode in whose child XLA's baselines are computed.
_BASELINE = "interpret"

# Seconds in which a new process must say whether a mode can run in it; loading libtpu takes two.
_PROBE_TIMEOUT = 120.0


class Runner:
    """Owns the child processes of one worker, one for each environment that modes ask for."""

    def __init__(
        self, subject: str, case_files: tuple[str, ...], timeout: float, cache: str | None
    ) -> None:
        """Args:
        subject: specification that children load the subject from.
        case_files: additional case files.
        timeout: seconds an example may take.
        cache: directory that compiled programs are kept in between runs, or None.
        """
        self._subject = subject
        self._case_files = case_files
        self._timeout = timeout
        self._cache = cache
        self._children: dict[tuple[Any, ...], Child] = {}
        self._here = serve.Server()
        self._unavailable: dict[str, str | None] = {}

    def unavailable(self, mode: str, chip: str | None) -> str | None:
        """Why a mode cannot run here, or None; a process that dies of being asked is a reason."""
        reason = MODES[mode].unavailable(chip)
        if reason is not None or MODES[mode].in_process:
            return reason
        if mode not in self._unavailable:
            self._unavailable[mode] = self._probe(mode)
        return self._unavailable[mode]

    def _probe(self, mode: str) -> str | None:
        try:
            return self._child(mode).call(serve.probe_request(mode), _PROBE_TIMEOUT)
        except ChildTimeout as e:
            return str(e)
        except ChildDied as e:
            return explain(e)

    def run(
        self, mode: str, chip: str | None, kernel: Kernel, example: Example, negative: str | None
    ) -> Outcome:
        """One kernel on one example; a dead or silent child is a Failure, not an exception."""
        request = serve.run_request(
            self._subject, self._case_files, mode, chip, kernel, example, negative
        )
        if MODES[mode].in_process:
            return self._here.answer(request)
        try:
            return self._child(mode).call(request, self._timeout)
        except ChildTimeout as e:
            return _died(Status.TIMEOUT, "", f"{e}; the process was killed")
        except ChildDied as e:
            return _died(Status.CRASH, _signal(e.returncode), explain(e))

    def baseline(self, mode: str, example: Example) -> tuple[np.ndarray, ...]:
        """XLA's results on the backend of `mode`; EngineError when that fails.

        All modes that run in children share one child for it, so that XLA compiles it once.
        """
        request = serve.baseline_request(self._case_files, example)
        if MODES[mode].in_process:
            return self._here.answer(request)
        try:
            return self._child(_BASELINE).call(request, self._timeout)
        except (ChildTimeout, ChildDied) as e:
            raise EngineError(f"the XLA baseline of {example.id} failed: {e}") from e

    def close(self) -> None:
        """Ends all children."""
        for child in self._children.values():
            child.stop()
        self._children.clear()

    def _child(self, mode: str) -> Child:
        environment = dict(MODES[mode].environment())
        if self._cache is not None:
            environment["CONFORMANCE_CACHE_DIR"] = self._cache
            environment.setdefault("JAX_COMPILATION_CACHE_DIR", f"{self._cache}/xla")
            environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
            environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
        key = tuple(sorted((k, v or "") for k, v in environment.items()))
        if key not in self._children:
            self._children[key] = Child(environment, CHILD_MEMORY)
        return self._children[key]


def _died(status: Status, error: str, message: str) -> Outcome:
    return Outcome(failure=Failure(status=status, phase="run", error=error, message=message))


def _signal(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"exit code {returncode}"


def explain(death: ChildDied) -> str:
    """The check message if the log has one, else its last line."""
    lines = [line for line in death.log.splitlines() if line.strip()]
    checks = [line for line in lines if "Check failed" in line or "F0000" in line]
    last = (checks or lines or ["it printed nothing"])[-1].strip()
    return f"the process died ({_signal(death.returncode)}): {last}"
