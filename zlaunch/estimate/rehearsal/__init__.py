"""The real DeepSpeed engine on fake tensors: a program of its own, `python -m zlaunch.estimate.rehearsal`.

The installed engine runs unmodified at any world size, on tensors without contents, and every
allocation is written down. Nothing outside this package imports it.
"""
