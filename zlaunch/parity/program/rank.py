"""One rank of the real engine, over gloo."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state
from torch import distributed

from zlaunch.estimate.rehearsal.steps import with_nvme_path
from zlaunch.estimate.rehearsal.training import loss_of, optimizer_of, with_host_optimizer
from zlaunch.parity.program.measured import MOMENTA, Measured, Tensors, momentum
from zlaunch.parity.program.small import SmallModel, micro_batches
from zlaunch.parity.trial import Trial


def train(trial: Trial, rank: int, dtype: torch.dtype, directory: Path) -> Measured:
    """Train as one of the ranks; `directory` is shared by them."""
    _join(trial, rank, directory)
    small = SmallModel(trial, dtype)
    engine = _initialize(trial, small, directory / "nvme")
    names = small.trained()
    inside = EngineReader(engine)
    measured = Measured(optimizer=type(engine.optimizer).__name__)
    measured.masters.append({name: inside.master(weight) for name, weight in names.items()})
    for step in range(trial.steps):
        losses = []
        for number in micro_batches(trial, step, rank):
            loss = loss_of(engine(**small.batch(number, dtype)))
            losses.append(float(loss.detach()))
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                measured.gradients.append(inside.gradients(names))
            engine.step()
        measured.losses.append(sum(losses) / len(losses))
        norm = engine.get_global_grad_norm()
        measured.norms.append(None if norm is None or inside.has_scaled_norm else float(norm))
        measured.masters.append({name: inside.master(weight) for name, weight in names.items()})
        inside.link_states()
        states = {name: inside.momentum(weight) for name, weight in names.items()}
        measured.momenta.append({name: state for name, state in states.items() if state is not None})
        masters = measured.masters[-1]
        measured.stale.append({name: inside.stale(weight, masters[name]) for name, weight in names.items()})
    distributed.barrier()
    return measured


def _join(trial: Trial, rank: int, directory: Path) -> None:
    ranks = trial.workload.world_size
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        LOCAL_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    get_accelerator().is_fp16_supported = lambda: True  # slowly, on all CPUs
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # a short cut between ranks on CPUs, which GPUs do not take
    store = distributed.FileStore(str(directory / "store"), ranks)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def _initialize(trial: Trial, small: SmallModel, nvme: Path) -> deepspeed.DeepSpeedEngine:
    config = _with_buckets(dict(with_nvme_path(str(nvme), trial.workload.ds_config)), small)
    options: dict[str, Any] = {"model": small.module, "config": config}
    if "optimizer" in config:
        options["model_parameters"] = small.groups()
    else:
        config["zero_allow_untested_optimizer"] = True  # as accelerate does
        options["optimizer"] = with_host_optimizer(
            trial.workload, optimizer_of(trial.workload, small.groups())
        )
    return deepspeed.initialize(**options)[0]


def _with_buckets(config: dict[str, Any], small: SmallModel) -> dict[str, Any]:
    """Make buckets so small that this model fills several, and shards matrices at stage 3."""
    elements = sum(weight.numel() for weight in small.trained().values())
    zero = dict(config.get("zero_optimization", {}))
    if not zero.get("stage"):
        return config
    bucket = 256 * max(1, elements // 6 // 256)  # DeepSpeed aligns it
    zero["reduce_bucket_size"] = bucket
    if zero["stage"] == 3:
        zero["stage3_prefetch_bucket_size"] = bucket
        zero["stage3_param_persistence_threshold"] = 128
        zero["stage3_max_live_parameters"] = 2 * bucket
        zero["sub_group_size"] = max(512, elements // 3)
    else:
        zero["allgather_bucket_size"] = bucket
    return {**config, "zero_optimization": zero}


class EngineReader:
    """Reads numbers out of an engine, whatever its stage; all ranks have to ask for the same."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        """Find where the engine keeps what is read."""
        self._engine = engine
        self._wrapped: dict[int, tuple[torch.Tensor, int]] = {}
        self._is_plain = not engine.zero_optimization()
        if self._is_plain:
            self._find_masters(engine.optimizer)

    def _find_masters(self, optimizer: Any) -> None:
        """Find the master weights of an optimizer for 16 bits: one for each weight, or flat for a group."""
        for number, group in enumerate(getattr(optimizer, "fp16_groups", ())):
            flat, offset = getattr(optimizer, "fp32_groups_flat", None), 0
            for index, weight in enumerate(group):
                if flat is not None:
                    self._wrapped[id(weight)] = flat[number], offset
                    offset += weight.numel()
                else:
                    self._wrapped[id(weight)] = optimizer.fp32_groups[number][index], 0

    @property
    def _scale(self) -> float:
        if self._engine.fp16_enabled():
            return float(self._engine.optimizer.loss_scale)
        return 1.0

    @property
    def has_scaled_norm(self) -> bool:
        """Whether the engine's norm is that of scaled gradients."""
        return self._is_plain and self._scale != 1.0

    def gradients(self, names: Mapping[str, torch.nn.Parameter]) -> Tensors:
        """Return the gradients of all these weights that have one."""
        found = {name: self.gradient(weight) for name, weight in names.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def gradient(self, weight: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the gradient of a weight before it is clipped."""
        gradient = safe_get_full_grad(weight)
        if gradient is None:
            return None
        return gradient.detach().float().clone() / self._scale

    def master(self, weight: torch.nn.Parameter) -> torch.Tensor:
        """Return the master weight."""
        if not self._is_plain:
            return safe_get_full_fp32_param(weight).detach().float().clone()
        if id(weight) in self._wrapped:
            master, offset = self._wrapped[id(weight)]
            part = master.detach().reshape(-1)[offset : offset + weight.numel()]
            return part.reshape(weight.shape).float().clone()
        return weight.detach().float().clone()

    def momentum(self, weight: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the state of the optimizer that is compared."""
        if not self._is_plain:
            if (name := self._momentum_name()) is None:
                return None
            part = getattr(weight, "_hp_mapping", None)
            if part is not None and name not in part.optim_fragment:  # it has not been stepped
                part.optim_fragment[name] = torch.zeros_like(part.hp_fragment)
            return safe_get_full_optimizer_state(weight, name).detach().float().clone()
        master, offset = self._wrapped.get(id(weight), (weight, 0))
        optimizer = getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)
        state = momentum(optimizer.state.get(master, {}))
        if state is None:
            return None
        return state.reshape(-1)[offset : offset + weight.numel()].reshape(weight.shape)

    def link_states(self) -> None:
        """Let DeepSpeed find all states: stages 1 and 2 look only after the step of the first group."""
        link = getattr(self._engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self._engine.optimizer._hp_optimizer_states_linked = False
            link()

    def _momentum_name(self) -> str | None:
        """Return the state that both ranks read, since all of them take part in each reading."""
        states = self._engine.optimizer.optimizer.state.values()
        held = [name for name in MOMENTA if any(name in state for state in states)]
        of_ranks: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(of_ranks, held)
        return next((name for name in MOMENTA if any(name in names for names in of_ranks)), None)

    def stale(self, weight: torch.nn.Parameter, master: torch.Tensor) -> float:
        """Compare a weight that this rank computes with to its master weight."""
        with deepspeed.zero.GatheredParameters([weight], enabled=hasattr(weight, "ds_id")):
            held = weight.detach().float()
            rounded = master.to(weight.dtype).float()
            return float((held - rounded).norm() / rounded.norm().clamp_min(1e-30))
