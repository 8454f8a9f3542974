"""`zlaunch runs`: what runs left behind, read back."""
