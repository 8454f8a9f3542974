"""The program of a check: two ranks of the real engine, and plain torch beside them."""
