"""The last few results of a computation, by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Recent:
    """Keeps what was computed for the last few keys; the oldest go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: dict[Any, Any] = {}

    def get(self, key: Any, compute: Callable[[], Any]) -> Any:
        """The result for a key, computed when it is not there."""
        if key not in self._items:
            if len(self._items) >= self._capacity:
                del self._items[next(iter(self._items))]
            self._items[key] = compute()
        return self._items[key]
