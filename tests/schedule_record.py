"""What the schedules of the pinned smoke examples look like, by version of libtpu.

    python tests/schedule_record.py         compares the installed libtpu with its record
    python tests/schedule_record.py --write writes the record

A record holds, for each kernel and example on one chip, predicted cycles (of all operations,
waiting included), bytes of spill slots and bytes of VMEM; or why there is no prediction. The
process compiles, so it is started as its own child.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance import chips, compiler, schedule
from conformance.case import Example, Kernel
from conformance.examples import pinned
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.serve import bind

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests" / "data" / "schedules"
CHIP = "v5e"
# A change that is worth a look: predicted cycles and VMEM by a twentieth, spills at all.
BAND = 0.05

Record = Mapping[str, Mapping[str, Any]]


def version() -> str:
    """Of the installed libtpu, as far as it names a release."""
    return ".".join(importlib.metadata.version("libtpu").split(".")[:3])


def stored(release: str) -> Record | None:
    """The record of a release, or None."""
    file = RECORDS / f"{release}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def changes(before: Record, now: Record) -> Iterator[str]:
    """What differs by more than the band, one line each; also what is new or gone."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            yield f"{name}: {'is new' if old is None else 'is gone'}"
            continue
        for what in sorted({*old, *new}):
            if _differ(what, old.get(what), new.get(what)):
                yield f"{name}: {what} {old.get(what)} -> {new.get(what)}"


def _differ(what: str, old: Any, new: Any) -> bool:
    if isinstance(old, str) or isinstance(new, str) or old is None or new is None:
        return old != new
    return old != new if what == "spilled" else abs(new - old) > BAND * max(old, new)


# ------------------------------------------------------------------ in the child


def made() -> Record:
    """The record of this process's libtpu."""
    cases = load_cases()
    subject = load_subject(DEFAULT_SUBJECT, tuple(cases))
    found = {}
    for kernel in subject.kernels:
        examples = {e.pinned: e for e in reversed(pinned(cases[kernel.case], "smoke"))}
        for name, example in sorted(examples.items()):
            found[f"{kernel.case}/{kernel.name}/{name}"] = _one(kernel, example)
    return found


def _one(kernel: Kernel, example: Example) -> dict[str, Any]:
    from conformance.modes import _prediction, _staging

    call = bind(load_cases()[kernel.case], kernel, example, None)
    fn = functools.partial(kernel.fn, **call.options)
    result, predicted = _prediction.compile_and_predict(
        fn, _staging.prepared(call), chips.get(CHIP)
    )
    if isinstance(result, compiler.Refused):
        return {"refused": result.clause}
    return _figures(result, predicted)


def _figures(
    result: compiler.Compiled, predicted: schedule.Prediction | schedule.Unpredicted
) -> dict[str, Any]:
    figures: dict[str, Any] = {"spilled": result.spilled_bytes, "vmem": result.vmem_bytes}
    if isinstance(predicted, schedule.Unpredicted):
        return figures | {"unpredicted": predicted.reason}
    return figures | {"cycles": round(sum(o.cycles + o.stalled for o in predicted.operations))}


# ------------------------------------------------------------------ the parent


def make() -> Record:
    """The record of the installed libtpu, made in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | compiler.environment(folder) | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, __file__, "--child", f"{folder}/record.json"],
            cwd=ROOT,
            env={k: v for k, v in environment.items() if v is not None},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return json.loads(Path(folder, "record.json").read_text())


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--child"]:
        Path(arguments[1]).write_text(json.dumps(made()))
        return
    record = make()
    if arguments == ["--write"]:
        RECORDS.mkdir(parents=True, exist_ok=True)
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in record.items())
        (RECORDS / f"{version()}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    before = stored(version())
    print("\n".join(changes(before, record)) if before else f"no record of libtpu {version()}")


if __name__ == "__main__":
    main(sys.argv[1:])
