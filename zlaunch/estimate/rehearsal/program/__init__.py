"""A user's program, unmodified, on fake tensors: `python -m zlaunch.estimate.rehearsal.program`.

Its data are real, its models are not. What it would do on other ranks, on a GPU, on the network or on disk is
answered here.
"""
