"""Watch a job while it runs: samples, progress, stalls, and what its ranks print."""
