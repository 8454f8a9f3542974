"""What a checkpoint is worth: resumed, converted for another number of ranks, and exported."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from deepspeed.checkpoint import ds_to_universal

from zlaunch.checkpoint.export import plan_export, write_export
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.universal import plan_universal
from zlaunch.checkpoint.universal_files import fit_all_stages
from zlaunch.errors import ZlaunchError
from zlaunch.parity.program.measured import Measured, Tensors, apart, of_steps, of_update
from zlaunch.parity.program.rank import CHECKPOINT, TAG, resume
from zlaunch.parity.program.reference import updates
from zlaunch.parity.program.small import SmallModel, micro_batches
from zlaunch.parity.trial import Trial
from zlaunch.parity.verdict import Distance


def resumed_on_one_rank(
    trial: Trial, engine: Measured, dtype: torch.dtype, directory: Path
) -> list[Distance]:
    """Convert the checkpoint unless any ranks can load it, and train its last step with the same data.

    Compare the weights as they are loaded, and what becomes of them.
    """
    config = dict(trial.workload.ds_config)
    config["gradient_accumulation_steps"] *= trial.workload.world_size
    tag, zero = TAG, config.get("zero_optimization", {})
    if zero.get("stage"):
        tag = _convert(directory)
        config["checkpoint"] = {"load_universal": True}
    alone = replace(trial.workload, ds_config=config, world_size=1, ranks_per_host=1)
    resumed = resume(replace(trial, workload=alone), 0, dtype, directory, tag)
    distances = []
    for name, weight in engine.masters[-2].items():
        loaded = apart(resumed.masters[0][name], weight)
        distances.append(Distance("resumed on 1 rank", trial.steps - 1, loaded, 0.0, name))
    whole = Measured(
        gradients=[*engine.gradients[:-1], resumed.gradients[-1]],
        masters=[*engine.masters[:-1], resumed.masters[-1]],
        momenta=[*engine.momenta[:-1], {}],
        stale=[{} for _ in range(trial.steps)],
        clipping=engine.clipping,
    )
    steps = of_steps(whole, updates(trial, whole, dtype))
    last = [one for one in steps if one.quantity == "update" and one.step == trial.steps]
    return distances + [replace(update, quantity="resumed on 1 rank") for update in last]


def _convert(directory: Path) -> str:
    try:
        plan = plan_universal(_saved(directory), None)
    except ZlaunchError as error:
        raise RuntimeError(error.message.replace(f"`{_saved(directory).folder}`", "the checkpoint")) from None
    source, target = str(plan.checkpoint.folder), str(plan.folder)
    sys.argv = [sys.argv[0], "--input_folder", source, "--output_folder", target, "--inject_missing_state"]
    ds_to_universal.main(ds_to_universal.parse_arguments())
    fit_all_stages(plan.folder, None)
    return plan.folder.name


def _saved(directory: Path) -> CheckpointFolder:
    folder = directory / CHECKPOINT / TAG
    return CheckpointFolder(folder, SavedBy.ENGINE, folder)


def exported(trial: Trial, masters: Tensors, dtype: torch.dtype, directory: Path) -> list[Distance]:
    """Export the checkpoint in fp32, and compare its weights and the logits with those of the engine."""
    from safetensors.torch import load_file

    out = directory / "model"
    write_export(plan_export(_saved(directory), "float32"), out, lambda _: None)
    written: Tensors = {}
    for file in out.glob("*.safetensors"):
        written.update(load_file(file))
    small, step = SmallModel(trial, dtype), trial.steps - 1
    of_model, outputs = dict(small.module.named_parameters()), []
    distances = []
    for weights in (masters, written):
        with torch.no_grad():
            for name in masters:
                of_model[name].copy_(weights[name])
            batch = small.batch(next(micro_batches(trial, step)), torch.float32)
            outputs.append(_logits_or_loss(small.module(**batch)))
    for name, master in masters.items():
        distances.append(Distance("exported", step, apart(written[name], master), 0.0, name))
    distances.append(Distance("exported", step, apart(outputs[1], outputs[0]), 0.0))
    return distances


def _logits_or_loss(output: object) -> torch.Tensor:
    """Return the logits of a model, or its loss if it has none."""
    logits = getattr(output, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    loss = getattr(output, "loss", None)
    if isinstance(output, tuple):
        loss = output[0]
    assert isinstance(loss, torch.Tensor)
    return loss


def of_resumed(trial: Trial, engine: Measured, resumed: Measured) -> Iterator[Distance]:
    """Compare the weights as loaded, and their update with that of the training that went on."""
    step, after = trial.steps - 1, resumed.masters[-1]
    for name, before in engine.masters[-2].items():
        yield Distance("resumed", step, apart(resumed.masters[0][name], before), 0.0, name)
        yield of_update("resumed", step, (before, after[name], engine.masters[-1][name]), 0.0, name)
