"""Ask the installed DeepSpeed: `python -m zlaunch.config.deepspeed_check WORLD_SIZE`, with the JSON on stdin.

Creates the real DeepSpeedConfig for that many ranks, without ranks or GPUs, and prints its error as JSON, or
`null`.
"""

import contextlib
import io
import json
import logging
import os
import sys
from types import SimpleNamespace

from zlaunch import console


def opinion(config: dict[str, object], world_size: int) -> str | None:
    """Ask the installed DeepSpeed; None if it accepts the config."""
    from deepspeed.runtime import config as deepspeed_config

    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    deepspeed_config.dist.get_rank = lambda *_: 0
    deepspeed_config.dist.get_world_size = lambda group=world_size: group
    # the mesh that `deepspeed.initialize` creates; instead of a group it returns the group's size
    mesh = SimpleNamespace(get_group=lambda mesh_dim: config["data_parallel_size"])
    has_mesh = {"sequence_parallel_size", "data_parallel_size"} <= config.keys()
    try:
        deepspeed_config.DeepSpeedConfig(config, mesh_device=mesh if has_mesh else None)
    except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Print the answer on stdout, without what DeepSpeed prints."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    config = json.load(sys.stdin)
    with contextlib.redirect_stdout(io.StringIO()):
        refusal = opinion(config, int(sys.argv[1]))
    console.data(json.dumps(refusal))


if __name__ == "__main__":
    main()
