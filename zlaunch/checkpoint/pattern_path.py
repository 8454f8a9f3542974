"""Paths with `[`, `*` or `?`: DeepSpeed searches the files of a checkpoint with `glob`.

Sources: `_get_all_ckpt_names` in deepspeed/runtime/engine.py, and `deepspeed_load_checkpoint` in
transformers/integrations/deepspeed.py.
"""

import glob
import re
import shlex

from zlaunch.checkpoint.find import CheckpointFolder

SPECIAL = re.compile(r"[][*?]")
_FILES = "*_model_states.pt"


def is_misread(checkpoint: CheckpointFolder) -> bool:
    """Whether DeepSpeed finds other files than those of a checkpoint by its path, or none."""
    engine = checkpoint.engine
    if engine is None or not SPECIAL.search(str(engine)):
        return False
    files = glob.glob(str(engine / _FILES))  # noqa: PTH207 - as DeepSpeed calls it
    return sorted(files) != sorted(map(str, engine.glob(_FILES)))


def how_to_rename(checkpoint: CheckpointFolder) -> str:
    """Say what to type to give it a path without these characters."""
    folder = checkpoint.folder.absolute()
    for part in (*reversed(folder.parents), folder):
        if SPECIAL.search(part.name):
            renamed = part.with_name(SPECIAL.sub("_", part.name))
            return f"rename it: `mv {shlex.quote(str(part))} {shlex.quote(str(renamed))}`"
    return "its tag must have none of the characters `[`, `]`, `*` and `?`"
