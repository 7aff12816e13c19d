"""Sweeps over block sizes: what to choose, what was dropped and why.

    conformance sweep matmul --chip v5e,v6e --shape m=4096,k=4096,n=4096 --dtype bfloat16

Each configuration is compiled in a child process for a chip that is not here, and predicted
(`conformance.schedule`). Illegal ones, and those that the compiler refuses or that need too much
VMEM, are dropped with the reason. With --out, results are kept in a JSON file after each
configuration, so a sweep that was interrupted goes on where it stopped, and `conformance.sweep`
can call the kernel with them.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from conformance import chips, compiler, serve
from conformance.case import Case, Example, Kernel, Params
from conformance.child import Child, ChildDied, ChildTimeout
from conformance.loading import DEFAULT_SUBJECT, check_params, load_cases, load_subject
from conformance.runner import explain
from conformance.sweep import MODEL_ERROR, Options, Result, Sweep, Sweeps, load

# Lengths that are tried for a block, beside the whole dimension.
LENGTHS = (128, 256, 512, 1024, 2048)
# Seconds that a configuration may take to compile.
TIMEOUT = 300.0
# Resident bytes beyond which the compiling process is replaced.
MEMORY = 4_000_000_000
_NUMBERS = ("size", "count", "block")


# --------------------------------------------------------------------------- search spaces


def space(case: Case, kernel: Kernel, params: Params, chip: chips.Chip) -> Iterator[Options]:
    """The kernel's own configurations, or all blocks out of `LENGTHS` and whole dimensions.

    A block that the kernel does not take is the whole dimension.
    """
    if kernel.configs is not None:
        example = Example(case=case.name, params=params, inputs="", seed=0)
        yield from _own(kernel, example, chip)
        return
    taken = inspect.signature(kernel.prepare or kernel.fn).parameters
    blocks = [name for name, p in case.params.items() if p.kind == "block"]
    lengths = [_lengths(params, name, name in taken) for name in blocks]
    for chosen in itertools.product(*lengths):
        yield dict(zip(blocks, chosen, strict=True))


def _own(kernel: Kernel, example: Example, chip: chips.Chip) -> list[Options]:
    """The kernel's own search space; ValueError when it raises, or is none."""
    assert kernel.configs is not None
    try:
        found = list(kernel.configs(example, chip))
    except Exception as e:
        raise ValueError(f"configs of {kernel.name} raised {type(e).__name__}: {e}") from e
    for options in found:
        if not isinstance(options, Mapping):
            raise ValueError(f"configs of {kernel.name} must give dictionaries, got {options!r}")
    return [{k: getattr(v, "item", lambda v=v: v)() for k, v in o.items()} for o in found]


def _lengths(params: Params, block: str, taken: bool) -> list[int]:
    """Of the block of a dimension: `bm` is of `m`."""
    whole = params.get(block.removeprefix("b"))
    if not isinstance(whole, int):
        return list(LENGTHS)
    if not taken:
        return [whole]
    return [n for n in LENGTHS if n < whole] + ([whole] if whole <= LENGTHS[-1] else [])


# --------------------------------------------------------------------------- one configuration


@dataclass
class Worker:
    """Evaluates configurations of a sweep in a child process.

    Attributes:
      seconds: spent so far.
      evaluated: configurations that the child was asked about.
    """

    case: Case
    kernel: Kernel
    subject: str
    child: Child
    seconds: float = 0.0
    evaluated: int = 0

    def __call__(self, sweep: Sweep, options: Options) -> Result:
        """The result for one configuration; what ends or stops the process is one, too.

        Raises:
          EngineError: the suite itself failed.
        """
        params = {**sweep.params, **options}
        try:
            check_params(self.case, params)
        except ValueError as e:
            return Result(options=options, dropped=f"illegal: {e}")
        inputs = self.case.inputs(params)[0]
        example = Example(case=self.case.name, params=params, inputs=inputs, seed=0)
        request = serve.evaluate_request(self.subject, (), sweep.chip, self.kernel, example)
        started = time.monotonic()
        try:
            found = self.child.call(request, TIMEOUT)
        except ChildDied as e:
            return Result(options=options, dropped=f"CRASH: {explain(e)}")
        except ChildTimeout as e:
            return Result(options=options, dropped=f"TIMEOUT: {e}")
        finally:
            self.seconds += time.monotonic() - started
            self.evaluated += 1
        sweep.arguments, sweep.options = found.pop("arguments"), found.pop("options")
        return Result(options=options, **found)

    @property
    def rate(self) -> str:
        """How many configurations a second, in words; "" when there were none."""
        if not self.evaluated:
            return ""
        rate = self.evaluated / self.seconds
        return f"evaluated {self.evaluated} in {self.seconds:.1f} s, {rate:.2f} a second"


@contextlib.contextmanager
def compiling_child() -> Iterator[Child]:
    """A child that compiles for chips that are not here."""
    with tempfile.TemporaryDirectory(prefix="conformance-sweep-") as folder:
        child = Child(compiler.environment(folder), MEMORY)
        try:
            yield child
        finally:
            child.stop()


def run(
    sweep: Sweep,
    configurations: Sequence[Options],
    evaluate: Callable[[Sweep, Options], Result],
    save: Callable[[], None],
    progress: Callable[[], None],
) -> None:
    """Evaluates what has no result yet, and saves after each."""
    known = {json.dumps(r.options, sort_keys=True) for r in sweep.results}
    for options in configurations:
        if json.dumps(options, sort_keys=True) not in known:
            sweep.results.append(evaluate(sweep, options))
            save()
        progress()


def write(sweeps: Sweeps, file: Path) -> None:
    """Replaces the file at once, so that it is whole whenever the sweep is interrupted."""
    partial = file.with_suffix(".partial")
    partial.write_text(sweeps.dumps())
    os.replace(partial, file)


# --------------------------------------------------------------------------- the report


def report(sweep: Sweep) -> str:
    """The ties for the best time, the Pareto table, and how many were dropped why."""
    point = ",".join(f"{name}={value}" for name, value in sweep.params.items())
    lines = [f"{sweep.name} {point} on {sweep.chip}, {sweep.label} times"]
    if sweep.predicted:
        ties = ", ".join(_named(r.options) for r in sweep.best())
        lines += [f"best, within the model's error of {100 * MODEL_ERROR:g} %: {ties}", ""]
        lines += ["| options | ms | VMEM bytes | limits |", "|---|---|---|---|"]
        lines += [_row(r) for r in sweep.pareto()]
    reasons: dict[str, int] = {}
    for result in sweep.results:
        if result.dropped:
            reasons[result.dropped] = reasons.get(result.dropped, 0) + 1
    lines += ["", *(f"dropped {count}: {why}" for why, count in sorted(reasons.items()))]
    return "\n".join(lines).rstrip() + "\n"


def _row(result: Result) -> str:
    milliseconds = 1000 * (result.seconds or 0.0)
    limits = "; ".join(result.limits)
    return f"| {_named(result.options)} | {milliseconds:.4g} | {result.vmem} | {limits} |"


def _named(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


# --------------------------------------------------------------------------- the command


def points(
    case: Case, shapes: Sequence[str], dtype: str | None, others: Sequence[str]
) -> list[Params]:
    """What is swept, one point a shape, parameters in the order of the case.

    Args:
      shapes: as "m=4096,k=4096": every length and count.
      dtype: if the case has that parameter.
      others: as "activation=relu": what is neither.

    Raises:
      ValueError: names the parameter that is unknown, missing, or given in another place.
    """
    given = _assigned(case, "--params", ",".join(others))
    if dtype is not None and "dtype" not in case.params:
        raise ValueError(f"--dtype: {case.name} has no parameter dtype")
    if dtype is not None:
        given["dtype"] = dtype
    return [_point(case, _assigned(case, "--shape", shape) | given) for shape in shapes or [""]]


def _assigned(case: Case, option: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in case.params:
            known = ", ".join(case.params)
            raise ValueError(f"{option} {part}: {case.name} has the parameters {known}")
        kind, place = case.params[name].kind, _place(case, name)
        if place != option:
            raise ValueError(f"{option} {part}: {name} is a {kind}: its place is {place}")
        if name in found:
            raise ValueError(f"{option} {part}: {name} is given twice")
        found[name] = (
            _value(option, part, value) if kind in _NUMBERS else _chosen(case, name, value)
        )
    return found


def _chosen(case: Case, name: str, value: str) -> Any:
    """The choice that is written so; a value that is none is refused with the others."""
    return next((c for c in case.params[name].choices if str(c) == value), value)


def _place(case: Case, name: str) -> str:
    """The option that a parameter is given with."""
    if name == "dtype":
        return "--dtype"
    places = {"size": "--shape", "count": "--shape", "block": "the sweep"}
    return places.get(case.params[name].kind, "--params")


def _value(option: str, part: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{option} {part}: {value!r} is not an integer") from None


def _point(case: Case, given: dict[str, Any]) -> Params:
    """In the order of the case, checked but for the blocks."""
    point = {}
    for name, param in case.params.items():
        if param.kind == "block":
            continue
        if name not in given:
            raise ValueError(f"{case.name}: {name} is missing: give it with {_place(case, name)}")
        value = point[name] = given[name]
        least = 0 if param.kind == "count" else 1
        if param.kind in _NUMBERS and value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value}")
        if param.kind not in _NUMBERS and value not in map(str, param.choices):
            choices = ", ".join(map(str, param.choices))
            raise ValueError(f"{name} must be one of {choices}, got {value}")
    return point


def _chips(text: str) -> list[chips.Chip]:
    return list(chips.ALL) if text == "all" else [chips.get(name) for name in text.split(",")]


def _kernel(case: Case, subject: str, name: str | None) -> Kernel:
    kernels = load_subject(subject, tuple(load_cases())).kernels
    named = [k for k in kernels if k.case == case.name and name in (None, k.name)]
    if not named:
        raise ValueError(f"--kernel: no kernel {name!r} of {case.name} in {subject}")
    return named[0]


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="conformance sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case")
    parser.add_argument("--kernel", help="its name; the first of the case by default")
    parser.add_argument("--subject", default=DEFAULT_SUBJECT, help="file, package or module")
    parser.add_argument("--chip", default="v5e", help="names of chips, or all")
    parser.add_argument(
        "--shape", action="append", default=[], help="m=4096,k=4096,n=4096; repeatable"
    )
    parser.add_argument("--dtype", help="of the operands")
    parser.add_argument(
        "--params", action="append", default=[], help="what is no length: activation=relu"
    )
    parser.add_argument("--out", type=Path, help="JSON file to keep the results in, and resume")
    options = parser.parse_args(arguments)
    try:
        print(_swept(options), end="")
    except (ValueError, OSError) as e:
        parser.error(str(e))
    except KeyboardInterrupt:
        kept = f"; what was evaluated is in {options.out}" if options.out else ""
        parser.exit(130, f"interrupted{kept}\n")


def _swept(options: argparse.Namespace) -> str:
    cases = load_cases()
    if options.case not in cases:
        raise ValueError(f"no case {options.case!r}; known: {', '.join(cases)}")
    case = cases[options.case]
    kernel = _kernel(case, options.subject, options.kernel)
    wanted = points(case, options.shape, options.dtype, options.params)
    pairs = [(point, chip) for point in wanted for chip in _chips(options.chip)]
    if (reason := compiler.availability()) is not None:
        raise ValueError(reason)
    with compiling_child() as child:
        worker = Worker(case, kernel, options.subject, child)
        found = swept(worker, pairs, options.out)
    return "\n".join([*map(report, found), worker.rate]).rstrip() + "\n"


def _require_same(worker: Worker, sweep: Sweep) -> None:
    """ValueError when what is kept is of other code: a result is evaluated again and differs."""
    if not sweep.predicted:
        return
    kept = sweep.shortest()
    again = worker(sweep, kept.options)
    if again.seconds != kept.seconds:
        raise ValueError(
            f"{sweep.name} is no longer what was swept: {_named(kept.options)} took "
            f"{kept.seconds} s and takes {again.seconds} s; remove the file"
        )


def swept(
    worker: Worker, pairs: Sequence[tuple[Params, chips.Chip]], file: Path | None
) -> list[Sweep]:
    """Sweeps at every point on its chip, going on with what the file holds.

    Raises:
      ValueError: the file is not of sweeps, or of another libtpu; there is no configuration.
      EngineError: the suite itself failed.
    """
    kept = load(file) if file is not None and file.exists() else Sweeps()
    version = worker.child.call(serve.version_request(), TIMEOUT)
    found = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for point, chip in pairs:
            fresh = Sweep(
                case=worker.case.name,
                kernel=worker.kernel.name,
                chip=chip.name,
                libtpu=version,
                params=point,
            )
            sweep = kept.of(fresh)
            _require_same(worker, sweep)
            every = list(space(worker.case, worker.kernel, point, chip))
            if not every:
                values = ", ".join(f"{n}={v}" for n, v in point.items())
                raise ValueError(f"{sweep.name} has no configuration for {values} on {chip.name}")
            bar = progress.add_task(f"{sweep.name} on {chip.name}", total=len(every))
            run(
                sweep,
                every,
                worker,
                lambda: None if file is None else write(kept, file),
                lambda bar=bar: progress.advance(bar),  # type: ignore[misc]
            )
            found.append(sweep)
    return found
