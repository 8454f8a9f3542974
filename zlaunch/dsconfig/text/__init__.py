"""JSON text with the position of each key, for findings and edits."""
