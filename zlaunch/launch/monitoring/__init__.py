"""Monitor a running job: samples, progress, stalls and output."""
