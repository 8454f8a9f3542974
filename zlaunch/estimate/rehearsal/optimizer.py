"""What a training script does beside the model: it joins the other ranks, and makes its optimizer."""

import os
from typing import Any

import torch
from torch import optim

from zlaunch.estimate.workload import Workload

_NO_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Parameters that the Trainer puts into a group without weight decay (`get_decay_parameter_names`)."""


def _adafactor(groups: list[dict[str, Any]]) -> Any:
    from transformers.optimization import Adafactor

    return Adafactor(groups, 1e-3, scale_parameter=False, relative_step=False)


_OPTIMIZERS: dict[str, Any] = {
    "adamw_torch_fused": lambda groups: optim.AdamW(groups, fused=True),
    "adamw_torch": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
    "adafactor": _adafactor,
}
"""The Trainer's `--optim` → the optimizer it makes."""


class UnknownOptimizer(Exception):
    """An `--optim` that needs a package or a kernel of its own."""


def join(workload: Workload) -> None:
    """Join a process group of the right size, in which nobody else is."""
    import deepspeed
    from torch import distributed
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
    deepspeed.init_distributed(dist_backend="fake", verbose=False)  # else `zero.Init` sees one rank


def initialize(workload: Workload, net: torch.nn.Module) -> Any:
    """Give the model to DeepSpeed as its script would; return the engine."""
    import deepspeed

    config = dict(workload.ds_config)
    if workload.optimizer is None:
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=trained)
        return engine
    groups = _groups(net)
    if "optimizer" in config:
        engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=groups)
        return engine
    config["zero_allow_untested_optimizer"] = True  # as accelerate does
    optimizer = _optimizer(workload, groups)
    engine, *_ = deepspeed.initialize(model=net, config=config, optimizer=optimizer)
    return engine


def _groups(net: torch.nn.Module) -> list[dict[str, Any]]:
    """Put parameters into the Trainer's two groups, with weight decay and without."""
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(net, [torch.nn.LayerNorm], list(_NO_DECAY)))
    trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    halves = [[p for name, p in trained if (name in decayed) is decay] for decay in (True, False)]
    return [{"params": half, "weight_decay": 0.0} for half in halves if half]


def _optimizer(workload: Workload, groups: list[dict[str, Any]]) -> Any:
    from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed

    make = _OPTIMIZERS.get(str(workload.optimizer))
    if make is None:
        raise UnknownOptimizer(f"the Trainer's `--optim {workload.optimizer}` cannot be rehearsed")
    optimizer = make(groups)
    offload = workload.ds_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    forced = workload.ds_config.get("zero_force_ds_cpu_optimizer", True)
    if offload.get("device", "none") == "none" or not forced:
        return optimizer
    return map_pytorch_optim_to_deepspeed(optimizer)
