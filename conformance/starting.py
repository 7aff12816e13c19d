"""What a case asks of a kernel, and a file to start one from.

    conformance cases                            their names and contracts
    conformance signature CASE                   arguments, results, options and errors of one
    conformance new-subject FILE --case CASE     a file with a kernel to fill in

Shapes and dtypes are those of the case's smallest example, and the parameters that they are
(`conformance.shapes`); none is written by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from conformance.case import Case, Negative, Param
from conformance.loading import load_cases
from conformance.shapes import Form, Layout, layout

_KINDS = {
    "size": "a length",
    "count": "an integer, 0 or more",
    "block": "a block length",
}


def signature(case: Case) -> str:
    """Everything that a kernel of the case must know, as text."""
    shown = layout(case)
    example = ", ".join(f"{k}={v}" for k, v in shown.example.params.items())
    lines = [
        f"{case.name}: {case.contract}",
        case.spec,
        "",
        f"fn({', '.join(_arguments(case, shown))})",
        "",
        *_table("arguments", [(str(a), _example(a)) for a in shown.arrays]),
        *_table("results", [(str(r), _example(r)) for r in shown.results]),
        f"example: {shown.example.case}/{shown.example.pinned or example}",
        f"  {example}",
        "",
        *_table("parameters", [(n, _parameter(p)) for n, p in case.params.items()]),
        f"inputs: {', '.join(case.inputs(shown.example.params))}",
    ]
    refused = [(n.name, _refusal(n)) for n in case.negatives]
    if refused:
        lines += ["", *_table("refused, if checks_inputs=True", refused)[:-1]]
    return "\n".join(lines) + "\n"


def _arguments(case: Case, shown: Layout) -> list[str]:
    """Of `fn`, with a default where the suite leaves out what the signature does not name."""
    options = [*_passed(case), *(f"{b}=..." for b in _blocks(case))]
    return [a.name for a in shown.arrays] + (["*", *options] if options else [])


def _passed(case: Case) -> list[str]:
    return [name for name, param in case.params.items() if param.passed]


def _blocks(case: Case) -> list[str]:
    return [n for n, param in case.params.items() if param.kind == "block" and not param.passed]


def _example(form: Form) -> str:
    return f"in the example {form.example_dtype}{list(form.shape)}"


def _parameter(param: Param) -> str:
    what = _KINDS.get(param.kind) or " ".join(map(str, param.choices))
    if param.passed:
        return f"{what}; passed to fn"
    return f"{what}; passed if fn names it" if param.kind == "block" else what


def _refusal(negative: Negative) -> str:
    chips = f" on {', '.join(negative.chips)}" if negative.chips else ""
    return f"{negative.error} in phase {negative.phase}{chips}, matching {negative.match}"


def _table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [title, *(f"  {name:{width}}  {what}" for name, what in rows), ""]


# --------------------------------------------------------------------------- a starting file


_FILE = '''"""A kernel of case {case}: {contract}.

Judge it:  pytest --subject={file}
Pattern:   {spec}
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from conformance import Kernel


def body({refs}):
    """Runs once for each step of the grid. As it stands it writes zeros, which is wrong."""
{stores}


def mine({arguments}):
    """{doc}

    Traced from shapes alone: needs no `interpret`, and calls pl.pallas_call while it runs.
    """
    return pl.pallas_call(
        body,
        # grid=..., in_specs=[pl.BlockSpec(...), ...], out_specs=pl.BlockSpec(...),
        out_shape={out_shape},
    )({operands})


KERNELS = (
    Kernel(
        case="{case}",
        name="mine",
        fn=mine,
        # True promises the errors of the contract: `conformance signature {case}` lists them.
        checks_inputs=False,
    ),
)
'''


def new_subject(case: Case, file: Path) -> str:
    """The text of a subject file with one kernel, whose results are zeros."""
    shown = layout(case)
    options = [*_passed(case), *_blocks(case)]
    arguments = [a.name for a in shown.arrays] + (["*", *options] if options else [])
    results = [f"{r.name}_ref" for r in shown.results]
    shapes = [_struct(case, shown, result) for result in shown.results]
    doc = f"{'; '.join(map(str, shown.arrays))}.\n\n    Returns {_results(shown)}."
    return _FILE.format(
        case=case.name,
        contract=case.contract,
        file=file.name,
        spec=case.spec,
        refs=", ".join([*(f"{a.name}_ref" for a in shown.arrays), *results]),
        stores="\n".join(f"    {r}[...] = jnp.zeros({r}.shape, {r}.dtype)" for r in results),
        arguments=", ".join(arguments),
        doc=doc,
        out_shape=shapes[0] if len(shapes) == 1 else _lines(shapes),
        operands=", ".join(a.name for a in shown.arrays),
    )


def _results(shown: Layout) -> str:
    return "; ".join(map(str, shown.results))


def _lines(items: list[str]) -> str:
    """A list literal with an item a line."""
    inside = "".join(f"            {item},\n" for item in items)
    return f"[\n{inside}        ]"


def _struct(case: Case, shown: Layout, result: Form) -> str:
    """`jax.ShapeDtypeStruct` of a result, from the arguments as far as they determine it."""
    places = {
        dim: f"{a.name}.shape[{axis}]"
        for a in reversed(shown.arrays)
        for axis, dim in reversed(list(enumerate(a.dims)))
        if isinstance(dim, str)
    } | {name: name for name in _passed(case)}
    dims = [
        places.get(dim, str(shown_dim)) if isinstance(dim, str) else str(shown_dim)
        for dim, shown_dim in zip(result.dims, result.shape, strict=True)
    ]
    dtypes = {a.dtype: f"{a.name}.dtype" for a in reversed(shown.arrays) if a.dtype}
    dtype = dtypes.get(result.dtype or "", f"jnp.dtype({result.example_dtype!r})")
    comma = "," if len(dims) == 1 else ""
    return f"jax.ShapeDtypeStruct(({', '.join(dims)}{comma}), {dtype})"


# --------------------------------------------------------------------------- the commands


def cases_main(arguments: list[str] | None = None) -> None:
    """`conformance cases`."""
    _parser("cases").parse_args(arguments)
    found = load_cases()
    width = max(map(len, found))
    print("\n".join(f"{name:{width}}  {case.contract}" for name, case in found.items()))


def signature_main(arguments: list[str] | None = None) -> None:
    """`conformance signature CASE`."""
    parser = _parser("signature")
    parser.add_argument("case")
    options = parser.parse_args(arguments)
    print(signature(_case(parser, load_cases(), options.case)), end="")


def new_subject_main(arguments: list[str] | None = None) -> None:
    """`conformance new-subject FILE --case CASE`."""
    parser = _parser("new-subject")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--case", required=True)
    options = parser.parse_args(arguments)
    case, file = _case(parser, load_cases(), options.case), options.file
    if file.suffix != ".py":
        parser.error(f"{file}: the name of a subject file ends in .py")
    text = new_subject(case, file)
    try:
        with file.open("x") as made:  # fails where there is one
            made.write(text)
    except OSError as e:
        parser.error(f"{file} is not written: {e.strerror}")
    print(f"{file}: fill in its kernel, then run  pytest --subject={file}")


def _parser(name: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"conformance {name}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _case(parser: argparse.ArgumentParser, cases: Mapping[str, Case], name: str) -> Case:
    if name not in cases:
        parser.error(f"no case {name!r}; known: {', '.join(cases)}")
    return cases[name]
