"""The speed of a job: what a rank communicates in a step, and how long the step takes."""
