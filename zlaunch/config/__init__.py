"""Check, fill in, explain, compare, fix and translate ds_configs."""
