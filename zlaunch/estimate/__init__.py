"""Predict memory and speed of a job: by rehearsal or in closed form; search for configurations that fit."""
