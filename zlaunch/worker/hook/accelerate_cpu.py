"""Let accelerate use DeepSpeed on a CPU.

Without a GPU, accelerate joins no process group unless it is told to use the CPU, and then it does not use
DeepSpeed. Here it is told that the backend of a CPU is gloo, and the rest is its own code, as on GPUs.
"""

import functools
import os
from types import ModuleType

MODULE = "accelerate.state"


def allow_deepspeed(state: ModuleType) -> None:
    """Choose gloo where accelerate would not join the other ranks, if DeepSpeed is to run on the CPU."""
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        return
    prepare = state.PartialState._prepare_backend  # noqa: SLF001 - it has no other place for this

    @functools.wraps(prepare)
    def chosen(*args: object, **kwargs: object) -> tuple[object, object]:
        backend, kind = prepare(*args, **kwargs)
        uses_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
        if backend is None and uses_deepspeed and "LOCAL_RANK" in os.environ:
            return "gloo", state.DistributedType.MULTI_CPU
        return backend, kind

    state.PartialState._prepare_backend = chosen  # noqa: SLF001
