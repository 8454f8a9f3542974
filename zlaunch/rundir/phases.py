"""Phases of a rank, as they are shown. Imports nothing, because the ranks import it."""

STARTING = "starting"
ATTACHING = "waiting for the debugger"
IMPORTING = "importing"
JOINING = "joining the process group"
BUILDING = "building ops"
LOADING = "loading the model"
INITIALIZING = "initializing DeepSpeed"
TRAINING = "training"
FORWARD = "forward"
BACKWARD = "backward"
STEPPING = "optimizer step"
EVALUATING = "evaluating"
SAVING = "saving"
RESUMING = "resuming"
EXITING = "exiting"

STEPS = (TRAINING, FORWARD, BACKWARD, STEPPING)
"""The phases of a training step."""

ALL = (
    *(STARTING, ATTACHING, IMPORTING, JOINING, BUILDING, LOADING, INITIALIZING),
    *STEPS,
    *(EVALUATING, SAVING, RESUMING, EXITING),
)
"""All phases, in the order of a run."""
