"""The ranks that `save_kills` kills: each line of the input is a job, for which two ranks are forked."""

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - a program of its own
from torch import nn  # noqa: TID253

RANKS, INPUTS, HIDDEN, LAYERS = 2, 64, 768, 6


class Net(nn.Module):  # type: ignore[misc]
    """Some megabytes, so that a save takes a moment."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [INPUTS, *[HIDDEN] * LAYERS, INPUTS]
        self.layers = nn.ModuleList(nn.Linear(first, second) for first, second in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x - 0.5).pow(2).mean()


class Dropping(nn.Module):  # type: ignore[misc]
    """A net whose losses depend on the state of the random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss, as a Trainer takes it."""
        return {"loss": self.net(nn.functional.dropout(x, 0.5)) + 0 * labels.sum()}


class Log:
    """What a rank records."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        """Append to the file of a rank."""
        self._file = (Path(job["folder"]) / f"rank{rank}.jsonl").open("a", buffering=1)

    def write(self, **event: object) -> None:
        """Write one event."""
        self._file.write(json.dumps(event) + "\n")

    def save(self, step: int, moment: str) -> None:
        """Record that a save begins or ends."""
        self.write(save=moment, step=step, at=time.monotonic())


def config(job: dict[str, Any]) -> dict[str, Any]:
    """Write the ds_config."""
    is_offloaded = "offload_optimizer" in job["zero"]
    parameters = {"lr": 0.001} if is_offloaded else {"lr": 0.001, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": job["zero"],
        "bf16": {"enabled": True},
        "optimizer": {"type": "Adam", "params": parameters},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": job.get("universal", False)},
    }


def engine(job: dict[str, Any], rank: int) -> None:
    """Train with a loop over an engine."""
    import deepspeed

    log, saves = Log(job, rank), Path(job["folder"]) / "saves"
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    settings = config(job)
    if job["zero"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            net = Net()
    else:
        net = Net()
    made, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings)
    if job["resume"] is not None:
        found, _ = made.load_checkpoint(str(saves), tag=Path(job["resume"]).name)
        assert found
    while made.global_steps < job["steps"]:
        torch.manual_seed(made.global_steps * RANKS + rank)
        loss = made(torch.randn(4, INPUTS).to(torch.bfloat16))
        made.backward(loss)
        made.step()
        step = made.global_steps
        log.write(loss=float(loss).hex(), step=step)
        log.save(step, "begins")
        made.save_checkpoint(str(saves))
        log.save(step, "ends")


def trainer(job: dict[str, Any], rank: int) -> None:
    """Train with a Trainer, which keeps the two newest checkpoints."""
    import deepspeed
    from transformers import Trainer, TrainingArguments

    log = Log(job, rank)

    class Recorded(Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            log.write(loss=float(loss).hex(), step=self.state.global_step + 1)
            return loss

        def _save_checkpoint(self, *args: Any, **options: Any) -> None:
            log.save(self.state.global_step, "begins")
            super()._save_checkpoint(*args, **options)
            log.save(self.state.global_step, "ends")

    settings = {**config(job), "train_micro_batch_size_per_gpu": "auto"}
    arguments = TrainingArguments(
        output_dir=str(Path(job["folder"]) / "saves"),
        deepspeed=settings,
        use_cpu=True,
        bf16=True,
        max_steps=job["steps"],
        save_steps=1,
        save_total_limit=2,
        per_device_train_batch_size=4,
        learning_rate=0.001,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    if job["zero"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config(job)):
            net = Dropping()
    else:
        net = Dropping()
    data = [{"x": torch.randn(INPUTS), "labels": torch.zeros(1)} for _ in range(64)]
    Recorded(net, arguments, train_dataset=data).train(resume_from_checkpoint=job["resume"])


def started(job: dict[str, Any]) -> list[int]:
    """Fork the ranks of a job."""
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]))
        status = 1
        try:
            with (Path(job["folder"]) / f"rank{rank}.log").open("ab") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            PROGRAMS[job["program"]](job, rank)
            status = 0
        except Exception:  # noqa: BLE001 - a rank ends with a traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pids


PROGRAMS: Mapping[str, Callable[[dict[str, Any], int], None]] = {"engine": engine, "trainer": trainer}


def main() -> None:
    """Answer each line of the input with a line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # DeepSpeed prints to stdout
    import deepspeed
    from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder

    assert deepspeed
    if "trainer" in sys.argv:
        import transformers

        assert transformers.Trainer
    needed = [ShareMemCommBuilder, CPUAdamBuilder]
    if "nvme" in sys.argv:
        needed.append(AsyncIOBuilder)
    for builder in needed:  # a fork has what is loaded here
        builder().load(verbose=False)
    torch.set_num_threads(1)
    pids: list[int] = []
    print(json.dumps("ready"), file=answers)
    port = 20_000 + os.getpid() % 20_000
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        if asked == "wait":
            print(
                json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), file=answers
            )
        else:
            pids = started({**asked, "port": port + number})
            print(json.dumps(pids), file=answers)


if __name__ == "__main__":
    main()
