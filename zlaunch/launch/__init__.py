"""Prepare, check, start, monitor, finish and restart jobs."""
