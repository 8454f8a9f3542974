"""The real DeepSpeed engine on fake tensors, as a program: `python -m zlaunch.estimate.rehearsal`.

The installed engine runs at any world size, on tensors without data, and every allocation is logged.
Other packages start the program, and import nothing from here.
"""
