"""Checkpoints on disk: recognize, read and verify them, export their weights, prepare them for other ranks.

Files of torch are read without torch and without executing their pickles, so a checkpoint that is not trusted
can be looked at.
"""
