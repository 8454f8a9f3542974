"""`zlaunch checkpoint`: list, show and verify checkpoints."""
