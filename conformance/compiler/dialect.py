"""What the engine knows of the compiler's intermediate forms: pass names, labels, parsing.

Passes are told apart by name; their numbers shift between libtpu versions.
"""

from __future__ import annotations

import base64
import functools
import itertools
import re
from typing import Any

# What JAX's lowering produced: vectors of any shape, nearly independent of the chip.
ORIGINAL = "original"
# Vectors cut into native registers for one chip; the last level that libtpu 0.0.42 and 0.0.50
# both have under one name and whose dialect JAX's own bindings parse.
VREG = "post-apply-vector-layout-simplify"
KEPT_PASSES: tuple[str, ...] = (ORIGINAL, VREG)

# The schedule after register allocation. The later `final_bundles` has its delays stripped.
BUNDLES_LABEL = "packed-bundles-post-ra"

# Names of code that libtpu adds around the program; the program itself is TLP.
PROGRAM = "TLP"
GENERATED_STEMS = (PROGRAM, "<late-initialization>", "<late-finalization>")
KERNEL_TARGET = "tpu_custom_call"

# libtpu 0.0.42 prints a rotation by a constant as an operation that no public dialect has.
_ROTATE = re.compile(
    r"%(?P<result>\S+) = tpu\.rotate (?P<value>%\S+) by (?P<amount>\d+) dim (?P<dim>\d+)"
    r" : (?P<type>vector<[^>]*>)"
)
_DYNAMIC_ROTATE = (
    r"%amount_\g<result> = arith.constant \g<amount> : i32\n"
    r'%\g<result> = "tpu.dynamic_rotate"(\g<value>, %amount_\g<result>)'
    r" <{dimension = \g<dim> : si32}> : (\g<type>, i32) -> \g<type>"
)

_BODY = re.compile(r"\\22body\\22: \\22(?P<code>[A-Za-z0-9+/=]*)\\22")
_LOCATIONS = re.compile(r",? ?\\22debug_locations\\22: \\22[A-Za-z0-9+/=]*\\22")


def parse(code: str | bytes) -> Any:
    """An `ir.Module` of a Mosaic dump (text), or of a serialised kernel (bytes).

    Rotations by a constant become `tpu.dynamic_rotate` of a constant. Attributes of dialects
    that JAX does not bind (vector layouts), and the serialised form's operations, are opaque.

    Raises:
      jaxlib.mlir.ir.MLIRError: not parsable; names the operation.
    """
    from jaxlib.mlir import ir

    if isinstance(code, str):
        code = _ROTATE.sub(_DYNAMIC_ROTATE, code)
    with _context():
        return ir.Module.parse(code)


def canonical(module: str) -> str:
    """The lowered module with its kernels readable and without source locations.

    Equal for equal kernels wherever their source stands, so it can be hashed. JAX 0.10 keeps
    locations inside the serialised kernel, JAX 0.12 in a field of their own.
    """
    return _BODY.sub(_readable, _LOCATIONS.sub("", module))


def _readable(match: re.Match[str]) -> str:
    module = parse(base64.b64decode(match["code"]))
    return f"\\22body\\22: {module.operation.get_asm(enable_debug_info=False)}"


_USES = itertools.count()
_USES_OF_ONE = 100  # types and attributes are never freed while their context lives


def _context() -> Any:
    """A context of our own: JAX reuses its contexts, and unregistered dialects would leak."""
    return _new_context(next(_USES) // _USES_OF_ONE)


@functools.lru_cache(maxsize=1)
def _new_context(generation: int) -> Any:
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jaxlib.mlir import ir

    context = ir.Context()
    context.append_dialect_registry(mlir.upstream_dialects)
    context.load_all_available_dialects()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context
