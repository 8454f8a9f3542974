"""Two rehearsals with known results, which show whether the rehearsal still counts right with new releases.

It replaces private parts of torch, transformers and DeepSpeed (`rehearsal/patches`). A release that moves one
of them may let allocations go uncounted. Then the closed form answers, and says so.
"""

from collections.abc import Mapping
from typing import Any, Final

from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.workload import Workload

_TOLERANCE: Final = 0.03
"""Releases that were tested differ by less."""

_MODEL: Final = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
}


def _probe(stage: int) -> Workload:
    zero = {
        "stage": stage,
        "reduce_bucket_size": 500_000,
        "stage3_prefetch_bucket_size": 200_000,
        "stage3_param_persistence_threshold": 1_000,
        "stage3_max_reuse_distance": 300_000,
    }
    return Workload(
        model=_MODEL,
        ds_config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": zero,
        },
        world_size=4,
        ranks_per_host=4,
        seq_len=64,
        zero_init=stage == 3,
        activation_checkpointing=stage == 3,
        cublas_bytes=0,
        save=False,
    )


PROBES: Final = (_probe(2), _probe(3))

_PEAKS: Final[tuple[Mapping[str, int], ...]] = (
    {"initialize": 12805120, "forward": 16737280, "backward": 17246720, "second step": 23649280},
    {"initialize": 8428544, "forward": 10446336, "backward": 11600384, "second step": 23759872},
)
"""Bytes on the GPU in each phase, which equal those of real ranks with the releases of `constraints.txt`."""


def why_not_believed(rehearsed: Mapping[int, Any]) -> str | None:
    """Say what the rehearsals of the probes got wrong; None if they are right."""
    for number, peaks in enumerate(_PEAKS):
        told = rehearsed.get(number)
        if not isinstance(told, Forecast) or told.method != "rehearsal":
            return "with these packages, the rehearsal of a known job fails"
        counted = {phase.name: phase.peak.get("gpu", 0) for phase in told.phases}
        for phase, right in peaks.items():
            if abs(counted.get(phase, 0) - right) > _TOLERANCE * right:
                return f"with these packages, the rehearsal of a known job is wrong in {phase}"
    return None
