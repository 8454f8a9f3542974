"""Paths with `[`, `*` or `?`: DeepSpeed searches the files of a checkpoint with `glob`.

Sources: `_get_all_ckpt_names` in deepspeed/runtime/engine.py, and `deepspeed_load_checkpoint` in
transformers/integrations/deepspeed.py.
"""

import glob
import re
import shlex
from pathlib import Path

from zlaunch.checkpoint.find import CheckpointFolder
from zlaunch.files import shown

SPECIAL = re.compile(r"[][*?]")
_FILES = "*_model_states.pt"


def is_misread(checkpoint: CheckpointFolder) -> bool:
    """Whether DeepSpeed finds other files than those of a checkpoint by its path, or none."""
    engine = checkpoint.engine
    if engine is None or not SPECIAL.search(str(engine)):
        return False
    found = glob.glob(str(engine / _FILES))  # noqa: PTH207 - as DeepSpeed calls it
    return sorted(found) != sorted(map(str, engine.glob(_FILES)))


def how_to_rename(checkpoint: CheckpointFolder) -> str:
    """Say how to give it a path that is no pattern: by a link, so that its own name stays."""
    folder = checkpoint.folder.absolute()
    special = [one for one in (*reversed(folder.parents), folder) if SPECIAL.search(one.name)]
    if not special:
        return "its tag must have none of the characters `[`, `]`, `*` and `?`"
    linked, place = special[-1], special[0].parent
    link = place / SPECIAL.sub("_", linked.name)
    while link.exists() and not link.samefile(linked):
        link = link.with_name(f"{link.name}_")
    name = f"name it `{shown(link / folder.relative_to(linked))}`"
    return name if link.exists() else f"`ln -s {_quoted(linked)} {_quoted(link)}`, and {name}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
