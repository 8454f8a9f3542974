"""Checkpoints as a Trainer leaves them in its output directory."""

import json
import shutil
from pathlib import Path


def trainers(output: Path, step: int, source: Path) -> Path:
    """A checkpoint of a Trainer; the state of the engine is that of the source."""
    import torch

    checkpoint = Path(shutil.copytree(source, output / f"checkpoint-{step}"))
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    torch.save({"last_epoch": step}, checkpoint / "scheduler.pt")
    return checkpoint
