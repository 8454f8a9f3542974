"""Benchmarks and GPU checks; not shipped."""
