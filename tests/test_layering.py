"""Who may import whom, read from the source; each rule is shown to catch a violation."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "conformance/**/*.py"
CASES = "cases/*.py"
KERNELS = "reference_kernels/*.py"
TESTS = "tests/*.py"
EVERYTHING = (ENGINE, CASES, KERNELS, TESTS, "*.py", "tools/*.py", "subjects/*.py")


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
      module: dotted name; for `from a import b` it is "a.b", which may be a module.
      level: dots of a relative import.
      typing: under `if TYPE_CHECKING`.
      lazy: inside a function.
    """

    module: str
    level: int = 0
    typing: bool = False
    lazy: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def within(self, *packages: str) -> bool:
        """Whether it is one of the packages or below one."""
        return any(f"{self.module}.".startswith(f"{p}.") for p in packages)


def imports(tree: ast.AST, typing: bool = False, lazy: bool = False) -> Iterator[Import]:
    """Every import statement below `tree`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, 0, typing, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            for alias in node.names:
                yield Import(f"{base}{alias.name}", node.level, typing, lazy)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(ast.Module(node.body, []), True, lazy)
            yield from imports(ast.Module(node.orelse, []), typing, lazy)
        else:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(node, typing, lazy or function)


def named(tree: ast.AST) -> Iterator[str]:
    """Names of parameters and of keyword arguments."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.arg, ast.keyword)) and node.arg:
            yield node.arg


def words(tree: ast.AST) -> Iterator[str]:
    """Names and attributes that code mentions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def standard(found: Import) -> bool:
    return found.level == 0 and found.top in sys.stdlib_module_names


# --------------------------------------------------------------------------- the rules


def records_import_numpy_only(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if not (standard(found) or found.typing or (found.top == "numpy" and not found.level)):
            yield f"imports {found.module}"


def engine_without_jax(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if found.within("jax", "jaxlib", "libtpu"):
            yield f"imports {found.module}"


def engine_with_lazy_jax(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if found.within("jax", "jaxlib", "libtpu") and not (found.lazy or found.typing):
            yield f"imports {found.module} when it is imported itself"


def engine_without_pytest(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if found.within("pytest", "_pytest", "xdist", "pytest_benchmark"):
            yield f"imports {found.module}"


def kernels_import_jax(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if not (standard(found) or found.level == 1 or found.within("jax", "numpy")):
            yield f"imports {found.module}"


def kernel_table_imports(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        if not (standard(found) or found.level == 1 or found.within("jax", "conformance")):
            yield f"imports {found.module}"


def kernels_know_no_interpreter(tree: ast.Module) -> Iterator[str]:
    for name in named(tree):
        if name in ("interpret", "debug"):
            yield f"has an argument {name}"


def cases_stand_alone(tree: ast.Module) -> Iterator[str]:
    allowed = ("conformance", "numpy", "ml_dtypes", "hypothesis")
    for found in imports(tree):
        from_jax = found.module == "jax" or found.within("jax.numpy", "jax.lax")
        if found.level or not (standard(found) or from_jax or found.within(*allowed)):
            yield f"imports {'.' * found.level}{found.module}"
    for word in words(tree):
        if word in ("pallas", "pallas_call", "experimental", "_src"):
            yield f"uses {word}"


def cases_and_kernels_are_loaded_by_name(tree: ast.Module) -> Iterator[str]:
    for found in imports(tree):
        packages = ("cases", "reference_kernels")
        below = tuple(f"conformance.{p}" for p in packages)
        if not found.level and found.within(*packages, *below):
            yield f"imports {found.module}"


def no_literal_tolerance(tree: ast.Module) -> Iterator[str]:
    for name in named(tree):
        if name in ("atol", "rtol"):
            yield f"has an argument {name}"
    for word in words(tree):
        if word in ("allclose", "assert_allclose", "isclose", "approx"):
            yield f"uses {word}, which brings its own tolerance"


def has_docstring(tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "has no module docstring"


@dataclass(frozen=True)
class Rule:
    """A check of the files that match `files` and none of `but`; `bad` must violate it."""

    check: Callable[[ast.Module], Iterable[str]]
    files: tuple[str, ...]
    bad: str
    but: tuple[str, ...] = ()


OWN_JAX = (
    "conformance/chips.py",
    "conformance/modes/**/*.py",
    "conformance/properties/**/*.py",
    "conformance/compiler/**/*.py",
)
OWN_PYTEST = (
    "conformance/plugin.py",
    "conformance/outcome.py",
    "conformance/test_conformance.py",
    "conformance/templates/*.py",
)
RECORDS = ("conformance/case.py", "conformance/verdict.py")
BASELINE = "conformance/serve.py"
TABLE = "reference_kernels/__init__.py"

RULES = (
    Rule(records_import_numpy_only, RECORDS, "from conformance.numerics import bits"),
    Rule(engine_without_jax, (ENGINE,), "def f():\n    import jax.numpy", (*OWN_JAX, BASELINE)),
    Rule(engine_with_lazy_jax, (BASELINE,), "from jax import jit"),
    Rule(engine_without_pytest, (ENGINE,), "def f():\n    import pytest", OWN_PYTEST),
    Rule(kernels_import_jax, (KERNELS,), "import conformance", (TABLE,)),
    Rule(kernel_table_imports, (TABLE,), "from hypothesis import given"),
    Rule(kernels_know_no_interpreter, (KERNELS,), "pl.pallas_call(body, interpret=True)"),
    Rule(kernels_know_no_interpreter, (KERNELS,), "def add(x, y, *, interpret=False): ..."),
    Rule(cases_stand_alone, (CASES,), "from jax.experimental import pallas as pl"),
    Rule(cases_stand_alone, (CASES,), "import jax\njax.experimental.pallas.pallas_call"),
    Rule(cases_stand_alone, (CASES,), "from .matmul import make"),
    Rule(cases_stand_alone, (CASES,), "from reference_kernels import add"),
    Rule(cases_and_kernels_are_loaded_by_name, EVERYTHING, "import cases.add"),
    Rule(
        cases_and_kernels_are_loaded_by_name,
        EVERYTHING,
        "from conformance import reference_kernels",
    ),
    Rule(no_literal_tolerance, EVERYTHING, "check(x, y, atol=1e-2)", ("conformance/numerics.py",)),
    Rule(no_literal_tolerance, EVERYTHING, "np.allclose(x, y)", ("conformance/numerics.py",)),
    Rule(has_docstring, EVERYTHING, "import os"),
)


def files_of(rule: Rule) -> list[Path]:
    left_out = {path for pattern in rule.but for path in ROOT.glob(pattern)}
    return sorted({path for p in rule.files for path in ROOT.glob(p)} - left_out)


each_rule = pytest.mark.parametrize(
    "rule", RULES, ids=[f"{rule.check.__name__}-{n}" for n, rule in enumerate(RULES)]
)


@each_rule
def test_the_tree_obeys(rule):
    files = files_of(rule)
    assert files
    found = [
        f"{path.relative_to(ROOT)} {what}"
        for path in files
        for what in rule.check(ast.parse(path.read_text()))
    ]
    assert not found


@each_rule
def test_the_rule_can_fail(rule):
    assert list(rule.check(ast.parse(rule.bad)))


def test_imports_are_seen_where_they_stand():
    source = """
import a
if TYPE_CHECKING:
    import b
def f():
    from c import d
try:
    from . import e
except ImportError: ...
"""
    found = list(imports(ast.parse(source)))
    assert found == [
        Import("a"),
        Import("b", typing=True),
        Import("c.d", lazy=True),
        Import("e", level=1),
    ]


def test_every_file_is_under_some_rule():
    """A new folder of the engine cannot stay outside."""
    watched = {path for rule in RULES for path in files_of(rule)}
    present = {
        p
        for folder in ("conformance", "cases", "reference_kernels")
        for p in (ROOT / folder).rglob("*.py")
    }
    assert present <= watched
