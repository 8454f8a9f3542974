"""Write a checkpoint whose optimizer was on NVMe as if it had been in memory.

`python -m zlaunch.checkpoint.swap_in ENGINE OUT` writes to OUT what DeepSpeed's conversion reads. Like that,
it executes the pickles of the checkpoint.
"""

import os
import shutil
import sys
from pathlib import Path

from zlaunch.checkpoint.engine_files import ModelFile, OptimFile, engine_files
from zlaunch.checkpoint.swap_files import swap_files


def main(engine: Path, out: Path) -> None:
    """Write the files of the optimizer with their numbers, and link those of the model."""
    import torch

    files = engine_files(engine)
    assert files is not None
    out.mkdir()
    for file in files.model.values():
        try:
            os.link(file, out / file.name)
        except OSError:  # another file system, or one without hard links
            shutil.copy2(file, out / file.name)
    for (dp, mp), file in files.optim.items():
        shard, state = OptimFile(file), torch.load(file, "cpu", weights_only=False)
        optimizer = state["optimizer_state_dict"]
        for swapped in swap_files(ModelFile(files.model[dp, mp]), shard, dp):
            numbers = torch.from_file(str(swapped.path), size=swapped.tensor.numel)
            if swapped.state:
                optimizer["optimizer_state_dict"]["state"][swapped.group][swapped.state] = numbers
            else:
                optimizer["fp32_flat_groups"][swapped.group] = numbers
        torch.save(state, out / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
