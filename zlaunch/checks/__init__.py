"""Every question that is put to a machine or a plan; `doctor` and `train` are two views of it."""
