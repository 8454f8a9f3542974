"""The default recipe, unchanged, and a witness of the ds_config that DeepSpeed was really given.

The recipe itself calls `init_distributed`, and reads its arguments with HfArgumentParser.
"""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import deepspeed

initialize = deepspeed.initialize


def witness(*args: Any, **kwargs: Any) -> Any:
    """Initialize the engine, and write down its ds_config."""
    engine, *rest = initialize(*args, **kwargs)
    if os.environ["RANK"] == "0":
        Path(os.environ["WITNESS"]).write_text(json.dumps(engine.config, default=str))
    return (engine, *rest)


deepspeed.initialize = witness
runpy.run_path(os.environ["RECIPE"], run_name="__main__")
