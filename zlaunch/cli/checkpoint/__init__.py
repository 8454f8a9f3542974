"""`zlaunch checkpoint`: list, verify, convert and export checkpoints."""
