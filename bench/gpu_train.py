"""A Trainer script for `make gpu-jobs`, with random tokens and options to fail on purpose."""

import json
import threading
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
"""Steps before the speed is measured."""


@dataclass
class JobArguments:
    """The model, and how to fail."""

    model: str = field(metadata={"help": "directory with a config.json"})
    sequence_length: int = field(default=512, metadata={"help": "tokens per sample"})
    room_gib: float = field(default=0, metadata={"help": "fill GPU memory except for this many GiB"})
    nan_from: int = field(default=0, metadata={"help": "step from which the loss is NaN"})
    speed_file: str = field(default="", metadata={"help": "file for the steps per second"})
    memory_file: str = field(default="", metadata={"help": "file for samples of GPU memory"})


@dataclass
class Arguments(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments, with defaults for a run of seconds."""

    max_steps: int = 8
    logging_steps: float = 1
    save_strategy: str = "no"
    report_to: str = "none"


class RandomTokens(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random tokens, the same in each run."""

    def __init__(self, vocabulary: int, length: int) -> None:
        """Set the size of the vocabulary and of a sample."""
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        """Return a size that is never reached."""
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return a sample."""
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self._vocabulary, (self._length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Writes the steps per second after the warm-up."""

    def __init__(self, file: str) -> None:
        """Write to `file`, unless it is empty."""
        self._file, self._began = file, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start after the warm-up."""
        if state.global_step == WARM_UP:
            self._began = self._now()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the speed."""
        if self._file and state.global_step > WARM_UP:
            speed = (state.global_step - WARM_UP) / (self._now() - self._began)
            Path(self._file).write_text(json.dumps(speed))

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic()


class JobTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose loss can become NaN."""

    nan_from = 0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss; NaN from step `nan_from` on."""
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if not self.nan_from or self.state.global_step + 1 < self.nan_from:
            return loss
        return (loss[0] * float("nan"), *loss[1:]) if isinstance(loss, tuple) else loss * float("nan")


def fill(room_gib: float, args: TrainingArguments) -> torch.Tensor | None:
    """Allocate all but `room_gib` of the GPU; on a CPU, raise torch's error for more than two samples."""
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


def sample_memory(file: str) -> None:
    """Write seconds, and GPU bytes in tensors, reserved, and in use, five times a second."""
    from bench.gpu_device import device_use

    began = time.monotonic()
    with open(file, "w") as out:  # noqa: PTH123 - a line at a time
        while True:
            sizes = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), device_use())
            print(
                f"{time.monotonic() - began:.2f}", *(f"{n / 2**20:.0f}" for n in sizes), file=out, flush=True
            )
            time.sleep(0.2)


def main() -> None:
    """Train."""
    job, args = HfArgumentParser((JobArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:
        import deepspeed

        deepspeed.init_distributed(
            dist_backend="gloo"
        )  # on a CPU, transformers initializes only torch's process group
    if job.memory_file:
        threading.Thread(target=sample_memory, args=(job.memory_file,), daemon=True).start()
    config = AutoConfig.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_config(config)
    trainer = JobTrainer(
        model=model,
        args=args,
        train_dataset=RandomTokens(config.vocab_size, job.sequence_length),
        callbacks=[Stopwatch(job.speed_file)],
    )
    trainer.nan_from = job.nan_from
    ballast = fill(job.room_gib, args)
    trainer.train()
    del ballast


if __name__ == "__main__":
    main()
