"""Tells pytest of a conclusion. No judgement is made here."""

from __future__ import annotations

import pytest

from conformance.conclusion import Conclusion


def tell(conclusion: Conclusion) -> None:
    """Fails, skips, xfails or passes the test that is running."""
    if conclusion.outcome == "failed":
        pytest.fail(conclusion.text, pytrace=False)
    if conclusion.outcome == "skipped":
        pytest.skip(conclusion.text)
    if conclusion.outcome == "xfailed":
        pytest.xfail(conclusion.text)
