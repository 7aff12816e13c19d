"""Subjects that misbehave in one way each: every one gets a status, and the others are judged."""

from __future__ import annotations

import re

import pytest

from conformance.report.lines import read

SUBJECT = '''
"""Kernels of case add, all but one of them wrong."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from conformance import Kernel


def body(x_ref, y_ref, o_ref):
    o_ref[...] = (x_ref[...] + y_ref[...]).astype(o_ref.dtype)


def add(x, y, dtype=None):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, dtype or x.dtype))(x, y)


def one_argument(x):
    return add(x, x)


def asks_for_more(x, y, scale):
    return add(x, y * scale)


def transposed(x, y):
    return add(x, y).T


def one_row(x, y):
    return add(x, y)[:1]


def bfloat16(x, y):
    return add(x, y, jnp.bfloat16)


def two_results(x, y):
    return add(x, y), add(x, y)


def nothing(x, y):
    add(x, y)


def text(x, y):
    add(x, y)
    return "done"


def leaves(x, y):
    sys.exit(0)


def interrupts(x, y):
    raise KeyboardInterrupt


def right(x, y):
    return add(x, y)


CALLS = []


def changes_the_process(x, y):
    """Right, but leaves the process in another state."""
    CALLS.append(x)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    os.environ["JAX_PLATFORMS"] = "nonsense"
    np.random.seed(0)
    os.chdir("/")
    return add(x, y)


def overwrites(x, y):
    """A host stage that writes into the arrays of the suite."""
    x[...] = 0
    return x, y


FUNCTIONS = (
    one_argument, asks_for_more, transposed, one_row, bfloat16, two_results, nothing, text,
    leaves, interrupts, changes_the_process, right,
)
KERNELS = (
    Kernel(case="add", name="overwrites", fn=right, prepare=overwrites),
    *(Kernel(case="add", name=fn.__name__, fn=fn) for fn in FUNCTIONS),
)
'''

EXPECTED = {
    "overwrites": ("WRONG", "elements wrong"),
    "one_argument": ("REJECTED", "TypeError: .*takes 1 positional argument but 2 were given"),
    "asks_for_more": ("REJECTED", "TypeError: .*missing 1 required positional argument: 'scale'"),
    "transposed": ("WRONG", r"shape \(128, 8\), expected \(8, 128\)"),
    "one_row": ("WRONG", r"shape \(1, 128\), expected \(8, 128\)"),
    "bfloat16": ("WRONG", "dtype bfloat16, expected float32"),
    "two_results": ("WRONG", "2 results, expected 1"),
    "nothing": ("WRONG", "0 results, expected 1"),
    "text": ("REJECTED", "TypeError: .*str"),
    "leaves": ("CRASH", "the process died"),
    "interrupts": ("CRASH", "the process died"),
    "changes_the_process": ("PASS", ""),
    "right": ("PASS", ""),
}
MODES = ("interpret", "tpu-interpret")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory, python):
    """(kernel, mode) -> the row of its verdict on one example."""
    folder = tmp_path_factory.mktemp("bad subjects")
    (folder / "subject.py").write_text(SUBJECT)
    run = python(
        *("-m", "pytest", "-p", "no:cacheprovider", "-q", f"--subject={folder / 'subject.py'}"),
        *(f"--mode={','.join(MODES)}", f"--report={folder}"),
        "--replay=add/m=8,n=128,bm=8,bn=128,dtype=float32,inputs=exact,seed=0",
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "INTERNALERROR" not in run.stdout and " error" not in run.stdout.splitlines()[-1]
    return {(r["kernel"], r["mode"]): r for r in read(folder / "results.jsonl")}


def test_every_kernel_is_judged(verdicts):
    assert set(verdicts) == {(kernel, mode) for kernel in EXPECTED for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", EXPECTED)
def test_a_bad_kernel_gets_a_status_and_a_reason(verdicts, kernel, mode):
    status, why = EXPECTED[kernel]
    found = verdicts[kernel, mode]
    assert found["status"] == status, found["why"]
    assert re.search(why, found["why"], re.DOTALL), found["why"]
