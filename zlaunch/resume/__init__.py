"""Resume from a checkpoint: choose it, check that it fits, hand it over, plan saves, restart."""
