"""Judges kernels of this repository by the vendored conformance cases; run it with pytest.

This file and expectations.toml are yours: `conformance vendor --update` leaves them alone.
"""

import importlib.util
from pathlib import Path

import pytest

# Paths are relative to this file.
SUBJECT = "my_kernels.py"  # a file or package with KERNELS, or a module's name
MODES = ("interpret", "tpu-interpret")  # also "aot", "emulate"; () is whatever runs here
CHIPS = ()  # for "aot" and "emulate": "v5e", ...; () is the suite's own choice
MAX_EXAMPLES = None  # generated points of each case; None is the suite's own number
EXPECTATIONS = "expectations.toml"  # known failures

SPEC = importlib.util.spec_from_file_location("_suite", Path(__file__).with_name("_suite.py"))
assert SPEC is not None and SPEC.loader is not None
suite = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(suite)
SESSION = suite.session(
    __file__,
    subject=SUBJECT,
    modes=MODES,
    chips=CHIPS,
    max_examples=MAX_EXAMPLES,
    expectations=EXPECTATIONS,
)


@pytest.mark.parametrize(("kernel", "column"), SESSION.pairs, ids=SESSION.ids)
def test_conforms(kernel, column):  # type: ignore[no-untyped-def]
    """Every example is judged; one that fails does not end the others."""
    SESSION.check(kernel, column)
