"""The closed form: formulas for memory, and models of torch's allocators."""
