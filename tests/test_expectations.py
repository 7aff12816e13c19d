"""Known failures: read, matched, and found stale."""

from __future__ import annotations

import datetime
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance.expectations import Expectation, ExpectationError, load, stale, waive
from conformance.verdict import BAD, Status, Verdict

ENTRY = {
    "case": "matmul",
    "status": "REJECTED",
    "signature": "E2001",
    "reason": "no bf16 matrix unit",
    "link": "https://example.org/1",
}
TODAY = datetime.date(2030, 5, 1)


def toml(**changed: Any) -> str:
    """One entry; None leaves a key out, other values are given as TOML."""
    keys = {k: f'"{v}"' for k, v in ENTRY.items()} | changed
    return "[[expectation]]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items() if v is not None)


@pytest.fixture
def read(tmp_path):
    """Loads a file of the given text."""

    def read_text(text: str, version: str = "0.12.0.1") -> tuple[Expectation, ...]:
        path = tmp_path / "known.toml"
        path.write_text(text)
        return load(path, version)

    return read_text


def entry(**changed: Any) -> Expectation:
    return Expectation(**(ENTRY | {"status": Status.REJECTED} | changed))


def verdict(status: Status = Status.REJECTED, **changed: Any) -> Verdict:
    given = {
        "case": "matmul",
        "kernel": "tiled",
        "mode": "aot",
        "chip": "v2",
        "example": "matmul/smoke,inputs=exact,seed=0",
        "params": {"m": 16, "dtype": "bfloat16"},
        "inputs": "exact",
        "seed": 0,
        "status": status,
        "why": "MosaicError: E2001: Unsupported matmul RHS type",
        "code": "E2001" if status is Status.REJECTED else None,
        "error": "MosaicError" if status is Status.REJECTED else None,
    }
    return Verdict(**(given | changed))


# --------------------------------------------------------------------------- reading


def test_an_entry_is_read_whole(read):
    (found,) = read(
        toml(kernel='"til*"', mode='"aot"', chip='"v2"', params='{dtype = "bfloat16"}')
        + 'expires = 2030-05-01\njax = ">=0.11"\n'
    )
    assert found == entry(
        kernel="til*",
        mode="aot",
        chip="v2",
        params={"dtype": "bfloat16"},
        expires=TODAY,
        jax=">=0.11",
    )
    assert str(found) == "matmul/til* in aot@v2 REJECTED 'E2001'"


def test_an_empty_file_expects_nothing(read):
    assert read("# nothing known\n") == ()


@pytest.mark.parametrize(
    "text, says",
    [
        ("[[expectation]\n", r"known\.toml: .*line 1"),
        ("[[expectations]]\n", r"known\.toml: unknown table 'expectations'"),
        ("[expectation]\ncase = 'add'\n", r"known\.toml: .*\[\[expectation\]\]"),
        ("expectation = 3\n", r"known\.toml: .*\[\[expectation\]\]"),
        ("expectation = ['add']\n", r"known\.toml: .*\[\[expectation\]\]"),
        (toml() + toml(kernal='"x"'), "expectation 2: unknown key 'kernal'; known: case, chip, "),
        *(
            (toml(**{key: value}), f"expectation 1: '{key}' must be a non-empty string")
            for key in ENTRY
            for value in (None, '""', "7")
        ),
        *(
            (toml(**{key: "7"}), f"expectation 1: '{key}' must be a string")
            for key in ("kernel", "mode", "chip", "jax")
        ),
        (toml(status='"PASS"'), "expectation 1: status 'PASS' is not one of CRASH, REJECTED, "),
        (toml(params='"bfloat16"'), "expectation 1: params must be a table"),
        (toml(expires='"tomorrow"'), "expectation 1: expires must be a date"),
        (toml(expires="2030-05-01T07:32:00"), "expectation 1: expires must be a date"),
        (toml(jax='"newest"'), "expectation 1: jax: Invalid specifier: 'newest'"),
        (toml(where='"m %"'), "expectation 1: where: 'm %' is not an expression"),
        (toml(where='"f(m)"'), r"expectation 1: where: 'f\(m\)' may not contain Call"),
        (toml(where='"m.bit_length"'), "may not contain Attribute"),
    ],
)
def test_what_is_wrong_is_named(read, text, says):
    with pytest.raises(ExpectationError, match=says):
        read(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ExpectationError, match=r"none\.toml: .*No such file"):
        load(tmp_path / "none.toml", "0.12")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ExpectationError, match=r"binary\.toml: .*utf-8"):
        load(tmp_path / "binary.toml", "0.12")


@pytest.mark.parametrize(
    "specifier, version, known",
    [
        ("", "0.12.0.1", True),
        ("<0.12", "0.11.2", True),
        ("<0.12", "0.12.0.1", False),
        (">=0.10.2,<0.13", "0.12.0.1", True),
        ("==0.12.*", "0.12.0.1", True),
        (">=0.12", "0.13.0.dev20300501", True),
    ],
)
def test_entries_are_for_versions_of_jax(read, specifier, version, known):
    assert len(read(toml(jax=f'"{specifier}"'), version)) == known


# --------------------------------------------------------------------------- matching


def test_what_was_foreseen_is_waived_with_its_reason_and_link():
    known = waive(verdict(), [entry()])
    assert known.status is Status.WAIVED and not known.failed and not known.passed
    assert known.why == (
        "no bf16 matrix unit (https://example.org/1); "
        "REJECTED: MosaicError: E2001: Unsupported matmul RHS type"
    )
    assert (known.code, known.phase, known.params) == ("E2001", None, verdict().params)


@pytest.mark.parametrize(
    "matching, other",
    [
        ({"case": "mat*"}, {"case": "add"}),
        ({"kernel": "t?led"}, {"kernel": "Tiled"}),
        ({"mode": "aot"}, {"mode": "emulate"}),
        ({"chip": "v[23]"}, {"chip": "v4"}),
        ({"params": {"dtype": "bfloat16"}}, {"params": {"dtype": "bfloat16", "k": 3}}),
        ({"status": Status.REJECTED}, {"status": Status.RESOURCE}),
        ({"signature": "MosaicError"}, {"signature": "E200"}),
    ],
    ids=lambda d: next(iter(d)),
)
def test_all_of_an_entry_must_agree(matching, other):
    assert waive(verdict(), [entry(**matching)]).status is Status.WAIVED
    assert waive(verdict(), [entry(**other)]) == verdict()
    assert waive(verdict(), [entry(**other), entry()]).status is Status.WAIVED


@pytest.mark.parametrize(
    "status, why, signature",
    [
        (Status.WRONG, "4 of 8 elements wrong; first at [0]: got nan", "elements wrong"),
        (Status.TIMEOUT, "no answer within 120 s; the process was killed", "no answer within"),
    ],
)
def test_what_has_neither_code_nor_exception_is_known_by_its_words(status, why, signature):
    known = {"status": status, "signature": signature}
    assert waive(verdict(status, why=why), [entry(**known)]).status is Status.WAIVED
    assert waive(verdict(status, why="something else"), [entry(**known)]).failed
    named = verdict(status, why=why, error="RuntimeError")
    by_name = status is not Status.WRONG  # where an exception says little: the text counts, too
    assert waive(named, [entry(**known)]).failed is by_name


def test_modes_without_chips_have_an_empty_one():
    alone = verdict(mode="interpret", chip=None)
    assert waive(alone, [entry(chip="")]).status is Status.WAIVED
    assert waive(alone, [entry(chip="v2")]).failed
    assert waive(verdict(), [entry(chip="")]).failed


@pytest.mark.parametrize("status", sorted(set(Status) - BAD))
def test_only_failures_are_waived(status):
    fine = verdict(status, code="E2001")
    assert waive(fine, [entry()]) is fine


def test_refusals_that_a_contract_asks_for_are_not_waived():
    refusal = verdict(expected=True)
    assert waive(refusal, [entry()]) is refusal


# --------------------------------------------------------------------------- stale


def problems(*verdicts: Verdict, complete: bool = True, **changed: Any) -> list[str]:
    known = entry(**changed)
    rows = [waive(v, [known]).row() for v in verdicts]
    return stale([known], rows, complete, TODAY)


PASSING = {"example": "matmul/one-row,inputs=exact,seed=0", "code": None}
NAME = "matmul/* in * REJECTED 'E2001'"


def test_an_entry_that_holds_is_not_stale():
    assert problems(verdict()) == []
    assert problems(verdict(), verdict(Status.UNSUPPORTED), verdict(kernel="other")) == []


def test_matches_nothing_is_stale_in_a_complete_run_only():
    other = verdict(case="add")
    assert problems(other) == [f"expectation matches nothing: {NAME}"]
    assert problems(other, complete=False) == []


def test_refusals_that_a_contract_asks_for_are_no_match():
    assert problems(verdict(expected=True)) == [f"expectation matches nothing: {NAME}"]


def test_a_kernel_that_passes_now_is_stale_in_a_complete_run_only():
    """A replayed example may be one of those that always passed."""
    line = f"expectation is out of date, its kernel passes: {NAME}"
    assert problems(verdict(Status.COMPILED, **PASSING)) == [line]
    assert problems(verdict(Status.COMPILED, **PASSING), complete=False) == []


def test_a_run_without_the_mode_or_chip_says_nothing():
    """An entry for aot@v4 is not out of date because a run compiled for v5e."""
    assert problems(verdict(Status.COMPILED, **PASSING), mode="interpret") == []
    assert problems(verdict(Status.COMPILED, **PASSING), chip="v4") == []


@pytest.mark.parametrize("complete", [True, False])
def test_another_signature_is_stale(complete):
    changed = verdict(code="E2003", error="JaxRuntimeError")
    line = f"expectation has another signature now: {NAME}"
    assert problems(changed, complete=complete) == [line]
    assert problems(changed, verdict(Status.COMPILED, **PASSING)) == [line]


def test_an_entry_that_holds_on_some_examples_is_not_stale():
    assert problems(verdict(), verdict(Status.COMPILED, **PASSING)) == []


@pytest.mark.parametrize("days, stays", [(-1, False), (0, False), (1, True)])
def test_an_expired_entry_is_stale_though_it_holds(days, stays):
    expires = TODAY + datetime.timedelta(days)
    line = f"expectation expired on {expires}: {NAME}"
    assert problems(verdict(), expires=expires) == ([] if stays else [line])


def test_each_stale_entry_has_its_line():
    rows = [verdict(Status.COMPILED, **PASSING).row()]
    assert len(stale([entry(), entry(case="gone"), entry(case="lost")], rows, True, TODAY)) == 3


# --------------------------------------------------------------------------- runs

SUBJECT = """
import jax
from jax.experimental import pallas as pl

from conformance import Kernel


def body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def right(x, y):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def refuses(x, y):
    raise NotImplementedError("not for today")


KERNELS = (
    Kernel(case="add", name="right", fn=right),
    Kernel(case="add", name="refuses", fn=refuses),
)
"""
KNOWN = """
[[expectation]]
case = "add"
kernel = "{kernel}"
status = "REJECTED"
signature = "NotImplementedError"
reason = "waits for a compiler"
link = "https://example.org/2"
"""
OPTIONS = ("-q", "-rx", "-p", "no:cacheprovider", "--mode=interpret")


@pytest.fixture
def subject(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(SUBJECT))
    return path


def test_a_known_failure_xfails_with_its_link(subject, python):
    """The file beside the subject is found without an option."""
    (subject.parent / "expectations.toml").write_text(KNOWN.format(kernel="refuses"))
    run = python(
        "-m", "pytest", *OPTIONS, "--tier=smoke", "--max-examples=0", f"--subject={subject}"
    )
    assert run.returncode == 0, run.stdout
    assert "1 passed, 1 xfailed" in run.stdout
    assert "XFAIL" in run.stdout and "https://example.org/2" in run.stdout
    assert "WAIVED 5" in run.stdout
    assert "expectation" not in run.stdout.partition("short test summary")[0].lower()


def test_stale_entries_fail_the_run(subject, tmp_path, python):
    """Every test is as expected, and the run fails all the same."""
    known = tmp_path / "known.toml"
    known.write_text("".join(KNOWN.format(kernel=k) for k in ("refuses", "right", "gone")))
    options = (f"--subject={subject}", f"--expectations={known}")
    run = python("-m", "pytest", *OPTIONS, *options)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed, 1 xfailed" in run.stdout
    passes = "expectation is out of date, its kernel passes: add/right in *"
    nothing = "expectation matches nothing: add/gone in *"
    lines = [line for line in run.stdout.splitlines() if line.startswith("expectation ")]
    assert [line.partition(" REJECTED")[0] for line in lines] == [passes, nothing]


# --------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    "where, holds",
    [
        ("m % 8", False),
        ("m % 8 == 0 and dtype == 'bfloat16'", True),
        ("dtype in ('float32', 'int8') or m > 15", True),
        ("not m > 15", False),
        ("k > 1", False),  # a parameter that the case has not
        ("-m < 0", True),
    ],
)
def test_a_condition_narrows_an_entry(where, holds):
    assert entry(where=where).covers(verdict().row()) is holds


def test_the_text_of_wrong_values_may_say_more_than_its_exception():
    wrong = verdict(Status.WRONG, error="JaxRuntimeError", why="IndexError: Out-of-bounds read of")
    assert entry(status=Status.WRONG, signature="Out-of-bounds read").foresees(wrong)
    assert not entry(signature="matmul RHS").foresees(verdict())  # of a refusal it must be all
