"""A machine: what it is, what is on it, and what is free."""
