"""What a child process does with a request; also the way to run a mode in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import chips, compiler
from conformance.case import Arrays, Case, Example, Kernel, Negative
from conformance.loading import load_cases, load_subject
from conformance.modes import MODES, Call, Mode
from conformance.properties import PROPERTIES, Property
from conformance.recent import Recent
from conformance.strategies import make_arrays
from conformance.timing import Part


class Server:
    """Answers requests: run a kernel in a mode, try a property, predict a time, or compute the XLA
    baseline."""

    def __init__(self) -> None:
        self._evaluator: Any = None
        self._baselines: dict[tuple[Any, ...], Any] = {}
        self._arrays = Recent(1)

    def answer(self, request: Mapping[str, Any]) -> Any:
        """The result of one request; the functions below make them."""
        if request["op"] == "probe":
            return way(request["mode"]).probe()
        if request["op"] == "version":
            return compiler.version()
        cases = load_cases(tuple(request["case_files"]))
        example: Example = request["example"]
        case = cases[example.case]
        if request["op"] == "baseline":
            return self._baseline(case, example)
        if request["op"] == "property-baseline":
            return PROPERTIES[request["mode"]].baseline(case, example)
        subject = load_subject(request["subject"], tuple(cases))
        kernel = subject.find(case.name, request["kernel"])
        if request["op"] == "predict":
            return self._predicted(case, kernel, request)
        if request["op"] == "evaluate":
            return self._evaluate(case, kernel, example, request["chip"])
        call = bind(case, kernel, example, request["negative"])
        if request["mode"] in PROPERTIES:
            return PROPERTIES[request["mode"]].run(call)
        return MODES[request["mode"]].run(call, request["chip"])

    def _predicted(self, case: Case, kernel: Kernel, request: Mapping[str, Any]) -> Any:
        """The arrays are large, and those of one point serve all kernels and XLA."""
        from conformance.modes import _prediction

        example = request["example"]
        arrays = self._arrays.get(example.id, lambda: make_arrays(case, example))
        call = Call(case=case, kernel=kernel, example=example, arrays=arrays)
        chip = chips.get(request["chip"])
        return _prediction.predict_call(call, request["part"], chip, xla=request["xla"])

    def _evaluate(self, case: Case, kernel: Kernel, example: Example, chip: str) -> dict[str, Any]:
        from conformance.modes import _prediction

        if self._evaluator is None:
            self._evaluator = _prediction.Evaluator()
        blocks = {name for name, param in case.params.items() if param.kind == "block"}
        point = tuple((n, v) for n, v in example.params.items() if n not in blocks)
        make = functools.partial(make_arrays, case, example)
        if kernel.prepare is None:
            arrays = self._evaluator.shapes((case.name, point), make)
        else:
            arrays = make()
        call = Call(case=case, kernel=kernel, example=example, arrays=arrays)
        return self._evaluator.evaluate(call, chips.get(chip))

    def _baseline(self, case: Case, example: Example) -> tuple[np.ndarray, ...]:
        import jax

        arrays = make_arrays(case, example)
        key = (case.name, *example.params.items())
        if key not in self._baselines:
            self._baselines[key] = jax.jit(lambda *a: case.baseline(example.params, *a))
        result = self._baselines[key](*arrays)
        return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(result))


def way(name: str) -> Mode | Property:
    """The mode or the property of that name; no name is both."""
    return MODES[name] if name in MODES else PROPERTIES[name]


def run_request(
    subject: str,
    case_files: tuple[str, ...],
    mode: str,
    chip: str | None,
    kernel: Kernel,
    example: Example,
    negative: str | None = None,
) -> dict[str, Any]:
    """Asks for one kernel on one example in one mode, or about one property; answered with an
    Outcome."""
    return {
        "op": "run",
        "subject": subject,
        "case_files": case_files,
        "mode": mode,
        "chip": chip,
        "kernel": kernel.name,
        "example": example,
        "negative": negative,
    }


def baseline_request(case_files: tuple[str, ...], example: Example) -> dict[str, Any]:
    """Asks for XLA's own results on one example; answered with a tuple of arrays."""
    return {"op": "baseline", "case_files": case_files, "example": example}


def predict_request(
    subject: str,
    case_files: tuple[str, ...],
    chip: str,
    kernel: Kernel,
    example: Example,
    part: Part,
    xla: bool,
) -> dict[str, Any]:
    """Asks how long a kernel's call, or XLA's own code for it, would take; answered with a
    `schedule.Prediction`, a `schedule.Unpredicted` or a Failure."""
    return {
        "op": "predict",
        "subject": subject,
        "case_files": case_files,
        "chip": chip,
        "kernel": kernel.name,
        "example": example,
        "part": part,
        "xla": xla,
    }


def property_baseline_request(
    case_files: tuple[str, ...], name: str, example: Example
) -> dict[str, Any]:
    """Asks what XLA's own code does about a property; answered with a tuple of Use."""
    return {
        "op": "property-baseline",
        "case_files": case_files,
        "mode": name,
        "example": example,
    }


def probe_request(mode: str) -> dict[str, Any]:
    """Asks why a mode cannot run in this process; answered with the reason or None."""
    return {"op": "probe", "mode": mode}


def evaluate_request(
    subject: str, case_files: tuple[str, ...], chip: str, kernel: Kernel, example: Example
) -> dict[str, Any]:
    """Asks for the predicted time of one kernel on one example; answered with a dictionary of
    `sweep.Result`'s fields but for the options, and of the sweep's arguments and options."""
    return {
        "op": "evaluate",
        "subject": subject,
        "case_files": case_files,
        "chip": chip,
        "kernel": kernel.name,
        "example": example,
    }


def version_request() -> dict[str, Any]:
    """Asks which libtpu compiles; answered with a line."""
    return {"op": "version"}


def bind(case: Case, kernel: Kernel, example: Example, negative: str | None) -> Call:
    """A kernel bound to an example: arrays made, options chosen."""
    if negative is None:
        arrays = make_arrays(case, example)
    else:
        arrays = negative_arrays(case, find_negative(case, negative), example)
    return Call(case=case, kernel=kernel, example=example, arrays=arrays)


def find_negative(case: Case, name: str) -> Negative:
    """The negative example `name` of a case."""
    return next(n for n in case.negatives if n.name == name)


def negative_arrays(case: Case, negative: Negative, example: Example) -> Arrays:
    """The arrays of a negative example."""
    if negative.arrays is not None:
        return negative.arrays(negative.params)
    return make_arrays(case, example)
