"""Run programs for real on CPU ranks, and say what each phase held in memory.

`python -m tests.estimate.rehearsal.real_program ORDERS ANSWERS`, once for each rank. ORDERS is a JSON list of
command lines; the answer to number 3 by rank 1 is written to ANSWERS/3.1.json. Nothing here is shared with the
rehearsal.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.estimate.rehearsal import allocations, gloo, real_ranks
from tests.preloading import preload


class Left(BaseException):
    """The program has taken two steps."""


class Watch:
    """Names the phases of a program by the calls of its engines, and leaves it after two steps."""

    def __init__(self, folder: Path, leave: Callable[[], None]) -> None:
        """Save the checkpoint into a folder, and then call `leave`."""
        self._folder, self._leave = folder, leave
        self._steps: dict[int, int] = {}
        self._record: Any = None
        self.optimizer = ""

    def enter(self, name: str) -> None:
        """End a phase, whose garbage is collected in it, and begin another one."""
        from torch.profiler import record_function

        if self._record is not None:
            gc.collect()
            self._record.__exit__(None, None, None)
        self._record = record_function(allocations.MARK + name)
        self._record.__enter__()

    def install(self) -> None:
        """Wrap what creates engines, and their methods."""
        import deepspeed
        from deepspeed.runtime.engine import DeepSpeedEngine

        initialize = deepspeed.initialize

        def initialized(*args: Any, **kwargs: Any) -> Any:
            self.enter("initialize")
            return initialize(*args, **kwargs)

        deepspeed.initialize = initialized
        for name in ("forward", "backward", "step"):
            setattr(DeepSpeedEngine, name, self._watched(name, getattr(DeepSpeedEngine, name)))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(engine: Any, *args: Any, **kwargs: Any) -> Any:
            import torch

            if engine.optimizer is None or not torch.is_grad_enabled():
                return method(engine, *args, **kwargs)
            self.enter("second step" if any(self._steps.values()) else name)
            is_last = name == "step" and engine.is_gradient_accumulation_boundary()
            found = method(engine, *args, **kwargs)
            if is_last:
                self._steps[id(engine)] = self._steps.get(id(engine), 0) + 1
                if min(self._steps.values()) >= 2:
                    self._save(engine)
            return found

        return call

    def _save(self, engine: Any) -> None:
        from transformers import PreTrainedModel

        self.optimizer = type(engine.basic_optimizer).__name__
        self.enter("save")
        if isinstance(engine.module, PreTrainedModel) or hasattr(engine.module, "peft_config"):
            real_ranks.save(engine, self._folder, real_ranks.no_phase)
        else:
            engine.save_checkpoint(str(self._folder))
        self.enter("left")  # what the program frees on its way out belongs to no phase
        self._leave()


def leave() -> None:
    """Leave the program."""
    raise Left


def answer(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a program under the profiler, and account for what it saw."""
    import accelerate.state
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    from zlaunch.worker.hook import accelerate_cpu

    torch.set_num_threads(1)
    accelerate_cpu.allow_deepspeed(accelerate.state)
    gloo.make_prompt()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'ranks'}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=real_ranks.PATIENCE,
    )
    allocations.mark_others()
    watch = Watch(folder / "checkpoint", leave)
    watch.install()
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        experimental_config=_ExperimentalConfig(capture_overload_names=True),
    ) as witness:
        watch.enter("load")
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        try:
            runpy.run_path(words[0], run_name="__main__")
        except Left:
            watch.enter("end")
        else:
            raise AssertionError("the program took fewer than two steps")
    torch.distributed.barrier()
    return {"optimizer": watch.optimizer, **asdict(allocations.account(witness.profiler.kineto_results))}


def main(questions: Path, answers: Path) -> None:
    """Run each program in a process of its own."""
    rank = os.environ["RANK"]
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    preload("transformers.models.llama.modeling_llama", "transformers.trainer", "datasets")
    ShareMemCommBuilder().load(verbose=False)
    gc.disable()
    gc.collect()
    gc.freeze()
    for number, words in enumerate(json.loads(questions.read_text())):
        folder = answers / str(number)
        folder.mkdir(exist_ok=True)
        file = answers / f"{number}.{rank}.json"
        if (child := os.fork()) == 0:
            try:
                said = answer(words, folder)
            except BaseException:  # noqa: BLE001 - whatever it is belongs in the answer
                said = {"failure": traceback.format_exc()}
            file.write_text(json.dumps(said))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
