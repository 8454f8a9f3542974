"""The run directory: its files, records and control files."""
