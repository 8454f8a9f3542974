"""DeepSpeed's own engine on a GPU that is not there: a program of its own, `python -m zlaunch.rehearsal`.

The installed engine runs unmodified at any world size, on tensors without contents, and every
allocation is written down. Nothing outside this package imports it.
"""
