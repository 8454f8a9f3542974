"""From presets, files, options and "auto" to the ds_config of a job, with the source of each value."""
