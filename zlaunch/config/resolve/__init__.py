"""Make the ds_config of a job from presets, files, options and "auto", with the source of each value."""
