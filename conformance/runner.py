"""Runs calls where their mode wants them: in a child process, or in this one."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from conformance import serve
from conformance.case import Example, Kernel
from conformance.child import Child, ChildDied, ChildTimeout, EngineError
from conformance.modes import MODES
from conformance.properties import PROPERTIES
from conformance.schedule import Prediction, Unpredicted
from conformance.timing import Part
from conformance.verdict import Failure, Outcome, Status, Use

# A worker stays below 2 GB with one child of this size beside it.
CHILD_MEMORY = 1_300_000_000

# The mode in whose child XLA's baselines are computed.
_BASELINE = "interpret"

# The mode whose child compiles for chips that are not here.
_COMPILES = "aot"

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
        """Why a mode or a property cannot run here, or None; a process that dies of being asked
        is a reason."""
        reason = serve.way(mode).unavailable(chip)
        if reason is not None or _in_process(mode):
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
        """One kernel on one example, in a mode or about a property; a dead or silent child is a
        Failure, not an exception."""
        request = serve.run_request(
            self._subject, self._case_files, mode, chip, kernel, example, negative
        )
        if _in_process(mode):
            return self._here.answer(request)
        try:
            return self._child(mode).call(request, self._timeout)
        except (ChildTimeout, ChildDied) as e:
            return Outcome(failure=_failure(e, "run"))

    def baseline(self, mode: str, example: Example) -> tuple[np.ndarray, ...]:
        """XLA's results on the backend of `mode`; EngineError when that fails.

        All modes that run in children share one child for it, so that XLA compiles it once.
        """
        request = serve.baseline_request(self._case_files, example)
        if _in_process(mode):
            return self._here.answer(request)
        return self._of_xla(_BASELINE, request, example)

    def property_baseline(self, name: str, example: Example) -> tuple[Use, ...]:
        """What XLA's own code does about a property; EngineError when that fails."""
        request = serve.property_baseline_request(self._case_files, name, example)
        return self._of_xla(name, request, example)

    def _of_xla(self, name: str, request: dict[str, Any], example: Example) -> Any:
        try:
            return self._child(name).call(request, self._timeout)
        except (ChildTimeout, ChildDied) as e:
            raise EngineError(f"the XLA baseline of {example.id} failed: {e}") from e

    def predict(
        self, chip: str, kernel: Kernel, example: Example, part: Part, *, xla: bool = False
    ) -> Prediction | Unpredicted | Failure:
        """The predicted time of a kernel's call, or of XLA's own code for the same contract."""
        request = serve.predict_request(
            self._subject, self._case_files, chip, kernel, example, part, xla
        )
        try:
            return self._child(_COMPILES).call(request, self._timeout)
        except (ChildTimeout, ChildDied) as e:
            return _failure(e, "compile")

    def close(self) -> None:
        """Ends all children."""
        for child in self._children.values():
            child.stop()
        self._children.clear()

    def _child(self, mode: str) -> Child:
        environment = dict(serve.way(mode).environment())
        # Small products are many times slower with a thread for each core.
        environment["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")
        if self._cache is not None:
            environment["CONFORMANCE_CACHE_DIR"] = self._cache
            environment.setdefault("JAX_COMPILATION_CACHE_DIR", f"{self._cache}/xla")
            environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
            environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
        key = tuple(sorted((k, v or "") for k, v in environment.items()))
        if key not in self._children:
            self._children[key] = Child(environment, CHILD_MEMORY)
        return self._children[key]


def _in_process(mode: str) -> bool:
    """Whether a mode runs in this process; properties never do."""
    return mode not in PROPERTIES and MODES[mode].in_process


def _failure(end: ChildTimeout | ChildDied, phase: str) -> Failure:
    """What the kernel is told when its process did not answer."""
    if isinstance(end, ChildTimeout):
        message = f"{end}; the process was killed"
        return Failure(status=Status.TIMEOUT, phase=phase, error="", message=message)
    error = _signal(end.returncode)
    return Failure(status=Status.CRASH, phase=phase, error=error, message=explain(end))


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
