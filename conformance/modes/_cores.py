"""Makes the simulator compile the program of its cores once.

jax 0.10.2 runs a kernel on several simulated cores in threads, and every thread of every run
traces, lowers and compiles the same program again (0.6 CPU-s a run of a small kernel against
0.05). Later versions keep it. Where that is missing, this module puts it in.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
from jax._src.pallas.mosaic.interpret import thread_map

_MOST = 32

_programs: dict[int, tuple[Any, Any]] = {}
_lock = threading.Lock()


def compile_once() -> None:
    """Replaces `thread_map._run_jaxpr`, unless it keeps its programs itself."""
    if not hasattr(thread_map, "_run"):
        thread_map._run_jaxpr = _run_jaxpr


def _run_jaxpr(jaxpr: Any, consts: Any, *args: Any) -> None:
    _program(jaxpr, consts, args)(consts, *args)


def _program(jaxpr: Any, consts: Any, args: tuple[Any, ...]) -> Any:
    """The compiled program of a jaxpr. A jaxpr has one set of shapes, so its identity is the
    key; the entry keeps it alive."""
    with _lock:
        if id(jaxpr) not in _programs:
            if len(_programs) >= _MOST:
                _programs.clear()
            _programs[id(jaxpr)] = (jaxpr, _compile(jaxpr, consts, args))
        return _programs[id(jaxpr)][1]


def _compile(jaxpr: Any, consts: Any, args: tuple[Any, ...]) -> Any:
    def run(consts: Any, *args: Any) -> None:
        jax.core.eval_jaxpr(jaxpr, consts, *args)

    return jax.jit(run).trace(consts, *args).lower().compile()
