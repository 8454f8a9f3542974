"""Every question put to a machine or a plan; `doctor` and `train` are two views of the answers."""
