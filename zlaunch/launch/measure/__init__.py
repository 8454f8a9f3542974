"""Measure the best few configurations of a script: run each for some steps on this machine, in turn."""
