"""The command `conformance`; judging is pytest's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from conformance import importing, starting, sweeping, vendor

COMMANDS: Mapping[str, tuple[str, Callable[[list[str]], None]]] = {
    "sweep": ("block sizes by predicted time", sweeping.main),
    "cases": ("names and contracts", starting.cases_main),
    "signature": ("what a case asks of a kernel", starting.signature_main),
    "new-subject": ("a file to start a kernel from", starting.new_subject_main),
    "vendor": ("cases for another repository", vendor.main),
    "import-example": ("a pinned example of a failing call", importing.main),
}


def main(arguments: list[str] | None = None) -> None:
    """Hands the rest of the command line to the command that it names."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    known = "; ".join(f"{name}: {what}" for name, (what, _) in COMMANDS.items())
    parser.add_argument("command", choices=tuple(COMMANDS), help=known)
    command = parser.parse_args(given[:1]).command
    COMMANDS[command][1](given[1:])


if __name__ == "__main__":
    main()
