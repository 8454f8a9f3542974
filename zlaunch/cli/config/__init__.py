"""`zlaunch config`: everything about ds_config files."""
