"""Make DeepSpeed engines on the CPU from many ds_configs, and say what became of each.

`python -m tests.contract.engine_side < configs.json > outcomes.json`: an object of configs becomes one of
outcomes. Each has a process of its own, forked after the slow imports.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.preloading import preload

TRAINED = "trained"


def outcome(config: dict[str, Any], rendezvous: Path) -> str:
    """Train two steps; say so, or what was raised."""
    import deepspeed
    import torch

    layer = torch.nn.Linear(8, 8)
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
        engine = deepspeed.initialize(model=layer, model_parameters=layer.parameters(), config=config)[0]
        half = torch.bfloat16 if engine.bfloat16_enabled() else torch.half if engine.fp16_enabled() else None
        for _ in range(2):
            engine.backward(engine(torch.randn(1, 8, dtype=half)).float().sum())
            engine.step()
    except BaseException as error:  # noqa: BLE001 - DeepSpeed raises a Warning, too
        return f"{type(error).__name__}: {error}"
    return TRAINED


def in_a_process(config: dict[str, Any], directory: Path) -> str:
    """Fork, so that no engine leaves its state to the next."""
    answer = directory / "answer"
    if (child := os.fork()) == 0:
        os.dup2(2, 1)
        answer.write_text(outcome(config, directory / "rendezvous"))
        os._exit(0)
    os.waitpid(child, 0)
    return answer.read_text() if answer.exists() else "the process ended"


def main() -> None:
    """Answer for all configs on stdin."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    import deepspeed  # noqa: F401 - before the forks

    preload()
    outcomes = {}
    for name, config in json.load(sys.stdin).items():
        with tempfile.TemporaryDirectory() as directory:
            outcomes[name] = in_a_process(config, Path(directory))
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
