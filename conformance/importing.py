"""Makes a pinned example of a call that failed somewhere.

    conformance import-example FILE                      prints the row
    conformance import-example FILE --write              appends it to the case's JSON
    conformance import-example FILE --write --vendored DIR

FILE is JSON, by the schema `schemas/call.schema.json`:

    {"case": "matmul",
     "args": [{"shape": [16, 200], "dtype": "bfloat16"},
              {"shape": [200, 256], "dtype": "bfloat16"}],
     "statics": {"bm": 8}}

The parameters are those whose arrays have these shapes and dtypes. What no shape shows is taken
from `statics`; else it is the first legal value, and named on stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from conformance.case import TIERS, Case, DomainError, Example, Params
from conformance.loading import (
    MANIFEST,
    LoadError,
    bundled,
    case_scripts,
    check_params,
    load_case_file,
    load_cases,
    schema,
)
from conformance.shapes import Form, arrays_like, dtype_exists
from conformance.strategies import make_arrays

# Tried for a block that neither a shape nor `statics` shows; whole dimensions are tried, too.
_BLOCKS = (128, 256, 512, 8, 16, 32, 64, 1)
_WHOLE_UP_TO = 512  # a whole dimension is a likely block up to this length
_MOST = 20_000  # combinations that are looked at; making arrays costs more than checking
_MOST_MADE = 64


class ImportFailed(ValueError):
    """A call that makes no pinned example; the message says why."""


@dataclass(frozen=True)
class Array:
    """Shape and dtype of one argument."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class CallSeen:
    """A call as it is in the file."""

    case: str
    args: tuple[Array, ...]
    statics: Params


def read(file: Path) -> CallSeen:
    """The call in a file; ImportFailed for another JSON, or none."""
    try:
        found = json.loads(file.read_text())
        jsonschema.validate(found, schema("call"))
    except (OSError, ValueError) as e:
        raise ImportFailed(f"{file}: not readable as JSON: {e}") from e
    except jsonschema.ValidationError as e:
        where = "/".join(map(str, e.absolute_path)) or "the whole"
        raise ImportFailed(f"{file}: {where}: {e.message}") from e
    args = tuple(Array(tuple(a["shape"]), a["dtype"]) for a in found["args"])
    for number, array in enumerate(args):
        if not dtype_exists(array.dtype):
            raise ImportFailed(f"{file}: args/{number}: no dtype is called {array.dtype!r}")
    return CallSeen(found["case"], args, found.get("statics", {}))


# --------------------------------------------------------------------------- its parameters


def parameters(case: Case, call: CallSeen) -> tuple[Params, tuple[str, ...]]:
    """The parameters whose arrays are those of the call, and which of them were chosen freely.

    Raises:
      ImportFailed: none has; outside of the domain; or a length that no shape shows.
    """
    for name in call.statics:
        if name not in case.params:
            known = ", ".join(case.params)
            raise ImportFailed(f"statics: {case.name} has no parameter {name!r}; it has {known}")
    try:
        forms = arrays_like(case, [len(a.shape) for a in call.args])
    except ValueError as e:
        raise ImportFailed(str(e)) from e
    told = _unified(forms, call)
    free = tuple(name for name in case.params if name not in told)
    reason = None
    made = 0
    for params in itertools.islice(_candidates(case, told, free), _MOST):
        try:
            check_params(case, params)
        except ValueError as e:
            reason = reason or f"outside the domain of {case.name}: {e}"
            continue
        got = _arrays(case, params)
        if got == call.args:
            return params, free
        reason = f"no parameters give these arrays: {_named(params)} gives {_listed(got)}"
        made += 1
        if made == _MOST_MADE:
            break
    raise ImportFailed(f"{_listed(call.args)}: {reason}")


def _unified(forms: Sequence[Form], call: CallSeen) -> dict[str, Any]:
    """What statics, shapes and dtypes say; ImportFailed where they contradict each other."""
    known: dict[str, Any] = dict(call.statics)
    told = dict.fromkeys(known, "statics")

    def learn(name: str, value: Any, where: str) -> None:
        if known.setdefault(name, value) != value:
            raise ImportFailed(f"{name} is {known[name]} by {told[name]}, but {value} by {where}")
        told.setdefault(name, where)

    for form, array in zip(forms, call.args, strict=True):
        for axis, (dim, size) in enumerate(zip(form.dims, array.shape, strict=True)):
            where = f"dimension {axis} of {form.name}"
            if isinstance(dim, str):
                learn(dim, size, where)
            elif dim is not None and dim != size:
                raise ImportFailed(f"{where} must be {dim}, got {size}")
        if form.dtype is not None:
            learn(form.dtype, array.dtype, f"the dtype of {form.name}")
        elif form.fixed_dtype not in (None, array.dtype):
            raise ImportFailed(f"{form.name} must be {form.fixed_dtype}, got {array.dtype}")
    return known


def _candidates(
    case: Case, known: Mapping[str, Any], free: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Every choice of the free parameters, the likeliest first."""
    for chosen in itertools.product(*(_values(case, name, known) for name in free)):
        found = {**known, **dict(zip(free, chosen, strict=True))}
        yield {name: found[name] for name in case.params}


def _values(case: Case, name: str, known: Mapping[str, Any]) -> Sequence[Any]:
    kind = case.params[name].kind
    if kind == "size":
        raise ImportFailed(f"no shape shows {name}: give it in statics")
    if kind == "count":
        return (0,)
    if kind != "block":
        return case.params[name].choices
    lengths = [v for n, v in known.items() if case.params[n].kind == "size" and v >= 1]
    whole = known.get(name.removeprefix("b"))
    likely = [whole] if isinstance(whole, int) and 1 <= whole <= _WHOLE_UP_TO else []
    return list(dict.fromkeys([*likely, *_BLOCKS, *lengths]))


def _arrays(case: Case, params: Params) -> tuple[Array, ...]:
    example = Example(case=case.name, params=params, inputs=case.inputs(params)[0], seed=0)
    return tuple(Array(tuple(a.shape), a.dtype.name) for a in make_arrays(case, example))


def _listed(arrays: Sequence[Array]) -> str:
    return ", ".join(map(str, arrays))


def _named(params: Params) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items())


# --------------------------------------------------------------------------- the row


def row(case: Case, call: CallSeen, why: str | None, tier: str) -> tuple[dict[str, Any], list[str]]:
    """The pinned example, checked, and lines about what was chosen freely.

    Its id comes from the parameters: the same call gets the same id wherever it is imported.
    """
    params, free = parameters(case, call)
    text = json.dumps(params, sort_keys=True)
    made = {
        "id": f"imported-{hashlib.sha256(text.encode()).hexdigest()[:10]}",
        "why": why or f"a call that failed: {_listed(call.args)}",
        "tier": tier,
        "params": params,
    }
    try:
        jsonschema.validate({case.name: [made]}, schema("pinned"))
    except jsonschema.ValidationError as e:
        raise ImportFailed(f"the row would not be valid: {e.message}") from e
    for other in case.rows:
        if other["params"] == params:
            raise ImportFailed(f"{case.name} has this example already: {other['id']}")
        if other["id"] == made["id"]:
            raise ImportFailed(f"{case.name} has another example with the id {other['id']}")
    return made, [f"not seen from shapes, chosen: {n}={params[n]}" for n in free]


def append(file: Path, case: str, made: Mapping[str, Any]) -> None:
    """Adds a row to the pinned examples of a case, one line to the file."""
    rows = json.loads(file.read_text()) if file.is_file() else {}
    rows.setdefault(case, []).append(made)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(dumps(rows))
    os.replace(partial, file)


def dumps(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """JSON as the files of pinned examples are written: a row a line."""
    parts = []
    for case, items in rows.items():
        lines = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in items)
        parts.append(f'  "{case}": [\n{lines}\n  ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


# --------------------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> None:
    """`conformance import-example FILE`."""
    parser = argparse.ArgumentParser(
        prog="conformance import-example",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="append the row to the case's JSON")
    parser.add_argument("--vendored", type=Path, metavar="DIR", help="cases of a vendored folder")
    parser.add_argument("--why", help="what the example shows, in a sentence")
    parser.add_argument("--tier", choices=TIERS, default="ci")
    options = parser.parse_args(arguments)
    try:
        _imported(options)
    except (ImportFailed, LoadError, DomainError, OSError) as e:
        parser.error(str(e))


def _imported(options: argparse.Namespace) -> None:
    folder: Path | None = options.vendored
    if folder is not None and not (folder / MANIFEST).is_file():
        raise ImportFailed(f"--vendored {folder}: it has no {MANIFEST}")
    call = read(options.file)
    cases = load_cases(() if folder is None else (str(folder),))
    if call.case not in cases:
        raise ImportFailed(f"{options.file}: no case {call.case!r}; known: {', '.join(cases)}")
    made, notes = row(cases[call.case], call, options.why, options.tier)
    if options.write:
        file = _file(call.case, folder)
        append(file, call.case, made)
        notes.append(f"added to {file}")
    print(json.dumps(made, ensure_ascii=False))
    print("\n".join(notes), file=sys.stderr)


def _file(case: str, folder: Path | None) -> Path:
    """The JSON file of a case, in a checkout or a vendored folder."""
    cases = bundled("cases") if folder is None else folder / "cases"
    if cases.parent == Path(__file__).resolve().parent:
        raise ImportFailed("the cases of an installed package are not edited: name --vendored DIR")
    for script in case_scripts(cases):
        if any(found.name == case for found in load_case_file(script)):
            return script.with_suffix(".json")
    raise ImportFailed(f"no file in {cases} defines {case}")
