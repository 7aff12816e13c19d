"""What the compiler said, kept on disk: verdict, IR texts and bundle text of a module together.

JAX's persistent cache does not work for executables of absent chips. An entry is found by
`Lowered.key`, which covers everything a verdict depends on, so it can be shared and never goes
stale; it is written whole or not at all.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zlib
from pathlib import Path
from typing import Any

# Part of every name: entries written by another form of the records are not found.
_FORMAT = "1"


class Store:
    """A directory of entries; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def get(self, key: str) -> Any | None:
        """The entry of a key; None when there is none, or it cannot be read."""
        if self._directory is None:
            return None
        try:
            return pickle.loads(zlib.decompress(self._path(key).read_bytes()))
        except (OSError, zlib.error, pickle.UnpicklingError, EOFError, AttributeError):
            return None

    def put(self, key: str, entry: Any) -> None:
        """Writes an entry under a temporary name, then renames it."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        body = zlib.compress(pickle.dumps(entry, protocol=pickle.HIGHEST_PROTOCOL), level=1)
        descriptor, temporary = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        os.replace(temporary, self._path(key))

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{key}-{_FORMAT}"
