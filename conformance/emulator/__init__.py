"""Executing the compiler's IR on a CPU: compiler IR, not hardware.

types     element, vector and memref types
memory    words, tilings, references, poison
ops/      what each operation means, a module a dialect or unit
program   MLIR text -> Python functions
dma       copies and semaphores
grid      blocks, write-back, cores: what happens around a kernel's body
agreement execution under conditions that must not matter
"""

from conformance.emulator.agreement import Defect, agreed
from conformance.emulator.grid import Conditions, run
from conformance.emulator.ops import Unknown
from conformance.emulator.program import Program, build

__all__ = ["Conditions", "Defect", "Program", "Unknown", "agreed", "build", "run"]
