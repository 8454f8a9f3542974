"""Whether a configuration trains the same as plain torch: `zlaunch check`."""
