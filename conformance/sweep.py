"""Block sizes by predicted time: what to choose, what was dropped and why.

    conformance sweep matmul --params m=4096,k=4096,n=4096,dtype=bfloat16 --chip v5e

Each configuration is compiled in a child process for a chip that is not here, and predicted
(`conformance.schedule`). Illegal ones, and those that the compiler refuses or that need too much
VMEM, are dropped with the reason. Results are kept in a JSON file after each configuration, so a
sweep that was interrupted goes on where it stopped. What differs by less than the model's error
is a tie, not a winner.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from conformance import chips, compiler, schedule
from conformance.case import Case, Example, Kernel, Params
from conformance.child import read_message, write_message
from conformance.loading import DEFAULT_SUBJECT, check_params, load_cases, load_subject
from conformance.modes import Call
from conformance.strategies import make_arrays

Options = Mapping[str, Any]

# Predictions of one kernel that differ by less than this are not told apart: the spread, about
# their mean, of the errors against published times of kernels bound by arithmetic.
MODEL_ERROR = 0.02
# Lengths that are tried for a block, beside the whole dimension.
LENGTHS = (128, 256, 512, 1024, 2048)
TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration.

    Attributes:
      options: the block sizes, or whatever the kernel's search space varies.
      seconds: predicted time on the device; None when dropped.
      vmem: bytes of VMEM.
      spilled: bytes of register spill slots.
      limits: of the prediction's validity.
      dropped: why there is no prediction; None when there is one.
    """

    options: Options
    seconds: float | None = None
    vmem: int | None = None
    spilled: int | None = None
    limits: tuple[str, ...] = ()
    dropped: str | None = None


@dataclass(kw_only=True)
class Sweep:
    """The results of a sweep, and what they are for. `dumps` and `loads` are inverse.

    Attributes:
      params: of the example, its blocks left out.
      label: what every time in here is.
    """

    case: str
    kernel: str
    chip: str
    libtpu: str
    params: Params
    results: list[Result] = field(default_factory=list)
    label: str = schedule.LABEL

    def dumps(self) -> str:
        """JSON."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def loads(text: str) -> Sweep:
        """The inverse of `dumps`; ValueError for something else."""
        try:
            fields = json.loads(text)
            rows = [Result(**row | {"limits": tuple(row["limits"])}) for row in fields["results"]]
            return Sweep(**fields | {"results": rows})
        except (TypeError, KeyError) as e:
            raise ValueError(f"not the results of a sweep: {e}") from e

    @property
    def predicted(self) -> list[Result]:
        """Those with a time, the shortest first."""
        found = [r for r in self.results if r.seconds is not None]
        return sorted(found, key=lambda r: (r.seconds, r.vmem))

    def best(self) -> list[Result]:
        """The shortest time and its ties, the least VMEM first.

        Raises:
          ValueError: every configuration was dropped.
        """
        found = self.predicted
        if not found:
            raise ValueError(f"no configuration of {self.case}/{self.kernel} is left")
        least = found[0].seconds or 0.0
        ties = [r for r in found if (r.seconds or 0.0) <= least * (1 + MODEL_ERROR)]
        return sorted(ties, key=lambda r: (r.vmem, r.seconds))

    def pareto(self) -> list[Result]:
        """Those that nothing beats in both time and VMEM."""
        found: list[Result] = []
        for result in self.predicted:
            if not found or (result.vmem or 0) < (found[-1].vmem or 0):
                found.append(result)
        return found


# --------------------------------------------------------------------------- search spaces


def space(case: Case, kernel: Kernel, params: Params, chip: chips.Chip) -> Iterator[Options]:
    """The kernel's own configurations, or all blocks out of `LENGTHS` and whole dimensions."""
    blocks = [name for name, p in case.params.items() if p.kind == "block"]
    if kernel.configs is not None:
        example = Example(case=case.name, params=params, inputs="", seed=0)
        yield from kernel.configs(example, chip)
        return
    lengths = [_lengths(params, name) for name in blocks]
    for chosen in itertools.product(*lengths):
        yield dict(zip(blocks, chosen, strict=True))


def _lengths(params: Params, block: str) -> list[int]:
    """Of the block of a dimension: `bm` is of `m`."""
    whole = params.get(block.removeprefix("b"))
    if not isinstance(whole, int):
        return list(LENGTHS)
    return [n for n in LENGTHS if n < whole] + ([whole] if whole <= LENGTHS[-1] else [])


# --------------------------------------------------------------------------- one configuration


class Evaluator:
    """Compiles and predicts, in the process that may load libtpu."""

    def __init__(self, case: str, kernel: str, subject: str, params: Params, chip: str) -> None:
        self._case = load_cases()[case]
        self._kernel = load_subject(subject, tuple(load_cases())).find(case, kernel)
        self._params, self._chip = params, chips.get(chip)
        self._shapes: tuple[Any, ...] | None = None

    def __call__(self, options: Options) -> Result:
        """The result for one configuration."""
        params = {**self._params, **options}
        try:
            check_params(self._case, params)
        except ValueError as e:
            return Result(options=options, dropped=f"illegal: {e}")
        inputs = self._case.inputs(params)[0]
        example = Example(case=self._case.name, params=params, inputs=inputs, seed=0)
        arrays = self._arrays(example)
        call = Call(case=self._case, kernel=self._kernel, example=example, arrays=arrays)
        if self._kernel.prepare is not None:
            arrays = self._kernel.prepare(*arrays, **call.options)
        fn = functools.partial(self._kernel.fn, **call.options)
        return self._compiled(options, fn, arrays)

    def _arrays(self, example: Example) -> Any:
        """The case's arrays; only their shapes where `prepare` does not need the numbers."""
        if self._kernel.prepare is not None:
            return make_arrays(self._case, example)
        if self._shapes is None:
            made = make_arrays(self._case, example)
            self._shapes = tuple(SimpleNamespace(shape=a.shape, dtype=a.dtype) for a in made)
        return self._shapes

    def _compiled(self, options: Options, fn: Callable[..., Any], arrays: Any) -> Result:
        found = compiler.compile_for(fn, arrays, self._chip, compiler.dump_dir())
        if isinstance(found, compiler.Refused):
            return Result(options=options, dropped=f"{found.kind}: {found.clause}")
        figures: dict[str, Any] = {"vmem": found.vmem_bytes, "spilled": found.spilled_bytes}
        predicted = schedule.predict(found, self._chip)
        if isinstance(predicted, schedule.Unpredicted):
            return Result(options=options, dropped=f"not predicted: {predicted.reason}", **figures)
        return Result(
            options=options, seconds=predicted.seconds, limits=predicted.limits, **figures
        )


# --------------------------------------------------------------------------- the child


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers options with results until the requests end; the first message says for what."""
    evaluate = Evaluator(**read_message(requests))
    write_message(answers, compiler.version())
    while True:
        try:
            options = read_message(requests)
        except EOFError:
            return
        write_message(answers, evaluate(options))


class Worker:
    """The parent's end: a process that is started anew when a configuration has ended it."""

    def __init__(self, what: Mapping[str, Any]) -> None:
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.version = ""

    def __call__(self, options: Options) -> Result:
        """The result for one configuration; what ends or stops the process is one, too."""
        try:
            process = self._started()
            assert process.stdin is not None
            write_message(process.stdin, options)
            found: Result = self._answer()
            return found
        except (EOFError, BrokenPipeError):
            why = "CRASH: the compiling process died"
        except TimeoutError:
            why = f"TIMEOUT: no answer within {TIMEOUT:g} s"
        self.stop()
        return Result(options=options, dropped=why)

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._folder = tempfile.TemporaryDirectory(prefix="conformance-sweep-")
            environment = os.environ | compiler.environment(self._folder.name)
            root = str(Path(__file__).resolve().parent.parent)
            paths = (root, os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.sweep", "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={k: v for k, v in environment.items() if v is not None},
            )
            assert self._process.stdin is not None
            write_message(self._process.stdin, self._what)
            self.version = self._answer()
        return self._process

    def _answer(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(TIMEOUT):
                raise TimeoutError
        return read_message(self._process.stdout)


# --------------------------------------------------------------------------- the command


def run(
    sweep: Sweep,
    configurations: list[Options],
    evaluate: Callable[[Options], Result],
    file: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Evaluates what has no result yet, and writes the file after each."""
    known = {json.dumps(r.options, sort_keys=True) for r in sweep.results}
    for number, options in enumerate(configurations, 1):
        if json.dumps(options, sort_keys=True) not in known:
            sweep.results.append(evaluate(options))
            partial = file.with_suffix(".partial")
            partial.write_text(sweep.dumps())
            os.replace(partial, file)
        progress(number, len(configurations))


def resumed(file: Path, fresh: Sweep) -> Sweep:
    """What the file holds, if it is of the same sweep.

    Raises:
      ValueError: it is of another, or not a sweep's.
    """
    if not file.exists():
        return fresh
    found = Sweep.loads(file.read_text())
    for name in ("case", "kernel", "chip", "libtpu", "params"):
        if getattr(found, name) != getattr(fresh, name):
            raise ValueError(f"{file} is of another sweep: its {name} is {getattr(found, name)!r}")
    return found


def report(sweep: Sweep) -> str:
    """The ties for the best time, the Pareto table, and how many were dropped why."""
    lines = [f"{sweep.case}/{sweep.kernel} on {sweep.chip}, {sweep.label} times"]
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
    time = 1000 * (result.seconds or 0.0)
    limits = "; ".join(result.limits)
    return f"| {_named(result.options)} | {time:.4g} | {result.vmem} | {limits} |"


def _named(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def _parameters(case: Case, text: str) -> dict[str, Any]:
    """`m=8,dtype=float32` as parameters; the blocks are what a sweep chooses."""
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in case.params:
            raise ValueError(f"{case.name} has no parameter {name!r}")
        numeric = case.params[name].kind in ("size", "count", "block")
        found[name] = int(value) if numeric else value
    return found


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{of}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="conformance sweep", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--kernel", help="its name; the first of the case by default")
    parser.add_argument("--subject", default=DEFAULT_SUBJECT)
    parser.add_argument("--chip", default="v5e", choices=chips.NAMES)
    parser.add_argument("--params", default="", help="m=4096,...,dtype=bfloat16")
    parser.add_argument("--out", type=Path, help="JSON file to keep the results in, and resume")
    options = parser.parse_args(arguments)
    try:
        print(_swept(options), end="")
    except ValueError as e:
        parser.error(str(e))


def _swept(options: argparse.Namespace) -> str:
    cases = load_cases()
    if options.case not in cases:
        raise ValueError(f"no case {options.case!r}; known: {', '.join(cases)}")
    case = cases[options.case]
    kernels = load_subject(options.subject, tuple(cases)).kernels
    named = [k for k in kernels if k.case == case.name and options.kernel in (None, k.name)]
    if not named:
        raise ValueError(f"no kernel {options.kernel!r} of {case.name} in {options.subject}")
    params = _parameters(case, options.params)
    what = {"case": case.name, "kernel": named[0].name, "chip": options.chip, "params": params}
    worker = Worker(what | {"subject": options.subject})
    with tempfile.TemporaryDirectory() as folder:
        file = options.out or Path(folder) / "sweep.json"
        try:
            worker._started()
            sweep = resumed(file, Sweep(libtpu=worker.version, **what))
            every = list(space(case, named[0], params, chips.get(options.chip)))
            run(sweep, every, worker, file, _progress)
        finally:
            worker.stop()
    return report(sweep)


def child() -> None:
    """The child's end of a `Worker`; what the compiler prints must not get between answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    from conformance import sweep  # so that results are pickled under the module's own name

    if sys.argv[1:] == ["--child"]:
        sweep.child()
    else:
        sweep.main()
