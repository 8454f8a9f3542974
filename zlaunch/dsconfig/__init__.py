"""The language DeepSpeed speaks: every section of a ds_config, and the text it is written in."""
