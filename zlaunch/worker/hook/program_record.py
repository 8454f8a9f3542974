"""Record what a script really trains with: its engine, the Trainer's final arguments, wrappers of torch."""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from zlaunch.json_lines import plain
from zlaunch.rundir.write import write_record
from zlaunch.worker.hook.imports import unseen, without_first

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import TrainingArguments

    from zlaunch.rundir.record import EngineRecord, ProgramRecord

FSDP = "FullyShardedDataParallel"
PARALLEL: Mapping[str, str] = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": FSDP,
}
"""Module of torch → its class that spreads a model over ranks."""

RECOMPUTES = ("is_activation_checkpointing", "is_gradient_checkpointing")
"""Properties of a model of transformers."""


class ProgramRecorder:
    """Writes facts about a program as they become known; raises nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._record: ProgramRecord = {}

    def engine(self, engine: "DeepSpeedEngine") -> None:
        """Record an engine that was created: the first one that trains, as a reference model has one too."""
        with contextlib.suppress(Exception):
            described = _describe(engine)
            if described["optimizer"]:
                self._record["num_engines"] = self._record.get("num_engines", 0) + 1
            if not self._record.get("engine", {}).get("optimizer"):
                self._record["engine"] = described
                with contextlib.suppress(Exception):
                    self._record["engine"].update(_describe_model(engine))
            self._write()

    def trainer_args(self, args: "TrainingArguments") -> None:
        """Record the arguments with which a Trainer starts to train."""
        with contextlib.suppress(Exception):
            values = args.to_sanitized_dict()
            self._record["trainer_args"] = {name: values[name] for name in sorted(values)}
            self._write()

    def saved(self, args: Sequence[object], kwargs: Mapping[str, object], *, within: bool) -> None:
        """Record where an engine, or else a Trainer, has saved; `within` a save of another kind."""
        with contextlib.suppress(Exception):
            owner, *positional = args
            directories = [*positional[:1], kwargs.get("save_dir"), kwargs.get("output_dir")]
            kind: Literal["saved_checkpoint", "saved_model"] = "saved_checkpoint"
            if not hasattr(owner, "save_16bit_model"):  # a Trainer
                kind = "saved_model"
                directories.append(owner.args.output_dir)  # type: ignore[attr-defined]
            directory = next((named for named in directories if named is not None), None)
            if isinstance(directory, str | os.PathLike) and (kind == "saved_checkpoint" or not within):
                self._record[kind] = os.path.abspath(directory)  # noqa: PTH100
                self._write()

    def tracker(self, name: str, place: Mapping[str, str]) -> None:
        """Record where the script reports its metrics; the last place of each tracker counts."""
        with contextlib.suppress(Exception):
            self._record["trackers"] = {**self._record.get("trackers", {}), name: dict(place)}
            self._write()

    def watch_parallel(self, module: ModuleType) -> None:
        """Record when a wrapper of torch is created."""
        name = PARALLEL[module.__name__]
        owner = getattr(module, name)
        owner.__init__ = self._noting(owner.__init__, name)

    def _noting(self, function: Callable[..., None], name: str) -> Callable[..., None]:
        @functools.wraps(function)
        def noting(*args: object, **kwargs: object) -> None:
            try:
                function(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_first(error)
                raise
            with contextlib.suppress(Exception):
                if name not in self._record.setdefault("parallel", []):
                    self._record["parallel"].append(name)
                    self._write()

        return unseen(noting)

    def _write(self) -> None:
        write_record(self._file, self._record, indent=None)


def _describe(engine: "DeepSpeedEngine") -> "EngineRecord":
    name, optimizer = "", getattr(engine, "basic_optimizer", None)
    if optimizer is not None:
        name = type(optimizer).__name__
    return {
        "kind": type(engine).__name__,
        "stage": int(engine.zero_optimization_stage()),
        "ds_config": plain(engine._config._param_dict),  # noqa: SLF001 - there is no other way to it
        "optimizer": name,
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "grad_accum": int(engine.gradient_accumulation_steps()),
        "train_batch_size": int(engine.train_batch_size()),
    }


def _describe_model(engine: "DeepSpeedEngine") -> "EngineRecord":
    """Describe the model, as far as it says what it is."""
    trained = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
    # At stage 3, a parameter of another rank is empty, and `ds_numel` has its size.
    described: EngineRecord = {
        "trainable": sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in trained)
    }
    if (config := getattr(engine.module, "config", None)) is not None and hasattr(config, "to_dict"):
        described["model_config"] = plain(config.to_dict())
    # transformers 5 has both names, and warns of the second.
    told = (getattr(engine.module, name, None) for name in RECOMPUTES)
    if (recomputes := next((value for value in told if isinstance(value, bool)), None)) is not None:
        described["gradient_checkpointing"] = recomputes
    return described
