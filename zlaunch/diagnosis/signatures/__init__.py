"""Failure signatures: one function per cause, from the evidence of a run to a reading or None."""
