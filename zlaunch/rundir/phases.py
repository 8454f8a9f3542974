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

DATA = "waiting for data"
COMMUNICATION = "communication"
SWAPPING = "swapping"
COPYING = "offload copies"
PARTS = (DATA, COMMUNICATION, SWAPPING, COPYING)
"""Parts of the phases of a step whose time is counted apart; a rank's phase stays the one around them."""

STEPS = (TRAINING, FORWARD, BACKWARD, STEPPING)
"""The phases of a training step."""

OF_A_STEP = (*STEPS, *PARTS)
"""All that the time of a step is made of."""

ALL = (
    *(STARTING, ATTACHING, IMPORTING, JOINING, BUILDING, LOADING, INITIALIZING),
    *STEPS,
    *(EVALUATING, SAVING, RESUMING, EXITING),
)
"""All phases, in the order of a run."""
