"""A long-lived child process that runs kernels, so that a hang or an abort is a verdict.

The simulator can wait forever inside XLA and the compiler can abort the process; neither can
be caught from within. The parent sends (subject, kernel, example, chip), never a function; the
child loads the subject itself and makes the arrays from the seed. Messages are pickles with a
length in front, over the child's original stdin and stdout; whatever the kernel or the compiler
prints goes to a log file instead.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_HEADER = struct.Struct("<Q")
_LOG_TAIL = 4000


class ChildDied(Exception):
    """The process ended without an answer; `log` is the end of what it printed."""

    def __init__(self, returncode: int, log: str) -> None:
        super().__init__(f"process died with exit code {returncode}")
        self.returncode = returncode
        self.log = log


class ChildTimeout(Exception):
    """No answer in time; the process was killed."""


class EngineError(RuntimeError):
    """The suite itself failed (oracle, strategy, mode); never a kernel's verdict."""


class Child:
    """The parent's end: starts the process when needed and restarts it after death."""

    def __init__(self, environment: Mapping[str, str | None], memory_limit: int) -> None:
        """Args:
        environment: variables to set; None removes one.
        memory_limit: resident bytes beyond which the process is replaced between requests.
        """
        self._environment = environment
        self._memory_limit = memory_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def call(self, request: Mapping[str, Any], timeout: float) -> Any:
        """Sends one request and returns its answer.

        Raises:
          ChildDied, ChildTimeout: the next call starts a new process.
          EngineError: the child's engine raised; carries its traceback.
        """
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            write_message(process.stdin, request)
            answer = _read_within(process.stdout, timeout)
        except (BrokenPipeError, EOFError):
            raise self._death() from None
        except TimeoutError:
            self.stop()
            raise ChildTimeout(f"no answer within {timeout:g} s") from None
        if answer.get("resident", 0) > self._memory_limit:
            self.stop()
        if "engine_error" in answer:
            raise EngineError(answer["engine_error"])
        return answer["result"]

    def stop(self) -> None:
        """Kills the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._log is not None:
            self._log.close()
        self._process = self._log = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
            environment = os.environ | {k: v for k, v in self._environment.items() if v is not None}
            for name in [k for k, v in self._environment.items() if v is None]:
                environment.pop(name, None)
            root = str(Path(__file__).resolve().parent.parent)
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (root, environment.get("PYTHONPATH")))
            )
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
            )
        return self._process

    def _death(self) -> ChildDied:
        assert self._process is not None and self._log is not None
        returncode = self._process.wait()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        log = self._log.read().decode(errors="replace")
        self.stop()
        return ChildDied(returncode, log)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Writes one length-prefixed pickle and flushes."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_HEADER.pack(len(body)) + body)
    stream.flush()


def read_message(stream: IO[bytes]) -> Any:
    """Reads one message; EOFError at the end of the stream."""
    (length,) = _HEADER.unpack(_exactly(stream, _HEADER.size))
    return pickle.loads(_exactly(stream, length))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    body = stream.read(count)
    if len(body) < count:
        raise EOFError
    return body


def _read_within(stream: IO[bytes], timeout: float) -> Any:
    """Waits for the first byte of an answer, then reads it whole; TimeoutError."""
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
    return read_message(stream)


# --------------------------------------------------------------------------- the child's end


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if _HAS_PROC else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


_HAS_PROC = Path("/proc/self/statm").exists()


def die_with_parent() -> None:
    """Has Linux kill this process when its parent ends: one that hangs in a kernel would never
    see that its requests have ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Answers requests until stdin ends."""
    import traceback

    die_with_parent()

    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from conformance import console, serve

    console.watch()
    server = serve.Server()
    while True:
        try:
            request = read_message(requests)
        except EOFError:
            return
        try:
            answer = {"result": server.answer(request)}
        except Exception:
            answer = {"engine_error": traceback.format_exc()}
        write_message(answers, answer | {"resident": resident_bytes()})


if __name__ == "__main__":
    main()
