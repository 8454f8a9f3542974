"""Preflight checks: whether the machines have what a job needs."""
