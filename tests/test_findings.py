"""docs/findings*.md: every script prints what the document says, under the installed jax.

When one of these fails, a fault was repaired or changed its text: correct the document.
"""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path

import jax
import pytest
from packaging.specifiers import SpecifierSet

from conformance import compiler

DOCS = Path(__file__).resolve().parent.parent / "docs"
DOCUMENTS = ("findings.md", "findings-tokamax.md")
SECTION = re.compile(r"^## (?P<title>[^\n]+)\n(?P<body>.*?)(?=^## |\Z)", re.M | re.S)
BLOCK = re.compile(r"^```(?P<kind>\w+) ?(?P<versions>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
CHECK = re.compile(r"(?:Check failed|Operation not supported): .*?(?= \(| *$)", re.M)


def sections(document: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """title -> (scripts, version specifier -> what they print)."""
    found = {}
    for section in SECTION.finditer((DOCS / document).read_text()):
        blocks = list(BLOCK.finditer(section["body"]))
        scripts = [b["text"] for b in blocks if b["kind"] == "python"]
        says = {b["versions"].removeprefix("jax"): b["text"] for b in blocks if b["kind"] == "text"}
        found[section["title"]] = (scripts, says)
    return found


FINDINGS = {name: sections(name) for name in DOCUMENTS}
ALL = [(name, title) for name, found in FINDINGS.items() for title in found]
RUNNABLE = [pair for pair in ALL if "tokamax" not in pair[0] or importlib.util.find_spec("tokamax")]


def expected(says: dict[str, str], version: str) -> list[str]:
    """The outputs documented for a version of jax."""
    return [t for v, t in says.items() if SpecifierSet(v).contains(version, prereleases=True)]


@pytest.mark.skipif(compiler.availability() is not None, reason=str(compiler.availability()))
@pytest.mark.parametrize("document, title", RUNNABLE)
def test_the_script_prints_what_the_document_says(document, title, python):
    (script,), says = FINDINGS[document][title]
    (text,) = expected(says, jax.__version__)
    run = python("-c", script)
    printed = run.stdout
    if run.returncode < 0:
        check = CHECK.search(run.stderr)
        printed += f"{check[0] if check else run.stderr}\n{signal.Signals(-run.returncode).name}\n"
    assert printed == text, run.stderr[-2000:]
    assert run.returncode <= 0, run.stderr


@pytest.mark.parametrize("document, title", ALL)
def test_every_version_has_exactly_one_output(document, title):
    scripts, says = FINDINGS[document][title]
    assert len(scripts) == 1
    for version in ("0.10.2", "0.11.2", "0.12.0.1", "0.13.0.dev1"):
        assert len(expected(says, version)) == 1, version


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_finding_is_in_the_table(document):
    text = (DOCS / document).read_text()
    rows = re.findall(r"^\| (\d+) \| \[[^\n]+\]\(#(\S+)\)", text, re.M)
    titles = list(FINDINGS[document])
    anchors = [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]
    assert [anchor for _, anchor in rows] == anchors
    assert [n for n, _ in rows] == [t.partition(".")[0] for t in titles]
    assert len(titles) >= 5
