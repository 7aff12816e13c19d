"""Compiling a kernel for a TPU that is not here: Mosaic, libtpu's code generator, their dumps.

Runs inside a child process that was started with `environment(dump_dir)`; some inputs abort the
process or take minutes, and the flags that make the dumps are read once, when libtpu loads.
"""

from conformance.compiler.dialect import ORIGINAL, VREG, parse
from conformance.compiler.dumps import Bundles, Mosaic, Vmem
from conformance.compiler.engine import (
    Compiled,
    Lowered,
    compile_for,
    compile_lowered,
    lower_for,
)
from conformance.compiler.process import availability, dump_dir, environment, version
from conformance.compiler.refusal import Refused

__all__ = [
    "ORIGINAL",
    "VREG",
    "Bundles",
    "Compiled",
    "Lowered",
    "Mosaic",
    "Refused",
    "Vmem",
    "availability",
    "compile_for",
    "compile_lowered",
    "dump_dir",
    "environment",
    "lower_for",
    "parse",
    "version",
]
