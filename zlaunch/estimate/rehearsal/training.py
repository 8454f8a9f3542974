"""What a training script does: join the process group, create the optimizer, initialize the engine, train.

`bench/gpu_cell.py` runs the same code on a real device.
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from torch import distributed, optim

from zlaunch.estimate.rehearsal.model import CannotTell, NotRehearsed, base_of
from zlaunch.estimate.workload import Workload

Batch = dict[str, "torch.Tensor | bool"]
Groups = list[dict[str, "list[torch.nn.Parameter] | float"]]

_NO_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Parameters without weight decay, from `Trainer.get_decay_parameter_names` of transformers."""


def _adafactor(groups: Groups) -> optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(groups, 1e-3, scale_parameter=False, relative_step=False)


_OPTIMIZERS: dict[str, Callable[[Groups], optim.Optimizer]] = {
    "adamw_torch_fused": lambda groups: optim.AdamW(groups, fused=True),
    "adamw_torch": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
    "adafactor": _adafactor,
}
"""The Trainer's `--optim` → the optimizer that it creates."""


def join_process_group(workload: Workload) -> None:
    """Join a fake process group of the job's size, as the rank of the workload."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK=str(workload.rank),
        LOCAL_RANK=str(workload.rank % workload.ranks_per_host),
        WORLD_SIZE=str(workload.world_size),
        LOCAL_WORLD_SIZE=str(min(workload.ranks_per_host, workload.world_size)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    distributed.init_process_group(
        "fake", rank=workload.rank, world_size=workload.world_size, store=FakeStore()
    )
    deepspeed.init_distributed(dist_backend="fake", verbose=False)  # without it, `zero.Init` sees one rank


def initialize(workload: Workload, model: torch.nn.Module) -> deepspeed.DeepSpeedEngine:
    """Call `deepspeed.initialize` as the script would; raise NotRehearsed if that is not possible."""
    options: dict[str, Any] = {"model": model, "config": dict(workload.ds_config)}
    if workload.groups.layers > 1 and not hasattr(deepspeed.DeepSpeedEngine, "_apply_autotp_partitioning"):
        raise NotRehearsed("AutoTP is rehearsed with DeepSpeed 0.19, whose engine shares the layers")
    if workload.groups.sequences > 1:
        options["mpu"] = share_sequences(workload, model)
    if workload.optimizer is None:
        options["model_parameters"] = [p for p in model.parameters() if p.requires_grad]
    elif "optimizer" in workload.ds_config:
        options["model_parameters"] = parameter_groups(model)
    else:
        options["config"]["zero_allow_untested_optimizer"] = True  # as accelerate does
        optimizer = optimizer_of(workload, parameter_groups(model))
        options["optimizer"] = with_host_optimizer(workload, optimizer)
    return deepspeed.initialize(**options)[0]


def share_sequences(workload: Workload, model: torch.nn.Module) -> Any:
    """Let ranks share sequences by DeepSpeed's Ulysses as accelerate does; return their groups.

    Raise CannotTell for a model that it refuses.
    """
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    base = base_of(model)
    try:
        return UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=base,
            core_attn_implementation=base.config._attn_implementation,
            sequence_parallel_size=workload.groups.sequences,
            micro_batch_size=int(workload.ds_config["train_micro_batch_size_per_gpu"]),
            seq_length_is_variable=True,
        )
    except (ValueError, AttributeError) as error:
        raise CannotTell(f"its sequences cannot be shared by DeepSpeed's Ulysses: {error}") from None


def parameter_groups(model: torch.nn.Module, weight_decay: float = 0.0) -> Groups:
    """Return the trained parameters in the groups of the Trainer: those with weight decay, and the others."""
    from transformers.trainer_pt_utils import get_parameter_names

    names = get_parameter_names(model, [torch.nn.LayerNorm])
    decayed = {name for name in names if not any(re.search(part, name.lower()) for part in _NO_DECAY)}
    with_decay, without_decay = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name in decayed:
            with_decay.append(parameter)
        else:
            without_decay.append(parameter)
    groups = ((with_decay, weight_decay), (without_decay, 0.0))
    return [{"params": group, "weight_decay": decay} for group, decay in groups if group]


def optimizer_of(workload: Workload, groups: Groups) -> optim.Optimizer:
    """Create the Trainer's optimizer; raise NotRehearsed for one that is not known here."""
    create = _OPTIMIZERS.get(str(workload.optimizer))
    if create is None:
        raise NotRehearsed(f"the Trainer's `--optim {workload.optimizer}` cannot be rehearsed")
    return create(groups)


def base_optimizer(engine: Any) -> optim.Optimizer:
    """Return the optimizer that an engine has wrapped, for example in that of ZeRO."""
    base: optim.Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return base


def with_host_optimizer(workload: Workload, optimizer: optim.Optimizer) -> optim.Optimizer:
    """Replace an optimizer that is offloaded, as accelerate does."""
    offload = workload.ds_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    is_forced = workload.ds_config.get("zero_force_ds_cpu_optimizer", True)
    if offload.get("device", "none") == "none" or not is_forced:
        return optimizer
    return _on_the_host(optimizer)


def _on_the_host(optimizer: optim.Optimizer) -> optim.Optimizer:
    """Replace an optimizer as accelerate does under offload; before 1.2, always by DeepSpeed's CPU Adam."""
    try:
        from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed
    except ImportError:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(optimizer.param_groups)
    return map_pytorch_optim_to_deepspeed(optimizer)


def take_step(
    engine: deepspeed.DeepSpeedEngine,
    make_batch: Callable[[], Batch],
    phase: Callable[[str], AbstractContextManager[None]],
    num_micro_batches: int,
) -> None:
    """Train one step; `phase` is entered with `forward`, `backward` and `step` for each micro-batch.

    Raise CannotTell if the model returns no loss.
    """
    for _ in range(num_micro_batches):
        with phase("forward"):
            loss = _loss(engine, make_batch())
        with phase("backward"):
            engine.backward(loss)
            del loss
        with phase("step"):
            engine.step()


def _loss(engine: deepspeed.DeepSpeedEngine, batch: Batch) -> torch.Tensor:
    """Compute the loss as the Trainer does: a mean over all ranks that share the sequences."""
    if "shift_labels" not in batch:
        return loss_of(engine(**batch))
    from transformers.integrations.deepspeed import deepspeed_sp_compute_loss

    sharing = SimpleNamespace(sp_backend="deepspeed", sp_size=engine.sequence_parallel_size)
    loss: torch.Tensor = deepspeed_sp_compute_loss(None, engine, batch, False, sharing)
    return loss


def loss_of(output: object) -> torch.Tensor:
    """Return the loss in what a model returns; raise CannotTell if there is none."""
    loss = getattr(output, "loss", None)
    if isinstance(output, tuple):
        loss = output[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CannotTell("the model returns no loss for the inputs that zlaunch assumes")
    return loss
