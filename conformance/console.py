"""What a kernel and its interpreter print, read from the process's own log.

The simulator reports races and left-over semaphores only as text. In a child process (see
`child.py`) file descriptors 1 and 2 are a log file, which can be read back; elsewhere there is
nothing to read.
"""

from __future__ import annotations

import os
import sys

_position: int | None = None


def watch() -> None:
    """Starts reading; file descriptors 1 and 2 must be one seekable file."""
    global _position
    _position = os.lseek(2, 0, os.SEEK_END)


def new_text() -> str:
    """The text printed since the last call; "" where nothing is watched."""
    global _position
    if _position is None:
        return ""
    sys.stdout.flush()
    sys.stderr.flush()
    end = os.lseek(2, 0, os.SEEK_END)
    text = os.pread(2, end - _position, _position)
    _position = end
    return text.decode(errors="replace")
