"""A workload in the terms of all formulas."""

from dataclasses import dataclass

from zlaunch.estimate.memory.activations import Batch
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.memory.weights import Weights, weights_of
from zlaunch.estimate.workload import Workload
from zlaunch.job.transformer import Transformer, read_transformer


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A workload, read."""

    workload: Workload
    model: Transformer
    settings: Settings
    weights: Weights
    batch: Batch


def read_job(workload: Workload) -> TrainingJob:
    """Read a workload; raise Refused if its config.json has no sizes."""
    model, settings = read_transformer(workload.model), read_settings(workload)
    batch = Batch(settings.micro_batch, workload.seq_len, settings.item, workload.attention)
    return TrainingJob(workload, model, settings, weights_of(model, workload.lora), batch)
