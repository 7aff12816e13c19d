"""Verdicts as JSON lines, and the matrix that a reader sees at the end of a run."""
