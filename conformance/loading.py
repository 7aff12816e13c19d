"""Finds cases and subjects by name or path. Nothing imports them by statement."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema

from conformance.case import Case, Example, Kernel, Negative, Params

_PACKAGE = Path(__file__).resolve().parent
_SCHEMAS = _PACKAGE / "schemas"

DEFAULT_SUBJECT = "reference_kernels"

# A folder that `conformance vendor` made holds this file; its case files are in `cases` in it.
MANIFEST = "vendored.json"

_NAME = re.compile(r"[\w.+-]+", re.ASCII)


class LoadError(ValueError):
    """A case file, pinned example or subject that cannot be used; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A named tuple of kernels and where it was loaded from (child processes load it again)."""

    spec: str
    kernels: tuple[Kernel, ...]

    def find(self, case: str, name: str) -> Kernel:
        """The kernel `name` of `case`; LoadError if there is none."""
        for kernel in self.kernels:
            if (kernel.case, kernel.name) == (case, name):
                return kernel
        raise LoadError(f"subject {self.spec!r} has no kernel {name!r} for case {case!r}")


def bundled(folder: str) -> Path:
    """`cases` or `reference_kernels`: inside the installed package, or beside it."""
    inside = _PACKAGE / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def schema(name: str) -> dict[str, Any]:
    """A JSON schema of the suite: "pinned", "results", "targets" or "manifest"."""
    return json.loads((_SCHEMAS / f"{name}.schema.json").read_text())


# --------------------------------------------------------------------------- modules


def _load_path(path: Path, name: str) -> ModuleType:
    """Imports a file or a package directory under a private name (once per process)."""
    if name in sys.modules:
        return sys.modules[name]
    file = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    if spec is None or spec.loader is None or not file.is_file():
        raise LoadError(f"{path} is not a Python file or package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _as_conformance():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _private_name(prefix: str, path: Path) -> str:
    safe = "".join(c if c.isalnum() else "_" for c in str(path.resolve()))
    return f"{__package__}_{prefix}_{safe}"


@contextlib.contextmanager
def _as_conformance() -> Iterator[None]:
    """What is imported inside means this suite by `conformance`, whatever this suite is called.

    A copy of the engine in another repository has a name of its own, so that it does not get in
    the way of an installed suite; case files and subjects are the same for both.
    """
    if __package__ == "conformance":
        yield
        return
    installed = _modules_of("conformance")
    own = _modules_of(__package__)
    _replace("conformance", {f"conformance{n.removeprefix(__package__)}": own[n] for n in own})
    try:
        yield
    finally:
        _replace("conformance", installed)


def _modules_of(package: str) -> dict[str, ModuleType]:
    """The package and what is below it, as far as they are imported."""
    return {n: m for n, m in sys.modules.items() if n == package or n.startswith(f"{package}.")}


def _replace(package: str, modules: Mapping[str, ModuleType]) -> None:
    for name in _modules_of(package):
        del sys.modules[name]
    sys.modules.update(modules)


# --------------------------------------------------------------------------- cases


@cache
def load_cases(extra: tuple[str, ...] = ()) -> Mapping[str, Case]:
    """All bundled cases by name, in file order, and those of `extra` files or folders.

    A vendored folder among `extra` takes the place of the bundled cases: its own are judged by,
    not those of the suite that happens to be installed.
    """
    cases: dict[str, Case] = {}
    for folder in _case_folders(tuple(map(Path, extra))):
        for file in case_scripts(folder):
            for case in load_case_file(file):
                if case.name in cases:
                    raise LoadError(f"case {case.name!r} of {file} is defined twice")
                cases[case.name] = case
    return cases


def _case_folders(extra: tuple[Path, ...]) -> list[Path]:
    vendored = [place for place in extra if (place / MANIFEST).is_file()]
    found = [place / "cases" if place in vendored else place for place in extra]
    return found if vendored else [bundled("cases"), *found]


def case_scripts(folder: Path) -> list[Path]:
    """The case files in a folder, or the one file."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise LoadError(f"no case file or folder at {str(folder)!r}")
    return sorted(f for f in folder.glob("*.py") if not f.name.startswith("_"))


def load_case_file(file: Path) -> list[Case]:
    """The cases of one file with their pinned rows; LoadError for what is wrong in either."""
    module = _load_path(file, _private_name("case", file))
    cases = getattr(module, "CASES", None)
    if not isinstance(cases, tuple) or not all(isinstance(c, Case) for c in cases):
        raise LoadError(f"{file} must define CASES, a tuple of conformance.Case")
    rows = _read_rows(file.with_suffix(".json"), cases)
    return [replace(case, rows=tuple(rows.get(case.name, ()))) for case in cases]


def _read_rows(file: Path, cases: tuple[Case, ...]) -> Mapping[str, Any]:
    """The pinned rows of a case file, checked: schema, names, domain and unique ids."""
    if not file.is_file():
        return {}
    try:
        rows = json.loads(file.read_text())
        jsonschema.validate(rows, schema("pinned"))
    except json.JSONDecodeError as e:
        raise LoadError(f"{file}: not JSON: {e}") from e
    except jsonschema.ValidationError as e:
        where = "/".join(str(p) for p in e.absolute_path)
        raise LoadError(f"{file}: pinned example {where}: {e.message}") from e
    by_name = {case.name: case for case in cases}
    seen: set[tuple[str, str]] = set()
    for name, items in rows.items():
        if name not in by_name:
            raise LoadError(f"{file}: no case {name!r} in {file.with_suffix('.py').name}")
        for row in items:
            if (name, row["id"]) in seen:
                raise LoadError(f"{file}: pinned id {row['id']!r} of {name} is used twice")
            seen.add((name, row["id"]))
            _check_row(by_name[name], row, file)
    return rows


def _check_row(case: Case, row: Mapping[str, Any], file: Path) -> None:
    from conformance.modes import MODES

    where = f"{file}: pinned example {row['id']!r}"
    try:
        check_params(case, row["params"])
    except ValueError as e:
        raise LoadError(f"{where}: {e}") from e
    legal = case.inputs(row["params"])
    for kind in row.get("inputs", ()):
        if kind not in legal:
            raise LoadError(f"{where}: inputs {kind!r} is not one of {', '.join(legal)}")
    for mode in row.get("modes", ()):
        if mode not in MODES:
            raise LoadError(f"{where}: mode {mode!r} is not one of {', '.join(MODES)}")


@cache
def data_rows(file: Path, what: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a file of data beside the cases, as its schema has them.

    Args:
      what: a row is, "target" or "benchmark"; the schema has the plural's name.

    Raises:
      LoadError: not JSON, or not of the schema.
    """
    try:
        rows = json.loads(file.read_text())
        jsonschema.validate(rows, schema(f"{what}s"))
    except (OSError, json.JSONDecodeError) as e:
        raise LoadError(f"{file}: not readable as JSON: {e}") from e
    except jsonschema.ValidationError as e:
        where = "/".join(str(p) for p in e.absolute_path)
        raise LoadError(f"{file}: {what} {where}: {e.message}") from e
    return tuple(rows)


def check_params(case: Case, params: Params) -> None:
    """Raises ValueError naming the first parameter that is missing, unknown or out of range."""
    for name in params:
        if name not in case.params:
            known = ", ".join(case.params)
            raise ValueError(f"{case.name} has no parameter {name!r}; it has {known}")
    for name, param in case.params.items():
        if name not in params:
            raise ValueError(f"{case.name}: parameter {name!r} is missing")
        value = params[name]
        if param.kind in ("size", "count", "block"):
            least = 0 if param.kind == "count" else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        elif value not in param.choices:
            choices = ", ".join(map(str, param.choices))
            raise ValueError(f"{name} must be one of {choices}, got {value!r}")
    case.check(params)


# --------------------------------------------------------------------------- subjects


@cache
def load_subject(spec: str, cases: tuple[str, ...]) -> Subject:
    """Loads `path/to/file.py`, a package folder or a module, with an optional `:ATTRIBUTE`.

    Args:
      spec: where the tuple of kernels is; the attribute is `KERNELS` unless given.
      cases: names of the known cases, which every kernel's `case` must be among.

    Raises:
      LoadError: with the one thing that is wrong.
    """
    place, _, attribute = spec.partition(":")
    attribute = attribute or "KERNELS"
    try:
        module = _subject_module(place)
    except LoadError:
        raise
    except (Exception, SystemExit) as e:
        raise LoadError(f"subject {spec!r} failed to load: {type(e).__name__}: {e}") from e
    kernels = getattr(module, attribute, None)
    if kernels is None:
        raise LoadError(f"subject {spec!r} has no attribute {attribute!r}, a tuple of Kernel")
    _check_kernels(spec, kernels, cases)
    return Subject(spec, tuple(kernels))


def _subject_module(place: str) -> ModuleType:
    if place == DEFAULT_SUBJECT:
        return _load_path(bundled(DEFAULT_SUBJECT), "conformance_reference_kernels")
    path = Path(place)
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise LoadError(f"subject {place!r} is a folder without __init__.py: name a file in it")
    if path.is_file() and str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))  # so that it can import its neighbours
    if path.exists():
        return _load_path(path, _private_name("subject", path))
    if path.suffix == ".py" or "/" in place:
        raise LoadError(f"subject {place!r}: no such file")
    try:
        with _as_conformance():
            return importlib.import_module(place)
    except ModuleNotFoundError as e:
        raise LoadError(f"subject {place!r}: no such file, and no such module ({e})") from e


def subject_folder(spec: str) -> Path:
    """Where a subject's own files are: the folder of its module."""
    place = spec.partition(":")[0]
    if place == DEFAULT_SUBJECT:
        return bundled(DEFAULT_SUBJECT)
    path = Path(place)
    if not path.exists():
        found = importlib.util.find_spec(place)
        path = Path(found.origin) if found is not None and found.origin else path
    return path if path.is_dir() else path.parent


def _check_kernels(spec: str, kernels: Any, cases: tuple[str, ...]) -> None:
    if not isinstance(kernels, (tuple, list)) or not kernels:
        raise LoadError(f"subject {spec!r}: KERNELS must be a non-empty tuple of Kernel")
    seen = set()
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise LoadError(f"subject {spec!r}: {kernel!r} is not a conformance.Kernel")
        if kernel.case not in cases:
            raise LoadError(
                f"subject {spec!r}: kernel {kernel.name!r} claims case {kernel.case!r}, "
                f"which is not one of {', '.join(cases)}"
            )
        if not callable(kernel.fn):
            raise LoadError(f"subject {spec!r}: kernel {kernel.name!r}: fn is not callable")
        if not _NAME.fullmatch(kernel.name):
            raise LoadError(
                f"subject {spec!r}: kernel name {kernel.name!r} must consist of letters, digits, "
                "'_', '.', '+' and '-'"
            )
        if (kernel.case, kernel.name) in seen:
            raise LoadError(f"subject {spec!r}: {kernel.case}/{kernel.name} is there twice")
        seen.add((kernel.case, kernel.name))


def check_properties(subject: Subject, cases: Mapping[str, Case]) -> None:
    """LoadError for the first property that a kernel claims and that is unknown, or that the
    kernel or its case lacks something for."""
    from conformance.properties import PROPERTIES

    for kernel in subject.kernels:
        where = f"subject {subject.spec!r}: {kernel.case}/{kernel.name}"
        claimed = kernel.properties
        if not isinstance(claimed, tuple) or len(set(claimed)) < len(claimed):
            raise LoadError(f"{where}: properties must be a tuple of unlike names, got {claimed!r}")
        for name in claimed:
            if name not in PROPERTIES:
                known = ", ".join(PROPERTIES)
                raise LoadError(f"{where}: unknown property {name!r}; known: {known}")
            why = PROPERTIES[name].lacks(cases[kernel.case], kernel)
            if why is not None:
                raise LoadError(f"{where} cannot claim property {name!r}: {why}")


def negative_example(case: Case, negative: Negative) -> Example:
    """The example that stands for a negative one; its id replays it."""
    return Example(
        case=case.name,
        params=negative.params,
        inputs=negative.inputs,
        seed=0,
        pinned=f"negative-{negative.name}",
    )
