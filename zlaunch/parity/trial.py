"""What a check trains: a small model under the wanted ds_config, on two ranks of this machine's CPU."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from zlaunch.config.resolve.job import ResolvedConfig
from zlaunch.dsconfig.native_ops import needed_ops
from zlaunch.errors import Unavailable
from zlaunch.estimate.query import EstimateQuery, check_countable, workload_of
from zlaunch.estimate.workload import LINEAR_LAYERS, Images, Workload
from zlaunch.frozen import dataclass
from zlaunch.job.spec import Precision
from zlaunch.parity.small_model import narrow

RANKS: Final = 2
MICRO_BATCH: Final = 2
MOST_SAMPLES: Final = 16
MOST_ACCUMULATED: Final = 4
SEQ_LEN: Final = 24
MOST_TOKENS: Final = 128
"""Positions of a small model."""
LOSS_SCALE: Final = 1024.0
"""Constant scale of the loss in fp16: a dynamic one skips steps until it is small enough."""

ON_CPU: Final = "kernels and communication of GPUs: both sides compute on this machine's CPU"
"""What no check on a CPU shows."""
_TRAINED: Final = (
    *("zero_optimization", "optimizer", "bf16", "fp16", "gradient_clipping", "aio"),
    *("prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op", "communication_data_type"),
    *("data_types", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "disable_allgather"),
)
"""Keys of a ds_config that decide what is computed."""
_OUTSIDE: Final = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "scheduler"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "comms_logger"),
    *("flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "checkpoint", "log_level"),
)
"""Keys that decide nothing of it, or that a trial sets itself."""
_CUDA_ONLY: Final = (
    *("zero_quantized_weights", "zero_quantized_gradients"),
    "zero_quantized_nontrainable_weights",
)
_COMPRESSING: Final = ("onebitadam", "onebitlamb", "zerooneadam")
_OPS_OF_CPUS: Final = ("cpu_", "async_io")
_ADAMS: Final = ("adam", "adamw")
_KNOWN_OPTIMIZERS: Final = (
    *(*_ADAMS, "adagrad", "lion", "muon", "sgd", "rmsprop", "adadelta", "adafactor", "adamax", "asgd"),
    *("nadam", "radam", "rprop"),
)
"""Optimizers of a ds_config that there is a reference for: as published, or torch's own."""
_WHY_NOT: Final[Mapping[str, str]] = {
    "lamb": "DeepSpeed's Lamb is a CUDA kernel",
    "lbfgs": "LBFGS evaluates the loss several times in a step, which DeepSpeed cannot",
    "sparseadam": "SparseAdam takes sparse gradients, which this model does not have",
}
_KNOWN_TO_THE_TRAINER: Final = (
    *("adamw_torch_fused", "adamw_torch", "sgd", "adagrad", "rmsprop", "adafactor"),
)
"""The same of the Trainer's `--optim`."""
_OTHER_ARITHMETIC: Final[Mapping[str, object]] = {
    "bias_correction": False,
    "per_head_muon": True,
    "fp32_optimizer_states": False,
}
"""Arguments of optimizers with values that no reference has."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A job to train beside plain torch."""

    workload: Workload
    """Its model is narrow and has all its layers; the program keeps the first that show every kind."""
    precision: Precision
    steps: int = 3
    seed: int = 0
    weight_decay: float = 0.0
    stands_in: bool = False
    """Whether torch's AdamW takes the place of DeepSpeed's, which counts steps in a number."""
    has_groups: bool = True
    """Whether biases and norms are a group of parameters of their own, as the Trainer makes them."""
    saves: bool = False
    """Whether it saves before the last step, and resumes."""
    ops: tuple[str, ...] = ()
    """Native ops that it needs."""
    unchecked: tuple[str, ...] = ()
    """What of the job this does not check."""


def to_line(trial: Trial) -> str:
    """Write a trial as one line of JSON."""
    return json.dumps(asdict(trial), sort_keys=True)


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What is asked for of a trial, beside the job."""

    steps: int = 3
    seed: int = 0
    micro_batch: int | None = None
    seq_len: int | None = None
    saves: bool = False


def trial_of(query: EstimateQuery, options: TrialOptions) -> Trial:
    """Describe the trial of a job; raise Refused if it cannot work, Unavailable if nothing can be told."""
    resolved = query.resolve()
    check_countable(query, resolved)
    workload = workload_of(query, resolved)
    if workload.remote_code is not None:
        raise _cannot_tell("the model has custom code, whose sizes zlaunch does not know")
    _check_config(workload)
    micro_batch = min(options.micro_batch or MICRO_BATCH, MOST_SAMPLES)
    unchecked = [*_left_out(workload, query), *_shortened(options)]
    config, decay = _trial_config(workload, micro_batch)
    small: Mapping[str, Any] = narrow(workload.model)
    if workload.model.get("model_type") == LINEAR_LAYERS:
        small = {**workload.model, "width": 64}
    trained = replace(
        workload,
        model=small,
        ds_config=config,
        world_size=RANKS,
        ranks_per_host=RANKS,
        seq_len=min(options.seq_len or SEQ_LEN, workload.seq_len, MOST_TOKENS),
        accelerator="cpu",
        load_dtype="fp32",
        zero_init=False,
        liger=False,
        four_bits=None,
        images=Images(0),
    )
    ops = [op.name for op in needed_ops(resolved.config, "cuda", str(workload.optimizer))]
    return Trial(
        trained,
        _precision(resolved),
        options.steps,
        options.seed,
        weight_decay=decay,
        stands_in=_is_fused_adam(workload.ds_config),
        has_groups=not _takes_one_group(workload),
        saves=options.saves and options.steps > 1,
        ops=tuple(op for op in ops if op.startswith(_OPS_OF_CPUS)),
        unchecked=tuple(unchecked),
    )


def _precision(resolved: ResolvedConfig) -> Precision:
    if resolved.precision is None:
        raise _cannot_tell("nothing says in which precision it trains", "add `--precision bf16`")
    return resolved.precision


def _cannot_tell(why: str, hint: str | None = None) -> Unavailable:
    return Unavailable(f"cannot tell here: {why}", hint)


def why_uncheckable(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Say why nothing can be told with a ds_config, and how to check the rest; None if all can."""
    zero = config.get("zero_optimization") or {}
    for key in _CUDA_ONLY:
        if zero.get(key):
            return f"`zero_optimization.{key}` needs a CUDA kernel", f"check it without `{key}`"
    if zero.get("zenflow"):
        return "ZenFlow updates most parameters later on purpose", "check it without `zenflow`"
    if (config.get("torch_autocast") or {}).get("enabled"):
        return "`torch_autocast` is not supported yet", "check it with `bf16`"
    if (config.get("bf16") or {}).get("bf16_master_weights_and_grads"):
        return "`bf16_master_weights_and_grads` is not supported yet", "check it without"
    if config.get("managed_gradient_accumulation") is False:
        return (
            "without `managed_gradient_accumulation`, gradients are reduced in the step",
            "check it with it",
        )
    name = str((config.get("optimizer") or {}).get("type", ""))
    if name.lower() in _COMPRESSING:
        return f"{name} compresses gradients on purpose", "check it with another optimizer"
    return None


def _check_config(workload: Workload) -> None:
    config = workload.ds_config
    if (why := why_uncheckable(config)) is not None:
        raise _cannot_tell(*why)
    section = config.get("optimizer", {})
    name = str(section.get("type", "")).lower()
    if not name and workload.optimizer in _KNOWN_TO_THE_TRAINER:
        return
    name = name or str(workload.optimizer)
    if name in _WHY_NOT:
        raise _cannot_tell(_WHY_NOT[name], "check it with `--optimizer adamw`")
    if name not in _KNOWN_OPTIMIZERS:
        known = ", ".join(_KNOWN_OPTIMIZERS)
        raise _cannot_tell(f"there is no reference for the optimizer `{name}`", f"it can be one of {known}")
    parameters = section.get("params", {})
    for argument, value in _OTHER_ARITHMETIC.items():
        if parameters.get(argument) == value:
            raise _cannot_tell(
                f"there is no reference for `{argument}: {str(value).lower()}` of {name}",
                f"check it without `{argument}`",
            )
    if name == "muon" and parameters.get("adam_w_mode") is False:
        raise _cannot_tell("there is no reference for `adam_w_mode: false` of muon", "check it without")


def _left_out(workload: Workload, query: EstimateQuery) -> list[str]:
    config = workload.ds_config
    zero = config.get("zero_optimization", {})
    left_out = [ON_CPU]
    if _is_fused_adam(config):
        left_out.append("DeepSpeed's FusedAdam: torch's AdamW takes its place")
    if has_stand_in(config):
        left_out.append("DeepSpeed's FusedLion: a Lion written in torch takes its place")
    if _takes_one_group(workload):
        left_out.append("groups of parameters: DeepSpeed's Adagrad fails with more than one; one is taken")
    if "scheduler" in config:
        left_out.append("the learning rate schedule: the rate is constant")
    if workload.zero_init:
        left_out.append("weights that are sharded while the model is created: they are sharded afterwards")
    if config.get("fp16", {}).get("enabled") and not config["fp16"].get("loss_scale"):
        left_out.append(f"the dynamic loss scale: it is {LOSS_SCALE:g}")
    if config.get("gradient_accumulation_steps", 1) > MOST_ACCUMULATED:
        steps = config["gradient_accumulation_steps"]
        left_out.append(f"{steps} accumulation steps: {MOST_ACCUMULATED} are taken")
    if zero.get("offload_optimizer", {}).get("device") == "nvme" and zero.get("stage") in (1, 2):
        left_out.append("NVMe: DeepSpeed offloads to the CPU at this stage")
    if workload.liger:
        left_out.append("kernels of Liger")
    if workload.four_bits is not None:
        left_out.append("weights of four bits")
    left_out += [f"`{key}` of the ds_config" for key in config if key not in (*_TRAINED, *_OUTSIDE)]
    left_out += [f"in training: {uncounted}" for uncounted in query.training.uncounted]
    return left_out


def _shortened(options: TrialOptions) -> Iterator[str]:
    if (samples := options.micro_batch or 0) > MOST_SAMPLES:
        yield f"a micro-batch of {samples}: {MOST_SAMPLES} are taken"
    if (tokens := options.seq_len or 0) > MOST_TOKENS:
        yield f"sequences of {tokens} tokens: {MOST_TOKENS} are taken"


def _is_fused_adam(config: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed takes its CUDA kernel of Adam; Muon has one for what is no matrix."""
    optimizer = config.get("optimizer", {})
    is_adam = str(optimizer.get("type", "")).lower() in (*_ADAMS, "muon")
    return is_adam and not _is_optimizer_on_host(config) and not optimizer.get("params", {}).get("torch_adam")


def has_stand_in(config: Mapping[str, Any]) -> bool:
    """Whether a trial gives the engine a Lion of its own: without offload, DeepSpeed's is a CUDA kernel."""
    is_lion = str(config.get("optimizer", {}).get("type", "")).lower() == "lion"
    return is_lion and not _is_optimizer_on_host(config)


def _takes_one_group(workload: Workload) -> bool:
    """Whether ZeRO makes torch's Adagrad anew, as 0.19.8 does: with one group, so that it fails with two."""
    config = workload.ds_config
    name = str(config.get("optimizer", {}).get("type", workload.optimizer)).lower()
    has_zero = bool(config.get("zero_optimization", {}).get("stage"))
    return name == "adagrad" and has_zero and not _is_optimizer_on_host(config)


def _is_optimizer_on_host(config: Mapping[str, Any]) -> bool:
    zero = config.get("zero_optimization", {})
    offload = zero.get("offload_optimizer") or {}
    return bool(zero.get("stage")) and offload.get("device", "none") != "none"


def _trial_config(workload: Workload, micro_batch: int) -> tuple[dict[str, Any], float]:
    """Return the ds_config of the trial, and the weight decay of matrices."""
    given = workload.ds_config
    config = {key: value for key, value in given.items() if key in _TRAINED}
    accumulated = min(int(given.get("gradient_accumulation_steps", 1)), MOST_ACCUMULATED)
    config["train_micro_batch_size_per_gpu"] = micro_batch
    config["gradient_accumulation_steps"] = accumulated
    config["train_batch_size"] = micro_batch * accumulated * RANKS
    config["steps_per_print"] = 1_000_000
    if config.get("fp16", {}).get("enabled"):
        scale = config["fp16"].get("loss_scale") or LOSS_SCALE
        config["fp16"] = {**config["fp16"], "loss_scale": scale}
    decay = 0.0
    if "optimizer" in config:
        optimizer = config["optimizer"]
        parameters = dict(optimizer.get("params", {}))
        decay = float(parameters.setdefault("weight_decay", 0.0))
        parameters.pop("set_grad_none", None)
        if _is_fused_adam(config):
            parameters.pop("bias_correction", None)
            parameters["torch_adam"] = True
        config["optimizer"] = {**optimizer, "params": parameters}
    return config, decay
