"""What the user asks for: options, script, Trainer arguments, model."""
