"""One function for each known way to die: evidence of a run → what happened, or None."""
