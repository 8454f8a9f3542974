"""What is known of each key: its name, type, default, effects, and when DeepSpeed reads it."""
