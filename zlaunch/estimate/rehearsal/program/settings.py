"""What a program is given in place of its own settings: fewer micro-batches, no trackers, no saved model."""

import contextlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from zlaunch.estimate.rehearsal.steps import with_nvme_path
from zlaunch.estimate.workload import MOST_ACCUMULATED
from zlaunch.worker.hook.imports import ImportWatch
from zlaunch.worker.hook.trackers import turn_off


class ProgramSettings:
    """Changes settings of a program, and remembers by how much its steps are shortened."""

    def __init__(self, swap: str) -> None:
        """DeepSpeed deletes the contents of the directory that it swaps to: it gets another one."""
        self._swap = swap
        self.asked = 1
        """Micro-batches of a step as the program wants it."""

    @property
    def shortened(self) -> float:
        """How many times as many micro-batches a step really has."""
        return self.asked / min(self.asked, MOST_ACCUMULATED)

    def install(self) -> None:
        """Change the settings of the Trainer and of accelerate, and let no model be saved."""
        _report_to_nobody(self)
        _save_no_model()

    def shorten(self, asked: Any) -> int:
        """Return the number of micro-batches to rehearse."""
        number = int(asked or 1)
        self.asked = max(self.asked, number)
        return min(number, MOST_ACCUMULATED)

    def replace_config(self, given: dict[str, Any]) -> None:
        """Replace the ds_config among the arguments of `deepspeed.initialize`."""
        args = given.get("args")
        for name in ("config", "config_params"):
            if given.get(name) is not None:
                given[name] = self.ds_config(given[name])
                return
        if args is not None and (file := getattr(args, "deepspeed_config", None)) is not None:
            args.deepspeed_config = None
            given["config"] = self.ds_config(file)

    def ds_config(self, given: Any) -> Any:
        """Return a ds_config as it is rehearsed."""
        if isinstance(given, (str, Path)) and Path(given).is_file():
            given = json.loads(Path(given).read_text("utf-8"))
        if not isinstance(given, Mapping):
            return given
        config = dict(with_nvme_path(self._swap, given))
        if isinstance(accumulated := config.get("gradient_accumulation_steps"), int):
            config["gradient_accumulation_steps"] = self.shorten(accumulated)
            if accumulated > MOST_ACCUMULATED and "train_micro_batch_size_per_gpu" in config:
                config.pop("train_batch_size", None)
        return config


def _report_to_nobody(settings: ProgramSettings) -> None:
    begin = transformers.TrainingArguments.__post_init__

    def initialized(self: transformers.TrainingArguments) -> None:
        self.report_to, self.push_to_hub = "none", False
        self.gradient_accumulation_steps = settings.shorten(self.gradient_accumulation_steps)
        begin(self)

    transformers.TrainingArguments.__post_init__ = initialized
    ImportWatch(["wandb"], turn_off).install()
    try:
        import accelerate
    except ImportError:
        return
    create = accelerate.Accelerator.__init__

    def created(self: accelerate.Accelerator, *args: Any, **kwargs: Any) -> None:
        if "gradient_accumulation_steps" in kwargs:
            kwargs["gradient_accumulation_steps"] = settings.shorten(kwargs["gradient_accumulation_steps"])
        create(self, *args, **kwargs)

    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    read = HfDeepSpeedConfig.__init__

    def shortened(self: HfDeepSpeedConfig, config_file_or_dict: Any) -> None:
        read(self, settings.ds_config(config_file_or_dict))

    HfDeepSpeedConfig.__init__ = shortened  # that of transformers is derived from it
    accelerate.Accelerator.__init__ = created
    accelerate.Accelerator.init_trackers = lambda *_, **__: None
    accelerate.Accelerator.log = lambda *_, **__: None


def _save_no_model() -> None:
    """Save data alone, which a program may read again."""
    save = torch.save

    def saved(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(value, (FakeTensor, torch.nn.Module)) for value in tree_leaves(obj)):
            return
        with _disable_current_modes(), contextlib.ExitStack() as files:
            if isinstance(f, (str, Path)):
                f = files.enter_context(open(f, "wb"))  # noqa: PTH123 - by the function that is confined
            save(obj, f, *args, **kwargs)

    torch.save = saved
    with contextlib.suppress(ImportError):
        writer: Any = importlib.import_module("safetensors.torch")
        writer._flatten = lambda _: {}  # whoever has imported `save_file` calls these two
        writer.serialize_file = lambda *_, **__: None
    for model in (
        transformers.PreTrainedModel,
        transformers.PreTrainedTokenizerBase,
        transformers.ProcessorMixin,
    ):
        model.save_pretrained = lambda *_, **__: ()
