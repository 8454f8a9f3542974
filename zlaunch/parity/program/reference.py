"""Plain torch: one process, the whole batch, gradients added up in fp32."""

from typing import Any

import torch

from zlaunch.estimate.rehearsal.training import loss_of, optimizer_of
from zlaunch.parity.program.measured import Measured
from zlaunch.parity.program.optimizers import reference_of
from zlaunch.parity.program.plain_optimizer import norm_of, take_step
from zlaunch.parity.program.small import SmallModel, micro_batches
from zlaunch.parity.trial import Trial


def gradients(
    trial: Trial, engine: Measured, wanted: torch.dtype, dtype: torch.dtype, *, reorder: bool = False
) -> Measured:
    """Compute losses and gradients in `dtype`, in each step at the weights that the engine had before it.

    So no step repeats the difference of an earlier one. `wanted` is the precision of the job.
    """
    small = SmallModel(trial, wanted)
    scale = 1.0
    if dtype is torch.float16:
        scale = float(trial.workload.ds_config["fp16"]["loss_scale"])
    module, weights, measured = small.module.to(dtype), small.trained(), Measured()
    for step in range(trial.steps):
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(engine.masters[step][name].to(wanted))
        numbers = list(micro_batches(trial, step))
        if reorder:
            numbers.reverse()
        sums = {name: torch.zeros(weight.shape) for name, weight in weights.items()}
        losses, summands = [], dict.fromkeys(weights, 0.0)
        for number in numbers:
            loss = loss_of(module(**small.batch(number, dtype, reorder=reorder)))
            (loss.float() * scale).backward()
            losses.append(loss.item())
            for name, weight in weights.items():
                if weight.grad is not None:
                    measured.reached.add(name)
                    gradient = weight.grad.float() / scale
                    sums[name] += gradient
                    summands[name] += float(gradient.norm())
                    weight.grad = None
        shares = len(numbers)
        if trial.workload.ds_config.get("gradient_allreduce_op") == "sum":
            shares //= trial.workload.world_size
        measured.losses.append(sum(losses) / len(losses))
        measured.gradients.append({name: total / shares for name, total in sums.items()})
        measured.summands.append({name: length / shares for name, length in summands.items()})
        measured.norms.append(norm_of(measured.gradients[-1].values()))
    measured.parameters = sum(weight.numel() for weight in module.parameters())
    return measured


def updates(trial: Trial, engine: Measured, wanted: torch.dtype) -> Measured:
    """Take the steps of torch's optimizer from the engine's weights, with the engine's gradients."""
    small, measured = SmallModel(trial, wanted), Measured()
    weights = {name: weight.detach().clone() for name, weight in small.trained().items()}
    names = {id(weight): name for name, weight in small.trained().items()}
    groups = []
    for group in small.groups():
        members: Any = group["params"]
        groups.append({**group, "params": [weights[names[id(weight)]] for weight in members]})
    section = trial.workload.ds_config.get("optimizer")
    if section is None:
        optimizer: Any = optimizer_of(trial.workload, groups)
    else:
        of_copies = {id(weight): name for name, weight in weights.items()}
        optimizer = reference_of(section, groups, of_copies, wanted)
    for step, found in enumerate(engine.gradients):
        taken = take_step(optimizer, weights, engine.masters[step], found, engine.clipping)
        measured.momentum_rounding = taken.momentum_rounding
        measured.masters += taken.masters
        measured.momenta += taken.momenta
        measured.unsure += taken.unsure
    return measured
