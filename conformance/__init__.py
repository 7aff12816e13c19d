"""Conformance suite for Pallas TPU kernels: is it right, will it compile, is it fast.

The names below are what a subject or a case file needs; everything else is the engine.
"""

from conformance.case import (
    Case,
    DomainError,
    Example,
    Kernel,
    Negative,
    Param,
    Work,
)
from conformance.numerics import Arithmetic, Reference
from conformance.verdict import Status, Verdict

__version__ = "0.1.0"

__all__ = [
    "Arithmetic",
    "Case",
    "DomainError",
    "Example",
    "Kernel",
    "Negative",
    "Param",
    "Reference",
    "Status",
    "Verdict",
    "Work",
]
