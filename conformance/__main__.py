"""`python -m conformance`, where the command is not installed."""

from conformance.cli import main

main()
