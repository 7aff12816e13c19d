"""Conditions on the parameters of an example, as expectation files write them: `m % bm or k > 8`.

Python's own grammar, cut down to names, literals, arithmetic, comparisons and `and`, `or`, `not`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any

_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
    ast.Tuple,
    ast.Name,
    ast.Load,
    ast.Constant,
)


def check(text: str) -> None:
    """ValueError when `text` is not a condition; it names what is wrong."""
    _parsed(text)


def names(text: str) -> frozenset[str]:
    """The parameters that a condition is about."""
    return _parsed(text)[1]


def holds(text: str, params: Mapping[str, Any]) -> bool:
    """Whether a condition holds. One that cannot be computed, since a parameter is not there, is 0
    and divided by, or is no number, does not."""
    code, named = _parsed(text)
    try:
        return named <= set(params) and bool(eval(code, {"__builtins__": {}}, dict(params)))
    except (ArithmeticError, TypeError):
        return False


@functools.cache
def _parsed(text: str) -> tuple[CodeType, frozenset[str]]:
    """What runs, and the names in it: every verdict is held against every condition."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as e:
        raise ValueError(f"{text!r} is not an expression: {e.msg}") from e
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and any(map(_no_number, (node.left, node.right))):
            raise ValueError(f"{text!r} may calculate with numbers only")
        if not isinstance(node, _ALLOWED):
            kind = type(node).__name__
            raise ValueError(f"{text!r} may not contain {kind}: names, numbers and operators only")
    named = frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
    return compile(tree, "<condition>", "eval"), named


def _no_number(node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and not isinstance(node.value, (int, float))
    return text or isinstance(node, ast.Tuple)
