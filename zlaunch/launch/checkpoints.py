"""Find the newest complete checkpoint of a Trainer."""

import json
import re
import zipfile
from pathlib import Path

_NAME = re.compile(r"^checkpoint-(\d+)$")


def newest_whole(output_dir: Path, world_size: int, stage: int) -> Path | None:
    """The complete checkpoint with the highest step, if there is one."""
    found = [
        (int(match[1]), path) for path in output_dir.glob("checkpoint-*") if (match := _NAME.match(path.name))
    ]
    return next((path for _, path in sorted(found, reverse=True) if is_whole(path, world_size, stage)), None)


def is_whole(checkpoint: Path, world_size: int, stage: int) -> bool:
    """Whether a Trainer's checkpoint is complete, with DeepSpeed's states of every rank.

    The Trainer writes `trainer_state.json`, DeepSpeed writes `latest` after the states it names. A rank's
    states are a zip archive, whose directory is written last. At stage 0 the optimizer may be in the
    model's file instead.
    """
    try:
        step = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))["global_step"]
        tag = (checkpoint / "latest").read_text("utf-8").strip()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    states = [file for file in (checkpoint / tag).glob("*.pt") if file.name.endswith("_optim_states.pt")]
    models = list((checkpoint / tag).glob("*_model_states.pt"))
    counts = {world_size, 0} if stage == 0 else {world_size}
    are_archives = all(zipfile.is_zipfile(file) for file in (*states, *models))
    return checkpoint.name == f"checkpoint-{step}" and len(states) in counts and bool(models) and are_archives
