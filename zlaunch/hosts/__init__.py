"""Machines: their GPUs, memory, addresses, packages and environment, here and over ssh."""
