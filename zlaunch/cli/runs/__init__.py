"""`zlaunch runs`: list, show, explain, stop and repeat runs."""
