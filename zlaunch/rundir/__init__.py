"""The run directory: its files, and how they are read."""
