"""`zlaunch hosts`."""
