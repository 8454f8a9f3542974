"""What `zlaunch config` does with a ds_config: check, fill in, explain, compare, fix and translate it."""
