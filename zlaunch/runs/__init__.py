"""Look back: find runs, say how they ended, compare their memory with the forecast."""
