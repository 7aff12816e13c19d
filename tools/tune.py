"""Makes reference_kernels/blocks.json: the best blocks by predicted time, chip by chip.

python tools/tune.py             sweeps what it has no result for; an hour when it has none
python tools/tune.py FILE        the same, keeping every result in FILE, to go on with
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from conformance import chips
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.sweep import load
from conformance.sweeping import Worker, compiling_child, swept, write

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "reference_kernels" / "blocks.json"

# Case, kernel, dtype, chips, sizes of square operands.
SWEPT = (
    ("matmul", "peeled", "bfloat16", ("v5e",), (4096, 8192)),
    ("matmul", "scratch_accumulator", "bfloat16", ("v5e",), (4096, 8192)),
    ("matmul", "peeled", "bfloat16", ("v5p", "v6e", "tpu7x"), (8192,)),
    ("matmul_int8", "peeled", "int8", ("v5e",), (8192,)),
)


def tune(file: Path) -> None:
    """Sweeps into `file`, and writes the best of it."""
    cases = load_cases()
    for case, name, dtype, names, sizes in SWEPT:
        kernel = load_subject(DEFAULT_SUBJECT, tuple(cases)).find(case, name)
        points = [{"m": size, "k": size, "n": size, "dtype": dtype} for size in sizes]
        pairs = [(point, chips.get(chip)) for chip in names for point in points]
        with compiling_child() as child:
            worker = Worker(cases[case], kernel, DEFAULT_SUBJECT, child)
            swept(worker, pairs, file)
        print(f"{case}/{name}: {worker.rate}", flush=True)
    write(load(file).reduced(), TABLE)


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tune(Path(arguments[0]) if arguments else Path(folder) / "sweeps.json")


if __name__ == "__main__":
    main(sys.argv[1:])
