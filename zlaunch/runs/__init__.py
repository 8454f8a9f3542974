"""Past and running runs: find them, explain how they ended, compare their memory with the forecast."""
