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
from zlaunch.estimate.rehearsal.training import base_optimizer, loss_of, optimizer_of, with_host_optimizer
from zlaunch.parity.program.measured import MOMENTA, Measured, Tensors, momentum
from zlaunch.parity.program.optimizers import reference_of
from zlaunch.parity.program.small import SmallModel, micro_batches
from zlaunch.parity.trial import Trial, has_stand_in

CHECKPOINT, TAG = "checkpoint", "saved"
"""Where the ranks save, and under which name."""


def train(trial: Trial, rank: int, dtype: torch.dtype, directory: Path) -> Measured:
    """Train as one of the ranks, and save before the last step; `directory` is shared by them."""
    _join(trial, rank, directory / "store")
    run = _Run(trial, rank, dtype, directory)
    run.measure_weights()
    for step in range(trial.steps):
        if trial.saves and step == trial.steps - 1:
            run.engine.save_checkpoint(str(directory / CHECKPOINT), tag=TAG)
        run.take_step(step)
    distributed.barrier()
    return run.measured


def resume(trial: Trial, rank: int, dtype: torch.dtype, directory: Path, tag: str) -> Measured:
    """Load what `train` has saved, and train the last step."""
    _join(trial, rank, directory / f"store of {trial.workload.world_size} for {tag}")
    run = _Run(trial, rank, dtype, directory)
    loaded, _ = run.engine.load_checkpoint(str(directory / CHECKPOINT), tag=tag)
    if loaded is None:
        raise RuntimeError("the engine loads nothing from its checkpoint")
    run.measure_weights()
    run.take_step(trial.steps - 1)
    distributed.barrier()
    return run.measured


class _Run:
    """A training on one rank, and what it measures."""

    def __init__(self, trial: Trial, rank: int, dtype: torch.dtype, directory: Path) -> None:
        self._trial, self._rank, self._dtype = trial, rank, dtype
        self._small = SmallModel(trial, dtype)
        self.engine = _initialize(trial, self._small, directory / "nvme")
        self._names = self._small.trained()
        self._inside = EngineReader(self.engine)
        clipping = float(self.engine.gradient_clipping())
        self.measured = Measured(optimizer=type(base_optimizer(self.engine)).__name__, clipping=clipping)

    def measure_weights(self) -> None:
        weights = {name: self._inside.master(weight) for name, weight in self._names.items()}
        self.measured.masters.append(weights)

    def take_step(self, step: int) -> None:
        engine, inside, measured = self.engine, self._inside, self.measured
        losses = []
        for number in micro_batches(self._trial, step, self._rank):
            loss = loss_of(engine(**self._small.batch(number, self._dtype)))
            losses.append(float(loss.detach()))
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary():
                measured.gradients.append(inside.gradients(self._names))
            engine.step()
        measured.losses.append(sum(losses) / len(losses))
        norm = engine.get_global_grad_norm()
        measured.norms.append(None if norm is None or inside.has_other_norm else float(norm))
        self.measure_weights()
        inside.link_states()
        states = {name: inside.momentum(weight) for name, weight in self._names.items()}
        measured.momenta.append({name: state for name, state in states.items() if state is not None})
        masters = measured.masters[-1]
        stale = {name: inside.stale(weight, masters[name]) for name, weight in self._names.items()}
        measured.stale.append(stale)


def _join(trial: Trial, rank: int, file: Path) -> None:
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
    store = distributed.FileStore(str(file), ranks)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def _initialize(trial: Trial, small: SmallModel, nvme: Path) -> deepspeed.DeepSpeedEngine:
    config = _with_buckets(dict(with_nvme_path(str(nvme), trial.workload.ds_config)), small)
    options: dict[str, Any] = {"model": small.module, "config": config}
    if has_stand_in(config):
        section, groups = config.pop("optimizer"), small.groups()
        config["zero_allow_untested_optimizer"] = True
        options["optimizer"] = reference_of(section, groups, {}, torch.float32)
    elif "optimizer" in config:
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
        self._muon: dict[int, torch.Tensor] | None = None
        """This rank's gradients of matrices, where the engine gives out Muon's updates in their place."""
        self._is_muon = "Muon" in type(engine.basic_optimizer).__name__
        if self._is_plain:
            self._find_masters(engine.optimizer)
        elif (
            self._is_muon
            and hasattr(engine.optimizer, "all_grad_tensors")
            and not engine.optimizer.cpu_offload
        ):
            self._keep_gradients(engine.optimizer)

    def _keep_gradients(self, optimizer: Any) -> None:
        """Keep gradients of this rank's matrices, which stages 1 and 2 overwrite by Muon's updates."""
        kept: dict[int, torch.Tensor] = {}
        self._muon, original = kept, optimizer.get_flat_partition

        def get_flat_partition(weights: Any, *others: Any, param_group_idx: int, **options: Any) -> Any:
            for weight, gradient in zip(weights, optimizer.all_grad_tensors[param_group_idx], strict=False):
                if getattr(weight, "use_muon", False):
                    kept[id(weight)] = gradient.detach().float().clone()
            return original(weights, *others, param_group_idx=param_group_idx, **options)

        optimizer.get_flat_partition = get_flat_partition

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
    def has_other_norm(self) -> bool:
        """Whether the engine's norm is that of scaled gradients, or of Muon's updates."""
        return self._is_muon or (self._is_plain and self._scale != 1.0)

    def gradients(self, names: Mapping[str, torch.nn.Parameter]) -> Tensors:
        """Return the gradients of all these weights that have one."""
        found = {name: self.gradient(weight) for name, weight in names.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def gradient(self, weight: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the gradient of a weight before it is clipped."""
        gradient = safe_get_full_grad(weight)
        if self._muon is not None and getattr(weight, "use_muon", False):
            gradient = self._muon.get(id(weight))  # the other rank has those of the other matrices
        if gradient is None:
            return None
        return gradient.detach().float().clone() / self._scale

    def master(self, weight: torch.nn.Parameter) -> torch.Tensor:
        """Return the master weight."""
        if not self._is_plain and (full := safe_get_full_fp32_param(weight)) is not None:
            return full.detach().float().clone()
        if id(weight) in self._wrapped:
            master, offset = self._wrapped[id(weight)]
            part = master.detach().reshape(-1)[offset : offset + weight.numel()]
            return part.reshape(weight.shape).float().clone()
        return weight.detach().float().clone()

    def momentum(self, weight: torch.nn.Parameter) -> torch.Tensor | None:
        """Return the state of the optimizer that is compared."""
        if not self._is_plain:
            if getattr(weight, "use_muon", False) or (name := self._momentum_name()) is None:
                return None
            part = getattr(weight, "_hp_mapping", None)
            if part is not None and name not in part.optim_fragment:  # it has not been stepped
                part.optim_fragment[name] = torch.zeros_like(part.hp_fragment)
            return safe_get_full_optimizer_state(weight, name).detach().float().clone()
        master, offset = self._wrapped.get(id(weight), (weight, 0))
        state = momentum(base_optimizer(self._engine).state.get(master, {}))
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
