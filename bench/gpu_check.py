"""Predictions of GPU memory beside what one CUDA device measures: `python -m bench.gpu_check [SECONDS]`.

Each cell is rehearsed first and its prediction written down. Then the same job is one real rank of so
many, with real tensors on the device and a process group in which nobody else is: its numbers are
garbage, its memory is real. Writes `bench/results/gpu-<date>.md` and `.json`.
"""

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean
from typing import Any

from bench.gpu_cells import CELLS, Cell

RESULTS = Path(__file__).parent / "results"
QUANTITIES = ("allocated", "reserved", "process")


def predictions() -> list[dict[str, Any]]:
    """Rehearse every cell."""
    from pydantic import TypeAdapter

    from zlaunch.memory.workload import Workload
    from zlaunch.rehearse import rehearse

    workloads = [TypeAdapter(Workload).validate_python(cell.workload()) for cell in CELLS]
    forecasts = rehearse(workloads, jobs=max(1, min(8, (os.cpu_count() or 2) - 1)))
    return [
        {
            "method": forecast.method,
            "why": forecast.why_not_rehearsed or forecast.late_error,
            "allocated": forecast.peak("gpu"),
            "reserved": forecast.peak("reserved"),
            "phases": {phase.name: phase.peak.get("gpu", 0) for phase in forecast.phases},
        }
        for forecast in forecasts
    ]


def measured_in_fork(cell: Cell) -> dict[str, Any]:
    """Measure a cell in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            found = measure(cell.workload())
        except BaseException as error:  # noqa: BLE001 - what it raised is the result
            found = {"error": "".join(traceback.format_exception(error)[-3:])}
        with os.fdopen(writer, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if text else {"error": "it ended without a word"}
    return found


def measure(workload: dict[str, Any]) -> dict[str, Any]:
    """Train two steps as one rank, and read torch's own counters and the driver's, in bytes."""
    import torch
    from transformers.integrations import HfDeepSpeedConfig

    join(workload)
    cuda = torch.cuda.is_available()
    before = device_use() if cuda else 0
    phases: dict[str, int] = {}

    reserved = 0

    @contextlib.contextmanager
    def phase(name: str) -> Any:
        nonlocal reserved
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        yield
        gc.collect()
        if cuda:
            phases[name] = max(phases.get(name, 0), torch.cuda.max_memory_allocated())
            reserved = max(reserved, torch.cuda.max_memory_reserved())

    gc.disable()
    with phase("load"):
        stage3 = HfDeepSpeedConfig(workload["ds_config"]) if workload["zero_init"] else None
        net = build(workload)
        del stage3
    with phase("initialize"):
        engine = initialize(workload, net)
    for names in (("forward", "backward", "step"), ("second step",) * 3):
        with phase(names[0]):
            loss = engine(**batch(workload, engine.device)).loss
        with phase(names[1]):
            engine.backward(loss)
            del loss
        with phase(names[2]):
            engine.step()
    if not cuda:
        return {"phases": phases}
    return {
        "allocated": max(phases.values()),
        "reserved": reserved,
        "process": device_use() - before + reserved - torch.cuda.memory_reserved(),
        "phases": phases,
    }


def device_use() -> int:
    """Say how much of the device is in use by anybody, as the driver counts it; bytes."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def join(workload: dict[str, Any]) -> None:
    """Join a process group of the right size, in which nobody else is."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(workload["world_size"]),
        LOCAL_WORLD_SIZE=str(workload["ranks_per_host"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    distributed.init_process_group("fake", rank=0, world_size=workload["world_size"], store=FakeStore())


def build(workload: dict[str, Any]) -> Any:
    """Make the model on the host, without spending time on its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    fields = dict(workload["model"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with no_init_weights():
        net = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    net.train()
    if workload["activation_checkpointing"]:
        net.gradient_checkpointing_enable({"use_reentrant": False})
    return net


def initialize(workload: dict[str, Any], net: Any) -> Any:
    """Give the model to DeepSpeed with the Trainer's optimizer and its two groups."""
    import deepspeed
    import torch
    from transformers.trainer_pt_utils import get_parameter_names

    no_decay = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decayed = set(get_parameter_names(net, [torch.nn.LayerNorm], no_decay))
    halves = [
        [p for name, p in net.named_parameters() if (name in decayed) is decay] for decay in (True, False)
    ]
    groups = [{"params": half, "weight_decay": 0.0} for half in halves if half]
    config = {**workload["ds_config"], "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(groups, fused=True)
    engine, *_ = deepspeed.initialize(model=net, config=config, optimizer=optimizer)
    return engine


def batch(workload: dict[str, Any], device: Any) -> dict[str, Any]:
    """Make one micro-batch of token ids with labels."""
    import torch

    shape = (workload["ds_config"]["train_micro_batch_size_per_gpu"], workload["seq_len"])
    ids, labels = (torch.zeros(shape, dtype=torch.long, device=device) for _ in range(2))
    return {"input_ids": ids, "labels": labels, "use_cache": False}


def with_process(prediction: dict[str, Any]) -> dict[str, Any]:
    """Add the CUDA context to what is predicted to be reserved; nobody is there for NCCL to talk to."""
    from zlaunch.memory.hardware import overhead_bytes

    return {**prediction, "process": prediction["reserved"] + sum(overhead_bytes(1)) // 2}


def table(rows: list[tuple[Cell, dict[str, Any], dict[str, Any]]], device: str) -> str:
    """Write the figures as Markdown: GiB predicted / measured, and the error in percent."""
    import deepspeed
    import torch
    import transformers

    versions = f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__}, "
    versions += f"transformers {transformers.__version__}"
    lines = [
        f"# GPU memory, predicted and measured: {device}",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {versions}. GiB: predicted before / measured (error).",
        "",
        "| cell | " + " | ".join(QUANTITIES) + " |",
        "|---|" + "---|" * len(QUANTITIES),
    ]
    errors: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    for cell, predicted, found in rows:
        if "error" in found:
            lines.append(f"| {cell} | not measured: {found['error'].strip().splitlines()[-1]} | | |")
            continue
        texts = []
        for name in QUANTITIES:
            error = predicted[name] / found[name] - 1
            errors[name].append(error)
            texts.append(f"{predicted[name] / 2**30:.2f} / {found[name] / 2**30:.2f} ({error:+.1%})")
        lines.append(f"| {cell} | " + " | ".join(texts) + " |")
    lines.append("")
    for name, found_errors in errors.items():
        if found_errors:
            sizes = [abs(error) for error in found_errors]
            worst = f"worst {max(sizes):.1%}, lowest {min(found_errors):+.1%}"
            lines.append(f"{name}: mean error {mean(sizes):.1%}, {worst}  ")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Predict, measure, write; stop measuring after so many seconds."""
    deadline = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 480)
    RESULTS.mkdir(exist_ok=True)
    name = RESULTS / f"gpu-{datetime.now(timezone.utc):%Y-%m-%d}"
    predicted = predictions()
    name.with_suffix(".json").write_text(
        json.dumps({"cells": [str(c) for c in CELLS], "predicted": predicted})
    )
    import deepspeed  # noqa: F401 - imported once for all forks
    import transformers  # noqa: F401

    measured = []
    for cell in CELLS:
        late = time.monotonic() > deadline
        measured.append({"error": "no time was left"} if late else measured_in_fork(cell))
        print(f"{cell}: {measured[-1].get('error', 'measured')}", flush=True)
    import torch

    rows = [(cell, with_process(p), m) for cell, p, m in zip(CELLS, predicted, measured, strict=True)]
    text = table(rows, torch.cuda.get_device_name(0))
    name.with_suffix(".md").write_text(text)
    everything = [{"cell": asdict(cell), "predicted": p, "measured": m} for cell, p, m in rows]
    name.with_suffix(".json").write_text(json.dumps(everything, indent=1))
    print(text)


if __name__ == "__main__":
    main()
