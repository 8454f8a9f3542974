"""The user's input: options, script, Trainer arguments, model."""
