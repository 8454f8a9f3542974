"""The ds_config file format: the schema of every section, and the JSON text."""
