"""A Trainer program for the jobs of `make gpu-jobs`: made-up tokens, and ways to go wrong when told so."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

WARM_UP = 5
"""Steps that are left out when the speed is measured."""


@dataclass
class JobArguments:
    """What to train, and what is to go wrong."""

    model: str = field(metadata={"help": "directory with a config.json"})
    sequence_length: int = field(default=512, metadata={"help": "tokens per sample"})
    room_gib: float = field(default=0, metadata={"help": "fill the GPU but for so much before training"})
    nan_from: int = field(default=0, metadata={"help": "step from which the loss is NaN"})
    speed_file: str = field(default="", metadata={"help": "where steps per second are written"})


@dataclass
class Arguments(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments, with defaults for a run of seconds."""

    max_steps: int = 8
    logging_steps: float = 1
    save_strategy: str = "no"
    report_to: str = "none"


class MadeUp(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples of random tokens, the same in each run."""

    def __init__(self, vocabulary: int, length: int) -> None:
        """Make samples of so many tokens."""
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        """Say that there are enough."""
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Make one sample."""
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self._vocabulary, (self._length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Writes how many steps are taken in a second, once they have warmed up."""

    def __init__(self, file: str) -> None:
        """Measure for a file, or for nothing."""
        self._file, self._began = file, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin after the first steps."""
        if state.global_step == WARM_UP:
            self._began = self._now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the speed of the others."""
        if self._file and state.global_step > WARM_UP:
            speed = (state.global_step - WARM_UP) / (self._now() - self._began)
            Path(self._file).write_text(json.dumps(speed))

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic()


class JobTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose loss becomes NaN when it is told so."""

    nan_from = 0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss, or spoil it."""
        answer = super().compute_loss(model, inputs, *args, **kwargs)
        if not self.nan_from or self.state.global_step + 1 < self.nan_from:
            return answer
        return (answer[0] * float("nan"), *answer[1:]) if isinstance(answer, tuple) else answer * float("nan")


def fill(room_gib: float, args: TrainingArguments) -> torch.Tensor | None:
    """Take the GPU's memory but for some; on a CPU fail as torch would where two samples fit, and no more."""
    if not room_gib:
        return None
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return torch.empty(max(0, free - int(room_gib * 2**30)), dtype=torch.uint8, device="cuda")
    if args.per_device_train_batch_size > 2:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of "
            "which 1.20 GiB is free."
        )
    return None


def main() -> None:
    """Train."""
    job, args = HfArgumentParser((JobArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")  # transformers starts only torch's on a CPU
    config = AutoConfig.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_config(config)
    trainer = JobTrainer(
        model=model,
        args=args,
        train_dataset=MadeUp(config.vocab_size, job.sequence_length),
        callbacks=[Stopwatch(job.speed_file)],
    )
    trainer.nan_from = job.nan_from
    ballast = fill(job.room_gib, args)
    trainer.train()
    del ballast


if __name__ == "__main__":
    main()
