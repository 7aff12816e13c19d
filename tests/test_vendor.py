"""Cases in another repository: copied, checked, updated, and judged there with pytest alone."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import json
import re
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import conformance
from conformance import vendor, vendored
from conformance.conclusion import Conclusion
from conformance.loading import MANIFEST, bundled, load_cases
from conformance.vendor import BEHIND, COPY, EDITED, REFUSED, TEST_FILE
from conformance.verdict import Status, Verdict

ROOT = Path(__file__).resolve().parent.parent

KERNELS = '''
"""This repository's kernels."""

from conformance import Kernel

from neighbour import add, subtract

KERNELS = (
    Kernel(case="add", name="right", fn=add),
    Kernel(case="add", name="wrong", fn=subtract),
    Kernel(case="add", name="known", fn=subtract),
)
'''
NEIGHBOUR = '''
"""Imported by the subject from its own folder."""

import jax
from jax.experimental import pallas as pl


def whole(body, x, y):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def add(x, y):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    return whole(body, x, y)


def subtract(x, y):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] - y_ref[...]

    return whole(body, x, y)
'''
KNOWN = """
[[expectation]]
case = "add"
kernel = "known"
mode = "interpret"
status = "WRONG"
signature = "elements wrong"
reason = "it subtracts"
link = "https://example.org/1"
"""
# What a repository may have of its own under names that the suite uses.
CONFTEST = '''
"""Options of this repository."""


def pytest_addoption(parser):
    parser.addoption("--mode", default="ours")
    parser.addoption("--report", action="store_true")
'''
OWN_TEST = '''
"""This repository's own tests."""

import cases


def test_our_own_names_mean_what_they_did(pytestconfig):
    assert cases.OURS
    assert pytestconfig.getoption("--mode") == "theirs"
'''
# Another version of the suite, which must be neither used nor disturbed.
DECOY = '''
"""Not the suite."""

__version__ = "9.9.9"
'''


@pytest.fixture
def run(capsys):
    """Runs `conformance vendor` in this process: exit status, output, errors."""

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            vendor.main([str(a) for a in arguments])
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def folder(tmp_path) -> Path:
    """Cases add and sum, for an installed suite."""
    made = tmp_path / "third_party" / "conformance"
    vendor.create(made, ("add", "sum"), "installed")
    return made


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def record(folder: Path, **changed: object) -> None:
    """Changes entries of the manifest."""
    found = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(found | changed))


def age(folder: Path, path: str) -> None:
    """Makes a file one that an older suite has copied."""
    file = folder / path
    file.write_text(file.read_text() + "\n# as it was\n")
    files = vendor.read_manifest(folder).files
    record(folder, files={**files, path: vendor.digest(file.read_bytes())})


def edit(folder: Path, path: str) -> None:
    (folder / path).write_text((folder / path).read_text() + "\n# ours\n")


# --------------------------------------------------------------------------- in another repository


@pytest.fixture(params=["installed", "copied"])
def repository(request, tmp_path, site, python):
    """Another repository with kernels and vendored cases, and what runs Python in it."""
    root = tmp_path / "their kernels"
    folder = root / "third_party" / "conformance"
    folder.parent.mkdir(parents=True)
    (root / "conftest.py").write_text(CONFTEST)
    (root / "cases.py").write_text("OURS = True\n")
    (root / "test_own.py").write_text(OWN_TEST)
    (root / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n"
    )
    with_engine = ["--with-engine"] if request.param == "copied" else []
    made = python(
        *("-m", "conformance", "vendor", str(folder), "--cases=add", *with_engine),
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert made.returncode == 0, made.stderr
    (root / "lib").mkdir()
    (root / "lib" / "their_kernels.py").write_text(KERNELS)
    (root / "lib" / "neighbour.py").write_text(NEIGHBOUR)
    test = folder / TEST_FILE
    text = test.read_text().replace('"my_kernels.py"', '"../../lib/their_kernels.py"')
    test.write_text(re.sub(r"^MODES = .*$", 'MODES = ("interpret",)', text, flags=re.MULTILINE))
    (folder / "expectations.toml").write_text(KNOWN)
    path = site
    if request.param == "copied":
        path = tmp_path / "decoy"
        (path / "conformance").mkdir(parents=True)
        (path / "conformance" / "__init__.py").write_text(DECOY)
        (root / "conftest.py").write_text(CONFTEST + "\nimport conformance as installed\n")
        (root / "test_zzz.py").write_text(
            "def test_the_installed_one_is_what_it_was():\n"
            "    import conformance\n"
            "    assert conformance.__version__ == '9.9.9'\n"
        )

    def run(*args: str, **environment: str):
        return python(*args, cwd=root, PYTHONPATH=str(path), **environment)

    return root, run


def outcomes(text: str) -> dict[str, str]:
    """What `-rA` says of each test, by the last part of its id."""
    found = re.findall(r"^(PASSED|FAILED|XFAIL|SKIPPED|ERROR) \S*?::(\S+)", text, re.MULTILINE)
    return {test: outcome for outcome, test in found}


def test_right_passes_and_wrong_fails_with_pytest_alone(repository):
    root, run = repository
    copied = (root / "third_party" / "conformance" / "_engine").exists()
    run_in = ("-m", "pytest", "-rA", "-p", "no:cacheprovider", "--mode=theirs")
    workers = ("-n", "2") if copied else ()
    done = run(*run_in, *workers, CONFORMANCE_REPLAY="add/smoke")
    own = {"test_the_installed_one_is_what_it_was": "PASSED"} if copied else {}
    assert outcomes(done.stdout) == own | {
        "test_our_own_names_mean_what_they_did": "PASSED",
        "test_conforms[add/right-interpret]": "PASSED",
        "test_conforms[add/wrong-interpret]": "FAILED",
        "test_conforms[add/known-interpret]": "XFAIL",
    }, done.stdout + done.stderr
    assert "add/wrong in interpret: 5 of 5 examples failed" in done.stdout
    assert re.search(r"WRONG: \d+ of 8192 elements wrong; first at \[0, 0\]: got ", done.stdout)
    assert "it subtracts (https://example.org/1)" in done.stdout
    assert "Traceback" not in done.stdout
    lines = [li for li in done.stdout.splitlines() if "replay: CONFORMANCE_REPLAY=" in li]
    assert len(lines) == 5
    _, example, test = re.fullmatch(
        r" *(replay): CONFORMANCE_REPLAY=(\S+) pytest '(.*)'", lines[0]
    ).groups()
    again = run("-m", "pytest", "-rA", "-p", "no:cacheprovider", test, CONFORMANCE_REPLAY=example)
    assert "add/wrong in interpret: 1 of 1 examples failed" in again.stdout, again.stdout


# --------------------------------------------------------------------------- drift


def test_what_was_just_copied_is_unchanged(run, folder):
    status, text, _ = run(folder, "--check")
    assert status == 0 and "unchanged" in text
    assert set(snapshot(folder)) == {
        *("cases/add.py", "cases/add.json", "cases/sum.py", "cases/sum.json", "_suite.py"),
        *("schemas/pinned.schema.json", "schemas/manifest.schema.json"),
        *(TEST_FILE, "expectations.toml", MANIFEST),
    }
    assert (folder / "cases" / "add.py").read_bytes() == (bundled("cases") / "add.py").read_bytes()
    assert set(load_cases((str(folder),))) == {"add", "sum", "sum_narrow"}, "nothing else is there"


def test_other_line_ends_are_no_edit(run, folder):
    file = folder / "cases" / "add.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert run(folder, "--check")[0] == 0


def test_what_is_theirs_is_never_checked_nor_replaced(run, folder):
    (folder / TEST_FILE).write_text("# ours\n")
    (folder / "expectations.toml").write_text(KNOWN)
    (folder / "my_kernels.py").write_text("# ours\n")
    age(folder, "cases/add.py")
    assert run(folder, "--update")[0] == 0
    assert (folder / TEST_FILE).read_text() == (folder / "my_kernels.py").read_text() == "# ours\n"
    assert (folder / "expectations.toml").read_text() == KNOWN
    assert run(folder, "--check")[0] == 0


def test_an_edit_is_seen_and_kept(run, folder):
    edit(folder, "cases/add.py")
    status, text, _ = run(folder, "--check")
    assert status == EDITED and "edited: cases/add.py\n" in text
    age(folder, "cases/sum.py")
    status, text, _ = run(folder, "--update")
    assert status == 0
    assert "updated: cases/sum.py\n" in text and "kept, edited here: cases/add.py\n" in text
    assert (folder / "cases" / "add.py").read_text().endswith("# ours\n")
    assert (folder / "cases" / "sum.py").read_bytes() == (bundled("cases") / "sum.py").read_bytes()
    assert run(folder, "--check")[0] == EDITED


def test_a_missing_file_is_an_edit_and_comes_back(run, folder):
    (folder / "cases" / "add.json").unlink()
    status, text, _ = run(folder, "--check")
    assert status == EDITED and "missing: cases/add.json" in text
    assert run(folder, "--update")[0] == 0
    assert run(folder, "--check")[0] == 0


def test_an_old_copy_is_behind_until_updated(run, folder):
    age(folder, "cases/add.py")
    record(folder, suite="0.0.1")
    status, text, _ = run(folder, "--check")
    assert status == BEHIND and "behind: cases/add.py" in text
    assert f"of conformance 0.0.1, behind {conformance.__version__}" in text
    status, text, _ = run(folder, "--update")
    assert status == 0 and "updated: cases/add.py" in text
    assert run(folder, "--check")[0] == 0
    assert vendor.read_manifest(folder).suite == conformance.__version__


def test_an_edit_in_the_way_of_a_new_version_stops_the_update(run, folder):
    """Nothing is touched: half of an update would be of no version."""
    age(folder, "cases/add.py")
    edit(folder, "cases/add.py")
    age(folder, "cases/sum.py")
    before = snapshot(folder)
    status, text, _ = run(folder, "--update")
    assert status == EDITED and "nothing was updated" in text
    assert "edited here, and changed in conformance" in text and "cases/sum.py" not in text
    assert snapshot(folder) == before
    (folder / "cases" / "add.py").unlink()
    assert run(folder, "--update")[0] == 0
    assert run(folder, "--check")[0] == 0


def test_files_come_and_go(run, folder):
    """New upstream, and gone upstream; neither over what is not the suite's own."""
    files = dict(vendor.read_manifest(folder).files)
    (folder / "cases" / "old.py").write_text("# gone upstream\n")
    files["cases/old.py"] = vendor.digest(b"# gone upstream\n")
    del files["cases/sum.json"]
    (folder / "cases" / "sum.json").write_text("{}")
    record(folder, files=files)
    status, text, _ = run(folder, "--update")
    assert status == EDITED and ": cases/sum.json\n" in text, "a file of theirs is in the way"
    (folder / "cases" / "sum.json").unlink()
    status, text, _ = run(folder, "--update")
    assert status == 0
    assert "removed: cases/old.py" in text and "updated: cases/sum.json" in text
    assert not (folder / "cases" / "old.py").exists()
    assert run(folder, "--check")[0] == 0


def test_the_list_says_how_each_file_stands(run, folder):
    edit(folder, "cases/add.json")
    (folder / "cases" / "add.json").write_text("{}")
    age(folder, "cases/sum.py")
    status, text, _ = run(folder, "--list")
    assert status == 0
    assert text.splitlines()[:2] == [
        f"conformance {conformance.__version__}, engine installed",
        "cases: add, sum, sum_narrow",
    ]
    assert "edited: cases/add.json\n" in text
    assert "behind: cases/sum.py\n" in text and "unchanged: cases/add.py\n" in text


# --------------------------------------------------------------------------- what is refused


def test_a_folder_in_the_way_is_left_alone(run, tmp_path, folder):
    status, _, error = run(folder)
    assert status == REFUSED and "holds vendored cases already: use --update or --check" in error
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.py").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        status, _, error = run(tmp_path / name)
        assert status == REFUSED and f"{tmp_path / name} is in the way" in error
    assert [f.name for f in (tmp_path / "full").iterdir()] == ["a.py"]
    assert run(tmp_path / "empty", "--cases=add")[0] == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--cases", "add,nope"), "--cases nope: unknown; known: add, attention, "),
        (("--check",), "was not made by `conformance vendor`: it has no vendored.json"),
        (("--update",), "was not made by `conformance vendor`: it has no vendored.json"),
        (("--list",), "was not made by `conformance vendor`: it has no vendored.json"),
        (("--check", "--update"), "not allowed with argument"),
        (("--check", "--cases", "add"), "--cases and --with-engine are for a new folder"),
        (("--update", "--with-engine"), "--cases and --with-engine are for a new folder"),
    ],
)
def test_bad_arguments_are_refused(run, tmp_path, arguments, message):
    status, _, error = run(tmp_path / "new", *arguments)
    assert status == REFUSED and message in error
    assert not (tmp_path / "new").exists()


DAMAGED = {
    "not JSON": ("{", "is damaged"),
    "a list": ("[]", "is damaged"),
    "no version": ('{"files": {}}', "is damaged (KeyError: 'suite')"),
    "odd version": ('{"suite": "new"}', "is damaged (InvalidVersion"),
    "no files": ('{"suite": "0.0.1"}', "is damaged (the whole: "),
    "newer": ('{"suite": "99.1"}', "was made by conformance 99.1, which is newer than this one"),
}


@pytest.mark.parametrize("text, message", DAMAGED.values(), ids=list(DAMAGED))
def test_a_manifest_that_cannot_be_used_is_refused(run, folder, text, message):
    (folder / MANIFEST).write_text(text)
    for option in ("--check", "--update", "--list"):
        status, _, error = run(folder, option)
        assert status == REFUSED and message in error
        assert len([line for line in error.splitlines() if "error: " in line]) == 1


@pytest.mark.parametrize("path", ["../x.py", "/etc/x", "cases/../../x", "cases/..", "./x"])
def test_a_manifest_reaches_nothing_outside_its_folder(run, folder, path):
    record(folder, files={path: "0" * 64})
    status, _, error = run(folder, "--update")
    assert status == REFUSED and "is damaged (files: " in error


def test_a_folder_where_a_file_belongs_is_refused(run, folder):
    (folder / "cases" / "add.py").unlink()
    (folder / "cases" / "add.py").mkdir()
    status, _, error = run(folder, "--check")
    assert status == REFUSED and "is a folder where a file belongs" in error


# --------------------------------------------------------------------------- the copied engine


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("copied") / "conformance"
    vendor.create(made, (), "copied")
    return made


def imported(file: Path) -> set[str]:
    """Modules that a file imports, names after `import` taken for modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_a_copied_engine_is_whole_and_has_its_own_name(copied):
    """It imports neither an installed suite nor what was left out."""
    left_out = {f"{COPY}.{Path(name).stem}" for name in (*vendor.LEFT_OUT, *vendor.NOT_ENGINE)}
    engine = sorted((copied / "_engine").rglob("*.py"))
    assert len(engine) > 40
    for file in engine:
        found = imported(file)
        assert not {name for name in found if name.partition(".")[0] == "conformance"}, file
        assert not {".".join(name.split(".")[:2]) for name in found} & left_out, file
    names = {file.name for file in engine}
    assert "child.py" in names and not any(
        re.match(r"test_|.*_test\.py|conftest", n) for n in names
    )


def test_what_is_left_out_exists():
    """A list of files that are no more would leave out nothing."""
    assert all((Path(vendor.__file__).parent / name).is_file() for name in vendor.LEFT_OUT)


def test_what_cases_import_is_copied(copied):
    for file in (copied / "cases").glob("*.py"):
        for name in imported(file):
            package, _, inside = name.partition(".")
            module = inside.partition(".")[0]
            if package == "conformance" and (ROOT / "conformance" / f"{module}.py").is_file():
                assert (copied / "_engine" / COPY / f"{module}.py").is_file(), (file, name)


# --------------------------------------------------------------------------- the test file


@pytest.fixture
def session(monkeypatch):
    """Loads `_suite.py` of a folder as its test file does, and makes its session."""
    monkeypatch.delenv(vendored.REPLAY, raising=False)

    def load(folder: Path, **constants: object):
        file = folder / "_suite.py"
        spec = importlib.util.spec_from_file_location(f"suite_{id(folder)}", file)
        assert isinstance(spec, ModuleSpec) and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        given = {"subject": "lib/their_kernels.py", "modes": ("interpret",)} | constants
        return module.session(str(folder / TEST_FILE), **given)

    return load


@pytest.fixture
def equipped(folder) -> Path:
    """A vendored folder with kernels in it."""
    (folder / "lib").mkdir()
    (folder / "lib" / "their_kernels.py").write_text(KERNELS.replace("neighbour", "conformance"))
    text = (folder / "lib" / "their_kernels.py").read_text()
    plain = "def add(x, y): return x + y\nsubtract = add\n"
    (folder / "lib" / "their_kernels.py").write_text(
        text.replace("from conformance import add, subtract", plain)
    )
    return folder


def test_a_session_has_a_test_for_each_kernel_mode_and_chip(session, equipped):
    found = session(equipped, modes=("interpret", "aot"), chips=("v5e", "v6e"))
    assert found.ids[:3] == ["add/right-interpret", "add/right-aot@v5e", "add/right-aot@v6e"]
    assert len(found.pairs) == len(found.ids) == 9


@pytest.mark.parametrize(
    "constants, message",
    [
        ({"subject": "none.py"}, "subject '.*/none.py': no such file"),
        ({"subject": "no_such_module"}, "subject 'no_such_module': no such file, and no such"),
        ({"modes": ("gpu",)}, "MODES gpu: unknown; known: .*interpret"),
        ({"modes": ("aot",), "chips": ("v9",)}, "CHIPS v9: unknown; known: "),
        ({"max_examples": -1}, "MAX_EXAMPLES -1: must not be negative"),
        ({"timeout": 0.0}, "TIMEOUT 0: must be positive"),
        ({"expectations": "none.toml"}, "EXPECTATIONS .*none.toml"),
    ],
)
def test_bad_constants_fail_with_one_line(session, equipped, constants, message):
    with pytest.raises(pytest.fail.Exception, match=message) as caught:
        session(equipped, **constants)
    assert not caught.value.pytrace and "\n" not in str(caught.value)


def test_a_case_that_was_not_vendored_is_unknown(session, equipped):
    """Also where the installed suite has it: it would be of another version."""
    file = equipped / "lib" / "other.py"
    file.write_text((equipped / "lib" / "their_kernels.py").read_text().replace('"add"', '"dsd"'))
    message = "claims case 'dsd', which is not one of add, sum, sum_narrow"
    with pytest.raises(pytest.fail.Exception, match=message):
        session(equipped, subject="lib/other.py")


def test_an_unknown_replay_names_the_variable(session, equipped, monkeypatch):
    monkeypatch.setenv(vendored.REPLAY, "add/no-such")
    with pytest.raises(pytest.fail.Exception, match="CONFORMANCE_REPLAY add/no-such: add has no"):
        session(equipped)


def test_without_the_package_the_message_says_what_to_install(session, equipped, monkeypatch):
    monkeypatch.setitem(sys.modules, "conformance", None)
    with pytest.raises(pytest.fail.Exception) as caught:
        session(equipped)
    version = conformance.__version__
    assert f"are of conformance {version}, and the package conformance is not installed" in str(
        caught.value
    )
    assert f"pip install 'pallas-tpu-conformance=={version}'" in str(caught.value)


@pytest.mark.parametrize(
    "installed, cases, fits",
    [
        ("0.1.0", "0.1.0", True),
        ("0.1.4", "0.1.0", True),
        ("0.1.0", "0.1.1", False),
        ("0.2.0", "0.1.0", False),
        ("1.4.0", "1.2.3", True),
        ("1.1.0", "1.2.0", False),
        ("2.0.0", "1.2.0", False),
        (None, "0.1.0", False),
    ],
)
def test_versions_that_fit(session, equipped, monkeypatch, installed, cases, fits):
    monkeypatch.setattr(conformance, "__version__", installed)
    record(equipped, suite=cases)
    if fits:
        assert session(equipped).ids
        return
    with pytest.raises(pytest.fail.Exception) as caught:
        session(equipped)
    assert f"are of conformance {cases}, and the installed one is {installed} (" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "text, message",
    [(None, "vendored.json is missing"), ("{", "is damaged"), ('{"suite": 1}', "is damaged")],
)
def test_a_manifest_is_needed_to_judge(session, equipped, text, message):
    (equipped / MANIFEST).unlink()
    if text is not None:
        (equipped / MANIFEST).write_text(text)
    with pytest.raises(pytest.fail.Exception, match=message):
        session(equipped)


def test_a_missing_engine_is_named(session, equipped):
    record(equipped, engine="copied")
    with pytest.raises(pytest.fail.Exception, match=r"there is no engine in .*_engine"):
        session(equipped)


def test_one_process_runs_one_copied_engine(session, equipped, monkeypatch):
    other = types.ModuleType(COPY)
    other.__file__ = "/elsewhere/_engine/conformance_vendored/__init__.py"
    monkeypatch.setitem(sys.modules, COPY, other)
    record(equipped, engine="copied")
    with pytest.raises(
        pytest.fail.Exception, match=r"the engine in /elsewhere/.* is in use already"
    ):
        session(equipped)


# --------------------------------------------------------------------------- known failures


def judged(status: Status) -> Verdict:
    return Verdict(
        **{"case": "add", "kernel": "known", "mode": "interpret", "chip": None, "example": "add/x"},
        **{"params": {}, "inputs": "exact", "seed": 0, "status": status, "why": "elements wrong"},
    )


@pytest.mark.parametrize(
    "text, status, message",
    [
        (KNOWN, Status.PASS, "expectation is out of date, its kernel passes: add/known"),
        (KNOWN, Status.WAIVED, None),
        (KNOWN.replace('"known"', '"right"'), Status.PASS, None),
        (KNOWN.replace('"known"', '"*"'), Status.PASS, None),
        (KNOWN + "expires = 2020-01-01\n", Status.WAIVED, "expectation expired on 2020-01-01"),
    ],
)
def test_an_entry_about_one_test_is_held_against_it(
    session, equipped, monkeypatch, text, status, message
):
    assert datetime.date.today() > datetime.date(2020, 1, 1)
    (equipped / "expectations.toml").write_text(text)
    found = session(equipped)

    def conform(judge, plan, kernel, column, write, advice):
        write(judged(status))
        return Conclusion("passed")

    monkeypatch.setattr(vendored, "conform", conform)
    kernel = next(k for k, _ in found.pairs if k.name == "known")
    if message is None:
        found.check(kernel, ("interpret", None))
        return
    with pytest.raises(pytest.fail.Exception, match=message):
        found.check(kernel, ("interpret", None))


# --------------------------------------------------------------------------- the guide


def test_the_guide_speaks_of_what_there_is(copied):
    """Constants, files and exit statuses; and the engine needs no package that it leaves out."""
    guide = (ROOT / "docs" / "vendoring.md").read_text()
    constants = re.findall(r"^([A-Z_]+) = ", (copied / TEST_FILE).read_text(), re.MULTILINE)
    for constant in set(constants) - {"SPEC", "SESSION"}:
        assert f"| `{constant}` |" in guide
    for path in snapshot(copied):
        top = path.partition("/")[0]
        assert f"`{top}" in guide, path
    assert (EDITED, REFUSED, BEHIND) == (1, 2, 3)
    needed = {n.partition(".")[0] for f in copied.rglob("*.py") for n in imported(f)}
    for package in needed - sys.stdlib_module_names - {COPY, "conformance", "jaxlib"}:
        assert re.search(rf"\b{package}\b", guide), package
