"""Train for real on CPU ranks, and say what every phase held in memory: what a rehearsal is held to.

`python -m tests.estimate.rehearsal.real_ranks WORKLOADS ANSWERS`, once for each rank, with RANK, LOCAL_RANK and
WORLD_SIZE set. WORKLOADS is a JSON list of objects with the fields of a Workload; the answer to number 3
by rank 1 is written to ANSWERS/3.1.json. Each workload has a process of its own, forked after the slow
imports, and one more that resumes what the first saved. Nothing here is shared with the rehearsal.
"""

import contextlib
import gc
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.estimate.rehearsal import allocations, gloo, real_images
from tests.estimate.rehearsal.allocations import Level
from tests.estimate.rehearsal.drive import Drive, locked_bytes
from tests.preloading import preload
from zlaunch.job.trainer_releases import is_before

_MODELS = (
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
_AUTO = {"whisper": "AutoModelForSpeechSeq2Seq", "wav2vec2": "AutoModelForCTC"}
"""Type of a model → the class that makes it, if it is no causal language model."""
PATIENCE = timedelta(seconds=120)
"""How long a rank waits for the other."""


Phase = Callable[[str], contextlib.AbstractContextManager[None]]


def phases(drive: Drive, seen: dict[str, Any]) -> Phase:
    """Make what names a phase; what is garbage at its end is collected in it."""
    from torch.profiler import record_function

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        with record_function(allocations.MARK + name):
            drive.most_locked = locked_bytes()
            yield
            gc.collect()
            before = seen["locked"].get(name, Level(0, 0))
            seen["locked"][name] = Level(max(drive.most_locked, before.peak), locked_bytes())
            seen["files"][name] = drive.bytes_in_files()

    return phase


def initialize(workload: dict[str, Any], seen: dict[str, Any], phase: Phase) -> Any:
    """Make the model and initialize the engine, as a training script does."""
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    ds_config = workload["ds_config"]
    with phase("load"):
        # As long as this lives, transformers makes models in zero.Init, as under its Trainer.
        stage3 = HfDeepSpeedConfig(ds_config) if workload["zero_init"] else None
        model = build(workload)
        if workload["lora"]:
            model = adapt(model, workload["lora"], stage3)
        del stage3
        model.train()
        if workload["activation_checkpointing"]:
            model.gradient_checkpointing_enable({"use_reentrant": False})
    seen["parameters"] = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    with phase("initialize"):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = share_sequences(model, workload) if is_shared(workload) else None
        engine, *_ = deepspeed.initialize(
            model=model, config=ds_config, model_parameters=parameters, mpu=groups
        )
    seen["optimizer"] = type(engine.basic_optimizer).__name__
    return engine


def train(workload: dict[str, Any], seen: dict[str, Any], phase: Phase, checkpoint: Path) -> Any:
    """Take two steps from the beginning, and save."""
    engine = initialize(workload, seen, phase)
    for names in (("forward", "backward", "step"), ("second step",) * 3):
        for _ in range(workload["ds_config"]["gradient_accumulation_steps"]):
            micro_step(engine, workload, names, phase)
    if workload["save"]:
        save(engine, checkpoint, phase)
    return engine


def micro_step(engine: Any, workload: dict[str, Any], names: tuple[str, str, str], phase: Phase) -> None:
    """Train on one micro-batch."""
    with phase(names[0]):
        loss = loss_of(engine, batch(workload))
    with phase(names[1]):
        engine.backward(loss)
        del loss
    with phase(names[2]):
        engine.step()


def is_shared(workload: dict[str, Any]) -> bool:
    """Say whether the ranks share each sequence."""
    return "sequence_parallel_size" in workload["ds_config"]


def share_sequences(model: Any, workload: dict[str, Any]) -> Any:
    """Let the ranks share sequences, as accelerate does."""
    import deepspeed
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    return UlyssesSPAttentionHF.register_with_transformers(
        model,
        workload["attention"],
        workload["ds_config"]["sequence_parallel_size"],
        workload["ds_config"]["train_micro_batch_size_per_gpu"],
        seq_length_is_variable=True,
    )


def loss_of(engine: Any, inputs: dict[str, Any]) -> Any:
    """Compute the loss, of shared sequences as the Trainer does."""
    if "shift_labels" not in inputs:
        return engine(**inputs).loss
    from transformers.integrations.deepspeed import deepspeed_sp_compute_loss

    sharing = SimpleNamespace(sp_backend="deepspeed", sp_size=2)
    return deepspeed_sp_compute_loss(None, engine, inputs, False, sharing)


def save(engine: Any, folder: Path, phase: Phase) -> None:
    """Save the weights and then a checkpoint, as transformers' Trainer does."""
    from accelerate import Accelerator, DistributedType

    stage = {"zero_optimization": {"stage": engine.zero_optimization_stage()}}
    accelerator = SimpleNamespace(
        distributed_type=DistributedType.DEEPSPEED,
        deepspeed_config=stage,
        unwrap_model=lambda engine: engine.module,
    )
    adapted = hasattr(engine.module, "peft_config")
    with phase("save"):
        if adapted and engine.zero_optimization_stage() == 3:
            weights = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
        else:
            weights = Accelerator.get_state_dict(accelerator, engine)
        if os.environ["RANK"] == "0":
            engine.module.save_pretrained(folder / "weights", state_dict=weights)
        del weights
        engine.save_checkpoint(str(folder), exclude_frozen_parameters=adapted)


def resume(workload: dict[str, Any], seen: dict[str, Any], phase: Phase, checkpoint: Path) -> Any:
    """Begin again in another process, and load what `train` saved there."""
    allocations.mark_reading()
    engine = initialize(workload, seen, phase)
    with phase("resume"):
        strict = not hasattr(engine.module, "peft_config")
        path, _ = engine.load_checkpoint(str(checkpoint), load_module_strict=strict)
        assert path is not None
    return engine


def build(workload: dict[str, Any]) -> Any:
    """Make a model with random weights."""
    import torch
    import transformers
    from transformers import AutoConfig

    fields = dict(workload["model"])
    auto = getattr(transformers, _AUTO.get(fields["model_type"], "AutoModelForCausalLM"))
    if "vision_config" in fields:
        auto = transformers.AutoModelForImageTextToText
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[workload["load_dtype"]]
    name = "torch_dtype" if is_before(transformers.__version__, "4.56") else "dtype"
    return auto.from_config(config, attn_implementation=workload["attention"], **{name: dtype})


def adapt(model: Any, lora: dict[str, Any], stage3: Any) -> Any:
    """Add adapters; those of stage 3 are of the model's format, as DeepSpeed asks for."""
    import peft

    config = peft.LoraConfig(
        r=lora["rank"], target_modules=lora["modules"], task_type=peft.TaskType.CAUSAL_LM
    )
    return peft.get_peft_model(model, config, autocast_adapter_dtype=stage3 is None)


def batch(workload: dict[str, Any]) -> dict[str, Any]:
    """Make token ids and their labels, and what else the model is trained on."""
    import torch

    model = workload["model"]
    count = workload["ds_config"]["train_micro_batch_size_per_gpu"]
    shape = (count, workload["seq_len"])
    ids, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    if is_shared(workload):
        half = workload["seq_len"] // 2
        first = half * (int(os.environ["RANK"]) % 2)
        ids, labels = (torch.zeros((count, half), dtype=torch.long) for _ in range(2))
        positions = torch.arange(first, first + half).expand(count, half).contiguous()
        return {"input_ids": ids, "position_ids": positions, "shift_labels": labels, "use_cache": False}
    dtype = torch.bfloat16 if "bf16" in workload["ds_config"] else torch.float32
    if model["model_type"] == "whisper":
        return {"input_features": torch.zeros((count, 80, 200), dtype=dtype), "labels": labels}
    if model["model_type"] == "wav2vec2":
        samples = workload["seq_len"] * prod((5, 2, 2, 2, 2, 2, 2))
        return {"input_values": torch.zeros((count, samples), dtype=dtype), "labels": labels}
    if workload.get("images"):
        images = real_images.prepared(workload).batch(ids, dtype)
        return {"input_ids": ids, "labels": labels, "use_cache": False, **images}
    if model["model_type"] != "llava":
        return {"input_ids": ids, "labels": labels, "use_cache": False}
    ids[:, 3 : 3 + model["image_seq_length"]] = model["image_token_index"]
    image = torch.zeros((count, 3, 56, 56), dtype=dtype)
    return {"input_ids": ids, "pixel_values": image, "labels": labels}


@contextlib.contextmanager
def no_phase(_: str) -> Iterator[None]:
    """Leave it to somebody else to name phases."""
    yield


Run = Callable[[dict[str, Any], dict[str, Any], Phase, Path], Any]


def answer(workload: dict[str, Any], folder: Path, run: Run) -> dict[str, Any]:
    """Train, or resume, under the profiler, and account for what it saw; the ranks share a folder."""
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    torch.set_num_threads(1)
    gloo.make_prompt()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / f'to {run.__name__}'}",
        rank=int(os.environ["RANK"]),
        world_size=workload["world_size"],
        timeout=PATIENCE,
    )
    drive = Drive(folder / f"drive to {run.__name__}", os.environ["RANK"])
    if uses_nvme(workload):
        drive.watch()
    if workload.get("images"):
        real_images.prepared(workload)
    seen: dict[str, Any] = {"locked": {}, "files": {}}
    phase = phases(drive, seen)
    began = time.monotonic()
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        experimental_config=_ExperimentalConfig(capture_overload_names=True),
    ) as witness:
        engine = run(swapping_to(drive.folder, workload), seen, phase, folder / "checkpoint")
    seen["seconds"] = time.monotonic() - began
    torch.distributed.barrier()
    del engine
    if os.environ["RANK"] == "0":
        shutil.rmtree(drive.folder, ignore_errors=True)
        if run is resume:
            shutil.rmtree(folder / "checkpoint")
    seen["locked"] = {name: asdict(level) for name, level in seen["locked"].items()}
    return seen | asdict(allocations.account(witness.profiler.kineto_results))


OFFLOADS = ("offload_optimizer", "offload_param")


def uses_nvme(workload: dict[str, Any]) -> bool:
    """Say whether anything is swapped."""
    zero = workload["ds_config"]["zero_optimization"]
    return any(zero.get(name, {}).get("device") == "nvme" for name in OFFLOADS)


def swapping_to(folder: Path, workload: dict[str, Any]) -> dict[str, Any]:
    """Put a directory that is there in the place of that of a cell."""
    zero = workload["ds_config"]["zero_optimization"]
    moved = {
        name: {**zero[name], "nvme_path": str(folder)}
        for name in OFFLOADS
        if zero.get(name, {}).get("device") == "nvme"
    }
    ds_config = {**workload["ds_config"], "zero_optimization": {**zero, **moved}}
    return {**workload, "ds_config": ds_config}


def load_slowly(workloads: list[dict[str, Any]]) -> None:
    """Import, and compile and load native ops, once for all."""
    from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder

    preload(*_MODELS)
    ShareMemCommBuilder().load(verbose=False)
    if any("offload_optimizer" in each["ds_config"]["zero_optimization"] for each in workloads):
        CPUAdamBuilder().load(verbose=False)
    if any(uses_nvme(each) for each in workloads):
        with contextlib.suppress(Exception):  # without libaio, those that swap say so
            AsyncIOBuilder().load(verbose=False)


def in_a_fork(workload: dict[str, Any], folder: Path, run: Run) -> dict[str, Any]:
    """Answer in a process of its own, so that no engine leaves anything to the next."""
    told = folder / f"{run.__name__}.{os.environ['RANK']}.json"
    if (child := os.fork()) == 0:
        try:
            said = answer(workload, folder, run)
        except BaseException:  # noqa: BLE001 - whatever it is belongs in the answer
            said = {"failure": traceback.format_exc()}
        told.write_text(json.dumps(said))
        os._exit(0)
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def main(questions: Path, answers: Path) -> None:
    """Answer each workload."""
    rank = os.environ["RANK"]
    workloads = json.loads(questions.read_text())
    load_slowly(workloads)
    gc.disable()  # whatever is garbage is collected at the end of a phase
    gc.collect()
    gc.freeze()  # what was imported is not looked at again
    for number, workload in enumerate(workloads):
        folder = answers / str(number)
        folder.mkdir(exist_ok=True)
        found = in_a_fork(workload, folder, train)
        if workload["save"] and "failure" not in found:
            found["resumed"] = in_a_fork(workload, folder, resume)
        (answers / f"{number}.{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
