"""What a rank can be doing, in the words that are shown. Imports nothing: it is read inside the ranks."""

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
"""Those that make up a training step."""

ALL = (
    *(STARTING, ATTACHING, IMPORTING, JOINING, BUILDING, LOADING, INITIALIZING),
    *STEPS,
    *(EVALUATING, SAVING, RESUMING, EXITING),
)
"""All of them, in the order in which a run comes to them."""
