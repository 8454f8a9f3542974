"""`zlaunch config`: check, explain, compare and write ds_configs."""
