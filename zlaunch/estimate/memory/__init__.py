"""The closed form: formulas for memory, traffic and step time, and models of torch's allocators."""
