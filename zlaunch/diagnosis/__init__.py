"""Evidence → verdict: why a run ended as it did, as a function of values."""
