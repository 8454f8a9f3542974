"""Pydantic models of DeepSpeed's sections, with their defaults."""
