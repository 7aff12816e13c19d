"""Whether libtpu still dumps what mode emulate executes, and who is blamed at which level.

Run as a script, this file is a compiling process; it prints what it found, in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import compiler

pytestmark = pytest.mark.skipif(
    compiler.availability() is not None, reason=str(compiler.availability())
)

TIMEOUT = 120.0
LOWERED = "wrong already in the IR that JAX lowered: the kernel, or JAX's lowering"
MOSAIC = "right in the IR that JAX lowered, wrong in Mosaic's vector registers for v5e"


def child(*arguments: str, folder: Path) -> dict[str, Any]:
    """What this file prints when it is run as a script."""
    environment = os.environ | compiler.environment(folder)
    run = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={k: v for k, v in environment.items() if v is not None},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return child(folder=tmp_path_factory.mktemp("dumps"))


def test_the_dumps_of_this_libtpu_fit(found):
    """When this fails, mode emulate knows nothing about this libtpu: its IR has changed."""
    assert not found["problem"], found["problem"]


def test_dumps_that_do_not_fit_are_one_line_with_the_version(found):
    assert found["renamed"].count("\n") == 0
    assert found["renamed"].startswith("libtpu ") and "no-such-pass" in found["renamed"]
    assert found["unparsable"].startswith("libtpu ")
    assert found["unparsable"].count("\n") == 0 and found["version"] in found["unparsable"]


def test_mosaic_is_blamed_for_what_only_its_registers_get_wrong(found):
    """Its text was altered behind the executor's back: + became -."""
    assert found["stages"] == [
        ["original", True, LOWERED],
        ["vreg", False, MOSAIC],
    ]


def _one_line(text: str) -> str:
    from importlib.metadata import version

    return f"libtpu {version('libtpu')}: {' '.join(text.split())}"


def _misfit(compiled: compiler.Compiled, passes: tuple[str, ...]) -> str:
    """Why the executor can make nothing of a tiny kernel's dumps, in one line; "" when it can."""
    import numpy as np

    from conformance import emulator

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    for name in passes:
        try:
            (text,) = compiled.texts(name)
            program = emulator.build(text)
            (result,) = emulator.run(program, [x], [(x.shape, x.dtype)], {}, emulator.Conditions())
        except Exception as e:
            return _one_line(f"the dump after pass {name!r} does not fit: {type(e).__name__}: {e}")
        if not np.array_equal(result, x + 1):
            return _one_line(f"the dump after pass {name!r} gives wrong values")
    return ""


def _stages() -> list[list[Any]]:
    """Name, rightness and blame of each level of x + 1 when the last one is altered."""
    import jax
    import numpy as np

    from conformance.modes import _emulation

    texts = _emulation._texts

    def altered(*arguments: Any) -> dict[str, Any]:
        made = texts(*arguments)
        levels = dict(made["texts"])
        levels["vreg"] = levels["vreg"].replace("arith.addf", "arith.subf")
        return made | {"texts": levels}

    _emulation._texts = altered
    x = jax.numpy.ones((8, 128))
    outcome = _emulation.Executor().outcome("key", _add_one, (x,), "v5e")
    return [[s.name, bool(np.all(s.values[0] == 2)), s.blame] for s in outcome.stages]


def _add_one(x: Any) -> Any:
    import jax
    from jax.experimental import pallas as pl

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1.0

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def main() -> None:
    from dataclasses import replace
    from importlib.metadata import version

    import jax

    from conformance import chips

    aval = jax.ShapeDtypeStruct((8, 128), "float32")
    compiled = compiler.compile_for(_add_one, [aval], chips.get("v5e"), compiler.dump_dir())
    if isinstance(compiled, compiler.Refused):
        print(json.dumps({"problem": _one_line(f"x + 1 is refused: {compiled.message}")}))
        return
    kept = (compiler.ORIGINAL, compiler.VREG)
    (dump,) = compiled.mosaic
    strange = {name: text.replace("arith.addf", "arith.addg") for name, text in dump.passes.items()}
    unparsable = replace(compiled, mosaic=(replace(dump, passes=strange),))
    found = {
        "version": version("libtpu"),
        "problem": _misfit(compiled, kept),
        "renamed": _misfit(compiled, ("no-such-pass",)),
        "unparsable": _misfit(unparsable, kept),
        "stages": _stages(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
