"""Shared fixtures of the suite's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from conformance.case import Case
from conformance.loading import load_cases

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes minutes; runs with --run-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests are deselected, and counted as such, unless they were asked for."""
    if config.getoption("--run-slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def cases() -> Mapping[str, Case]:
    """The bundled cases by name."""
    return load_cases()


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this interpreter in the checkout, as a user would."""

    def run(
        *args: str, cwd: Path = ROOT, timeout: float = 120.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        return subprocess.run(
            [sys.executable, *args],
            cwd=cwd,
            env=inherited | {"JAX_PLATFORMS": "cpu", "COLUMNS": "120"} | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory, python) -> Path:
    """A wheel of this checkout."""
    pytest.importorskip("hatchling")
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("wheel")
    build = ("-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check")
    run = python(*build, "--outdir", str(out))
    assert run.returncode == 0, run.stdout + run.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def site(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel installed, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder
