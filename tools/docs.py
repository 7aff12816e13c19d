"""Makes the generated parts of the documentation.

python tools/docs.py cases      docs/cases.md, from the cases and the reference kernels
python tools/docs.py support    docs/support.md and its summary, from `pytest --mode aot --chip all`
python tools/docs.py kills      docs/kills.md and its summary, from a run of all mutants; long
python tools/docs.py speed      docs/speed.md, from timed runs (tools/measure.py); long
python tools/docs.py predicted  docs/predicted.md and its table, from compiles; two minutes
python tools/docs.py readme     puts the generated files into README.md
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import kills
import measure
import predict

from conformance import chips
from conformance.case import Case
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.report.lines import read
from conformance.report.support import Support

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_GENERATED = re.compile(
    r"(?P<begin><!-- generated: (?P<file>\S+) -->\n).*?(?P<end><!-- end -->)", re.S
)


def cases() -> str:
    """Every case: contract, parameters, distributions, bad input, kernels."""
    found = load_cases()
    subject = load_subject(DEFAULT_SUBJECT, tuple(found))
    parts = ["# Cases\n", "Made by `python tools/docs.py cases`.\n"]
    for case in found.values():
        kernels = [k.name for k in subject.kernels if k.case == case.name]
        parts.append(_case(case, kernels))
    return "\n".join(parts)


def _case(case: Case, kernels: list[str]) -> str:
    parameters = [f"| `{n}` | {_parameter(p)} |" for n, p in case.params.items()]
    refused = ", ".join(n.name for n in case.negatives)
    return "\n".join(
        [
            f"## {case.name}\n",
            f"{case.contract}. [Pattern]({case.spec})\n",
            f"Reference kernels: {', '.join(kernels)}.\n",
            "| parameter | |",
            "|---|---|",
            *parameters,
            f"\nRefused: {refused}.\n",
        ]
    )


def _parameter(param) -> str:
    kind = {
        "size": "a length",
        "count": "an integer, 0 or more",
        "block": "a block length; passed to kernels that name it",
    }.get(param.kind, " ".join(f"`{choice}`" for choice in param.choices))
    return kind + ("; passed to `fn`" if param.passed else "")


def support() -> dict[Path, str]:
    """The support matrix of the reference kernels, whole and by kernel, from one run; with the
    versions it was made with."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pytest", "-n", "auto", "-q", "--mode", "aot"]
        command += ["--chip", "all", f"--report={directory}"]
        subprocess.run(command, cwd=ROOT, check=True)
        rows = list(read(Path(directory) / "results.jsonl"))
    kernels = load_subject(DEFAULT_SUBJECT, tuple(load_cases())).kernels
    order = {(k.case, k.name): number for number, k in enumerate(kernels)}
    rows.sort(key=lambda row: order[row["case"], row["kernel"]])
    found = Support(rows, "aot", chips.NAMES)
    versions = f"jax {jax.__version__}, libtpu {measure.libtpu_version()}.\n\n"
    return {
        DOCS / "support.md": versions + found.markdown(),
        DOCS / "support-by-kernel.md": versions + found.by_kernel(),
    }


def readme() -> str:
    """README.md with the generated files put in anew."""

    def insert(match: re.Match[str]) -> str:
        return match["begin"] + (ROOT / match["file"]).read_text() + match["end"]

    return _GENERATED.sub(insert, (ROOT / "README.md").read_text())


def killed() -> dict[Path, str]:
    """Both tables of mutants, from one run."""
    found = kills.tally()
    return {
        DOCS / "kills.md": kills.every_mutant(found),
        DOCS / "kills-by-case.md": kills.by_case(found),
    }


WRITERS: dict[str, Callable[[], dict[Path, str]]] = {
    "cases": lambda: {DOCS / "cases.md": cases()},
    "support": support,
    "kills": killed,
    "speed": lambda: {DOCS / "speed.md": measure.report()},
    "predicted": lambda: {DOCS / name: text for name, text in predict.pages().items()},
    "readme": lambda: {ROOT / "README.md": readme()},
}


def main(names: list[str]) -> None:
    for name in names or ["cases", "readme"]:
        if name not in WRITERS:
            sys.exit(f"{name!r} is not one of {', '.join(WRITERS)}")
        for path, text in WRITERS[name]().items():
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
