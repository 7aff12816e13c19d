"""Stores a reference kernel as `jax.export` serialises it, for tests of what later versions read.

    python tools/export.py matmul/scratch_accumulator smoke FILE

The file is for TPUs of any generation, made with the abstract device of one (the chip of property
`export`). Run it with the version of jax whose export is to be kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from conformance.examples import parse_id
from conformance.loading import DEFAULT_SUBJECT, load_cases, load_subject
from conformance.properties.export import exported
from conformance.serve import bind


def main() -> None:
    """Writes the file and says how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", help="case/name")
    parser.add_argument("example", help="id of a pinned example of the case")
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    # Names of source files without their folders, here and in Mosaic's module.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    case, _, name = given.kernel.partition("/")
    cases = load_cases()
    kernel = load_subject(DEFAULT_SUBJECT, tuple(cases)).find(case, name)
    example = parse_id(cases, f"{case}/{given.example}")[0]
    stored = exported(bind(cases[case], kernel, example, None))
    given.file.write_bytes(stored)
    print(f"{given.file}: {len(stored)} bytes")


if __name__ == "__main__":
    main()
