"""What became of keys from one DeepSpeed release to the next."""

from collections.abc import Mapping

REMOVED_IN_0_19: Mapping[str, str] = {
    "amp": "use `bf16` or `fp16`",
    "compression_training": "delete it",
    "curriculum_learning": "use `data_efficiency.data_sampling.curriculum_learning`",
    "eigenvalue": "delete it",
    "elasticity": "delete it, and write the batch sizes out",
    "graph_harvesting": "delete it",
    "nebula": "delete it",
    "progressive_layer_drop": "delete it",
    "quantize_training": "delete it",
    "sparse_attention": "delete it",
    "sparse_gradients": "delete it",
    "zero_optimization.mics_shard_size": "delete it; `zero_hpz_partition_size` is the nearest",
    "zero_optimization.mics_hierarchical_params_gather": "delete it",
    "zero_optimization.zeropp_loco_param": "delete it",
}
"""Key → what to do about it. Their mere presence is refused, even as `false` or `null`."""
