"""Twelve questions for a search, on models small enough that every configuration can be rehearsed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zlaunch.config.resolve.job import ResolveContext
from zlaunch.estimate.candidates import Candidate
from zlaunch.estimate.changes import Options
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.query import EstimateQuery, training_of
from zlaunch.estimate.request import _machine_with
from zlaunch.estimate.workload import Lora
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import parse_model
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import read_arguments

_LLAMA = {
    "model_type": "llama",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 2,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "dtype": "bfloat16",
}
_NARROW = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
_WIDE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
_EXPERTS = {
    "model_type": "mixtral",
    "intermediate_size": 8192,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}


@dataclass(frozen=True)
class Asked:
    """One question: a model, its GPUs, and a batch."""

    model: Mapping[str, Any]
    gpu: str
    ranks: int
    per_rank: int
    seq_len: int
    nodes: int = 1
    lora: Lora | None = None
    host_gib: int | None = None
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", {**_LLAMA, **self.model})

    @property
    def site(self) -> Cluster:
        host = None if self.host_gib is None else self.host_gib << 30
        return Cluster(self.nodes, self.ranks, known_gpus()[self.gpu], host)

    @property
    def question(self) -> EstimateQuery:
        model = parse_model(json.dumps(self.config).encode(), "m/config.json", "m/config.json")
        gpu, site = known_gpus()[self.gpu], self.site
        args, _ = read_arguments(ScriptArgs.of(()))
        machine = _machine_with(gpu.name, gpu.has_bf16, self.ranks)
        given = ResolveContext(None, args, model, machine, site.world_size)
        options = Options(seq_len=self.seq_len, lora=self.lora)
        training = training_of(model, ScriptArgs.of(()), options)
        return EstimateQuery(JobSpec(script=Path()), given, model, training, site)


QUESTIONS: dict[str, Asked] = {
    "dense, 1 x 24 GB": Asked({**_NARROW, "num_hidden_layers": 3}, "RTX-4090", 1, 4, 4096),
    "dense, 1 x 24 GB, offload needed": Asked({"num_hidden_layers": 4}, "RTX-4090", 1, 4, 2048),
    "LoRA, 1 x 24 GB": Asked({"num_hidden_layers": 8}, "RTX-4090", 1, 4, 2048, lora=Lora(16)),
    "dense, 2 x 40 GB": Asked({"num_hidden_layers": 4}, "A100-40GB", 2, 4, 4096),
    "dense, 8 x 24 GB, little host memory": Asked({"num_hidden_layers": 5}, "L4", 8, 4, 2048, host_gib=96),
    "dense, large vocabulary, 4 x 48 GB": Asked({"vocab_size": 256_000}, "A6000", 4, 4, 4096),
    "MoE, 8 x 80 GB": Asked({**_EXPERTS, "num_hidden_layers": 3}, "H100-80GB", 8, 4, 8192),
    "MoE with LoRA, 2 x 48 GB": Asked(
        {**_EXPERTS, "num_hidden_layers": 4}, "L40S", 2, 4, 8192, lora=Lora(16)
    ),
    "dense, long sequences, 8 x 80 GB": Asked({"num_hidden_layers": 4}, "H100-80GB", 8, 4, 32768),
    "dense, long sequences, 1 x 141 GB": Asked({"num_hidden_layers": 6}, "H200", 1, 4, 16384),
    "dense, 16 x 80 GB": Asked({**_WIDE, "num_hidden_layers": 5}, "A100-80GB", 8, 4, 8192, nodes=2),
    "dense, 64 x 80 GB": Asked({**_WIDE, "num_hidden_layers": 8}, "H100-80GB", 8, 4, 8192, nodes=8),
}


def label(one: Candidate) -> str:
    """Name a configuration in the record."""
    return f"{one.strategy.options}{', checkpointed' * one.checkpointing}, {one.micro_batch}, bucket {one.bucket}"
