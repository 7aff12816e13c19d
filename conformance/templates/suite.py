"""Finds the suite that judges here: the copy in this folder, or the installed package.

Made by `conformance vendor`, which replaces it; what is yours to edit is the test file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "vendored.json"
COPY = "conformance_vendored"
AGAIN = "vendor the cases again with `conformance vendor`"


class Unusable(Exception):
    """Why nothing can be judged, in one sentence."""


def session(test_file: str, **constants: Any) -> Any:
    """The tests of a file beside this one; see `conformance.vendored.session`.

    What is wrong fails the collection of the file with one line.
    """
    try:
        vendored = _module()
        try:
            return vendored.session(HERE, Path(test_file).resolve(), **constants)
        except vendored.VendoredError as e:
            raise Unusable(str(e)) from e
    except Unusable as e:
        problem = str(e)
    pytest.fail(problem, pytrace=False)


def _module() -> ModuleType:
    manifest = _manifest()
    package = _copied() if manifest["engine"] == "copied" else _installed(manifest["suite"])
    return importlib.import_module(f"{package.__name__}.vendored")


def _manifest() -> Any:
    try:
        manifest = json.loads(MANIFEST.read_text())
        if not (isinstance(manifest["suite"], str) and isinstance(manifest["engine"], str)):
            raise TypeError("suite and engine must be strings")
        return manifest
    except FileNotFoundError:
        raise Unusable(f"{MANIFEST} is missing: {AGAIN}") from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Unusable(f"{MANIFEST} is damaged ({type(e).__name__}: {e}): {AGAIN}") from None


def _installed(suite: str) -> ModuleType:
    """The installed package, if it can run cases of version `suite`."""
    need = f"the cases in {HERE} are of conformance {suite}"
    try:
        package = importlib.import_module("conformance")
    except ModuleNotFoundError as e:
        raise Unusable(
            f"{need}, and the package {e.name} is not installed: pip install "
            f"'pallas-tpu-conformance=={suite}', or vendor the cases --with-engine"
        ) from None
    found = getattr(package, "__version__", None)
    if not isinstance(found, str) or not _compatible(found, suite):
        raise Unusable(
            f"{need}, and the installed one is {found} ({package.__file__}): install one that "
            f"fits, or bring the cases up to date with `conformance vendor {HERE} --update`"
        )
    return package


def _compatible(installed: str, vendored: str) -> bool:
    """Not older, and of the same major version; before 1.0 of the same minor version."""
    have, need = _numbers(installed), _numbers(vendored)
    same = 1 if need[0] else 2
    return have >= need and have[:same] == need[:same]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")[:3] if n.isdigit()) or (0,)


def _copied() -> ModuleType:
    """The copy beside this file, imported under a name that no installed package has."""
    folder = HERE / "_engine" / COPY
    if COPY in sys.modules:
        other = Path(str(sys.modules[COPY].__file__)).parent
        if other != folder:
            raise Unusable(f"the engine in {other} is in use already: one process runs one copy")
        return sys.modules[COPY]
    spec = importlib.util.spec_from_file_location(
        COPY, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise Unusable(f"there is no engine in {folder}: {AGAIN}")
    package = sys.modules[COPY] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
        importlib.import_module(f"{COPY}.vendored")
    except ModuleNotFoundError as e:
        for name in [n for n in sys.modules if n.partition(".")[0] == COPY]:
            del sys.modules[name]
        raise Unusable(f"the engine in {folder} needs the package {e.name}") from None
    return package
