"""Copies cases into another repository, and says later what has changed on either side.

    conformance vendor DIR                       cases, for an installed conformance package
    conformance vendor DIR --cases add,matmul    only the files of these
    conformance vendor DIR --with-engine         with a copy of the engine: nothing to install
    conformance vendor DIR --check | --update | --list

Exit status: 0 done, or nothing has changed; 1 files were edited in DIR (--check), or an edited
file is in the way of its new version (--update, which then changes nothing); 2 an argument, the
folder or its manifest cannot be used; 3 DIR is behind this version of the suite (--check).
The test file and expectations.toml in DIR belong to its repository: they are made once and are
neither checked nor updated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import jsonschema
from packaging.version import InvalidVersion, Version

from conformance import __version__
from conformance.loading import (
    MANIFEST,
    LoadError,
    bundled,
    case_scripts,
    load_case_file,
    load_cases,
    schema,
)

# The name of the copied engine, in which no installed package can be meant.
COPY = "conformance_vendored"

EDITED, REFUSED, BEHIND = 1, 2, 3

# Left out of a copied engine: what pytest or a shell starts, and what only they need.
LEFT_OUT = (
    "__main__.py",
    "cli.py",
    "importing.py",
    "plugin.py",
    "shapes.py",
    "starting.py",
    "sweeping.py",
    "test_conformance.py",
    "vendor.py",
)
NOT_ENGINE = ("cases", "reference_kernels", "report", "templates", "__pycache__")

_PACKAGE = Path(__file__).resolve().parent
_OWN_IMPORT = re.compile(r"^(\s*(?:from|import) )conformance\b", re.MULTILINE)

TEST_FILE = "test_conformance_cases.py"
EXPECTATIONS = """# Known failures of this repository's kernels; this file is yours. An entry:
#
# [[expectation]]
# case = "matmul"
# kernel = "mine"
# mode = "interpret"
# status = "WRONG"
# signature = "elements wrong"
# reason = "why, in one sentence"
# link = "https://github.com/..."
"""


class VendorError(ValueError):
    """A folder or manifest that cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was copied.

    Attributes:
      suite: version of the suite that it was copied from.
      engine: "copied", or "installed" when the cases need an installed package.
      cases: names that were asked for; empty means all.
      files: path below the folder -> hash of its content.
    """

    suite: str
    engine: str
    cases: tuple[str, ...]
    files: Mapping[str, str]

    def dumps(self) -> str:
        """JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a vendored folder.

    Raises:
      VendorError: missing, damaged, or made by a newer suite.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise VendorError(f"{folder} was not made by `conformance vendor`: it has no {MANIFEST}")
    try:
        found = json.loads(file.read_text())
        made_by = Version(found["suite"])
    except (OSError, ValueError, KeyError, TypeError, InvalidVersion) as e:
        raise VendorError(f"{file} is damaged ({type(e).__name__}: {e}): restore it") from e
    if made_by > Version(__version__):
        raise VendorError(
            f"{folder} was made by conformance {made_by}, which is newer than this one, "
            f"{__version__}: install {made_by} or newer"
        )
    try:
        jsonschema.validate(found, schema("manifest"))
    except jsonschema.ValidationError as e:
        where = "/".join(map(str, e.absolute_path)) or "the whole"
        raise VendorError(f"{file} is damaged ({where}: {e.message}): restore it") from e
    for path in found["files"]:
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise VendorError(f"{file} is damaged ({path} is not below {folder}): restore it")
    return Manifest(**found | {"cases": tuple(found["cases"])})


# --------------------------------------------------------------------------- what is copied


def contents(cases: tuple[str, ...], engine: str) -> dict[str, bytes]:
    """What this suite copies: path below the folder -> content.

    Raises:
      VendorError: an unknown case.
    """
    found = {f"cases/{file.name}": file.read_bytes() for file in _case_files(cases)}
    for name in ("pinned", "manifest"):
        path = f"schemas/{name}.schema.json"
        found[path] = (_PACKAGE / path).read_bytes()
    found["_suite.py"] = (_PACKAGE / "templates" / "suite.py").read_bytes()
    return found | (_engine() if engine == "copied" else {})


def _case_files(cases: tuple[str, ...]) -> list[Path]:
    """The Python file of each case and the pinned examples beside it."""
    known = load_cases()
    for name in cases:
        if name not in known:
            raise VendorError(f"--cases {name}: unknown; known: {', '.join(known)}")
    wanted = [
        script
        for script in case_scripts(bundled("cases"))
        if not cases or set(cases) & {case.name for case in load_case_file(script)}
    ]
    return [f for script in wanted for f in (script, script.with_suffix(".json")) if f.is_file()]


def _engine() -> dict[str, bytes]:
    """The engine under its private name. Case files keep theirs: loading them gives
    `conformance` the meaning of the engine that loads them."""
    found = {}
    for file in sorted(p for p in _PACKAGE.rglob("*") if p.suffix in (".py", ".json")):
        inside = file.relative_to(_PACKAGE)
        if inside.parts[0] in NOT_ENGINE or "__pycache__" in inside.parts:
            continue
        if inside.as_posix() not in LEFT_OUT:
            text = file.read_text()
            renamed = _OWN_IMPORT.sub(rf"\g<1>{COPY}", text) if file.suffix == ".py" else text
            found[f"_engine/{COPY}/{inside.as_posix()}"] = renamed.encode()
    return found


def digest(content: bytes) -> str:
    """sha256, the same for either kind of line end: Git may change them on the way."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


# --------------------------------------------------------------------------- how files stand


@dataclass(frozen=True, kw_only=True)
class State:
    """One file in three places, each as a hash or None.

    Attributes:
      local: in the folder.
      recorded: in the manifest.
      upstream: in this suite.
    """

    local: str | None
    recorded: str | None
    upstream: str | None

    @property
    def edited(self) -> bool:
        """Neither what was copied nor what would be copied now."""
        return self.local not in (self.recorded, self.upstream)

    @property
    def behind(self) -> bool:
        """This suite would copy something else than was copied."""
        return self.recorded != self.upstream

    @property
    def conflicting(self) -> bool:
        """An edited file that has a new version, or a file that is where a new one belongs."""
        return self.edited and self.behind and self.local is not None

    def __str__(self) -> str:
        if self.local is None and self.recorded is not None:
            return "missing"
        words = ["edited"] if self.edited else []
        words += ["behind"] if self.behind else []
        return ", ".join(words) or "unchanged"


def states(folder: Path, manifest: Manifest, upstream: Mapping[str, bytes]) -> dict[str, State]:
    """Every file that the manifest or this suite knows."""
    return {
        path: State(
            local=_local(folder / path),
            recorded=manifest.files.get(path),
            upstream=digest(upstream[path]) if path in upstream else None,
        )
        for path in sorted({*manifest.files, *upstream})
    }


def _local(file: Path) -> str | None:
    if file.is_dir():
        raise VendorError(f"{file} is a folder where a file belongs")
    return digest(file.read_bytes()) if file.is_file() else None


# --------------------------------------------------------------------------- the commands


def create(folder: Path, cases: tuple[str, ...], engine: str) -> list[str]:
    """Copies into a folder that is new or empty; lines about what was made.

    Raises:
      VendorError: something is there.
    """
    if (folder / MANIFEST).exists():
        raise VendorError(f"{folder} holds vendored cases already: use --update or --check")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise VendorError(f"{folder} is in the way: it is not an empty folder")
    upstream = contents(cases, engine)
    _write(folder, upstream)
    (folder / TEST_FILE).write_bytes((_PACKAGE / "templates" / "ready.py").read_bytes())
    (folder / "expectations.toml").write_text(EXPECTATIONS)
    _record(folder, cases, engine, upstream)
    needs = "with its engine" if engine == "copied" else "for an installed conformance"
    return [
        f"{folder}: {len(upstream)} files of conformance {__version__}, {needs}",
        f"yours: {TEST_FILE} (set SUBJECT) and expectations.toml",
        f"a first kernel: conformance new-subject {folder / 'my_kernels.py'} --case "
        f"{cases[0] if cases else 'matmul'}",
    ]


def check(folder: Path) -> tuple[int, list[str]]:
    """The exit status, and a line for each file that is edited, missing or behind."""
    manifest = read_manifest(folder)
    found = states(folder, manifest, _upstream(manifest))
    lines = [f"{state}: {path}" for path, state in found.items() if str(state) != "unchanged"]
    if any(state.edited for state in found.values()):
        return EDITED, [*lines, f"{folder} was edited since it was copied"]
    if any(state.behind for state in found.values()):
        behind = f"{folder} is of conformance {manifest.suite}, behind {__version__}"
        return BEHIND, [*lines, f"{behind}: conformance vendor {folder} --update"]
    return 0, [f"{folder} is unchanged, and what conformance {__version__} would copy"]


def update(folder: Path) -> tuple[int, list[str]]:
    """Brings what was not edited to this version; nothing at all where an edit is in the way."""
    manifest = read_manifest(folder)
    upstream = _upstream(manifest)
    found = states(folder, manifest, upstream)
    conflicts = [path for path, state in found.items() if state.conflicting]
    if conflicts:
        return EDITED, [
            *(f"edited here, and changed in conformance {__version__}: {p}" for p in conflicts),
            "nothing was updated: delete each of these files, to take the new version, or undo "
            "your edit; a case of your own belongs into a file of its own",
        ]
    kept = [p for p, state in found.items() if state.edited and state.local is not None]
    changed = [p for p, s in found.items() if s.local != s.upstream and p not in kept]
    _write(folder, {path: upstream[path] for path in changed if path in upstream})
    for path in changed:
        if path not in upstream:
            (folder / path).unlink(missing_ok=True)
    _record(folder, manifest.cases, manifest.engine, upstream)
    lines = [f"{'updated' if p in upstream else 'removed'}: {p}" for p in changed]
    lines += [f"kept, edited here: {path}" for path in kept]
    return 0, [*lines, f"{folder} is of conformance {__version__}, {len(changed)} files changed"]


def listing(folder: Path) -> list[str]:
    """What the folder holds, and how each file stands."""
    manifest = read_manifest(folder)
    found = states(folder, manifest, _upstream(manifest))
    lines = [
        f"conformance {manifest.suite}, engine {manifest.engine}",
        f"cases: {', '.join(load_cases((str(folder),)))}",
    ]
    return lines + [f"{state}: {path}" for path, state in found.items()]


def _upstream(manifest: Manifest) -> dict[str, bytes]:
    """What this suite would copy for the same request; cases that it no longer has are left."""
    known = load_cases()
    cases = tuple(name for name in manifest.cases if name in known)
    if manifest.cases and not cases:
        raise VendorError(f"none of the cases {', '.join(manifest.cases)} exists any more")
    return contents(cases, manifest.engine)


def _record(
    folder: Path, cases: tuple[str, ...], engine: str, upstream: Mapping[str, bytes]
) -> None:
    files = {path: digest(content) for path, content in upstream.items()}
    manifest = Manifest(suite=__version__, engine=engine, cases=cases, files=files)
    _write(folder, {MANIFEST: manifest.dumps().encode()})


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Each file whole or not at all."""
    for path, content in files.items():
        target = folder / PurePosixPath(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial")
        partial.write_bytes(content)
        os.replace(partial, target)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="conformance vendor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--cases", default="", metavar="NAMES", help="comma separated; all if not")
    parser.add_argument("--with-engine", action="store_true", help="copy the engine, too")
    what = parser.add_mutually_exclusive_group()
    for name in ("check", "update", "list"):
        what.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(arguments)
    try:
        status, lines = _done(options)
    except (VendorError, LoadError, OSError) as e:
        parser.error(str(e))
    print("\n".join(lines))
    raise SystemExit(status)


def _done(options: argparse.Namespace) -> tuple[int, list[str]]:
    folder: Path = options.folder
    if not (options.check or options.update or options.list):
        cases = tuple(dict.fromkeys(filter(None, options.cases.split(","))))
        return 0, create(folder, cases, "copied" if options.with_engine else "installed")
    if options.cases or options.with_engine:
        raise VendorError("--cases and --with-engine are for a new folder; the manifest has them")
    if options.list:
        return 0, listing(folder)
    return check(folder) if options.check else update(folder)
