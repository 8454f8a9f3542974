"""Guess the intended key behind one that DeepSpeed does not have.

People write names from other tools, from older releases and from other sections. What is known by name comes
before what is similar: `micro_batch_size` is spelled like `train_batch_size`, but means something else.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from zlaunch.dsconfig.keys.lookup import field_at, fields, known_keys, section_in
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, value_at
from zlaunch.errors import Fix, FixKind

SURE = 0.88
"""Similarity above which a rename is applied by `--fix`."""

_MICRO = "train_micro_batch_size_per_gpu"
_ACCUMULATION = "gradient_accumulation_steps"
_PARAMS = "optimizer.params"
_LR, _DECAY, _BETAS, _EPS = (f"{_PARAMS}.{name}" for name in ("lr", "weight_decay", "betas", "eps"))
_WARMUP, _TOTAL = "scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps"
_OPTIMIZER, _PARAM = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
_FORMATS = ("bf16.enabled", "fp16.enabled")
_CHECKPOINTING = "activation_checkpointing"
_THREADS = "aio.intra_op_parallelism"
_MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")
_LOSS_SCALE = "fp16.loss_scale"
_DTYPE = "communication_data_type"

KEYS_ELSEWHERE: Mapping[str, str | tuple[str, ...]] = {
    "aio.io_parallel": _THREADS,
    "aio.io_threads": _THREADS,
    "aio.num_threads": _THREADS,
    "aio.thread_count": _THREADS,
    "aio.threads": _THREADS,
    "autotuning.end_step": "autotuning.end_profile_step",
    "autotuning.max_trial": "autotuning.tuner_num_trials",
    "autotuning.max_trials": "autotuning.tuner_num_trials",
    "autotuning.start_step": "autotuning.start_profile_step",
    "bf16.use_bf16": "bf16.enabled",
    "bf16.accumulate_grads_in_fp32": "data_types.grad_accum_dtype",
    f"{_CHECKPOINTING}.checkpoint_in_cpu": f"{_CHECKPOINTING}.cpu_checkpointing",
    f"{_CHECKPOINTING}.contiguous_checkpointing": f"{_CHECKPOINTING}.contiguous_memory_optimization",
    f"{_CHECKPOINTING}.cpu_offload": f"{_CHECKPOINTING}.cpu_checkpointing",
    f"{_CHECKPOINTING}.cpu_offloading": f"{_CHECKPOINTING}.cpu_checkpointing",
    f"{_CHECKPOINTING}.profile_backward": f"{_CHECKPOINTING}.profile",
    "comet.name": "comet.experiment_name",
    "comet.project_name": "comet.project",
    "compile.enable": "compile.deepcompile",
    "compile.enabled": "compile.deepcompile",
    "data_types.grad_accum": "data_types.grad_accum_dtype",
    "data_types.reduce_dtype": _DTYPE,
    "flops_profiler.output": "flops_profiler.output_file",
    "flops_profiler.output_path": "flops_profiler.output_file",
    "flops_profiler.profile_file": "flops_profiler.output_file",
    "flops_profiler.start_profile_step": "flops_profiler.profile_step",
    "flops_profiler.start_step": "flops_profiler.profile_step",
    "flops_profiler.steps": "flops_profiler.profile_step",
    "fp16.autocast": "fp16.auto_cast",
    "fp16.delayed_shift": "fp16.hysteresis",
    "fp16.dynamic": _LOSS_SCALE,
    "fp16.growth_interval": "fp16.loss_scale_window",
    "fp16.init_scale": "fp16.initial_scale_power",
    "fp16.initial_dynamic_scale": "fp16.initial_scale_power",
    "fp16.initial_loss_scale": "fp16.initial_scale_power",
    "fp16.scale": _LOSS_SCALE,
    "fp16.static_loss_scale": _LOSS_SCALE,
    "fp16.use_fp16": "fp16.enabled",
    "pipeline.micro_batches": _ACCUMULATION,
    "pipeline.num_micro_batches": _ACCUMULATION,
    "scheduler.params.last_epoch": "scheduler.params.last_batch_iteration",
    "scheduler.params.max_lr": ("scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr"),
    "scheduler.params.max_steps": _TOTAL,
    "scheduler.params.min_lr": ("scheduler.params.warmup_min_lr", "scheduler.params.cycle_min_lr"),
    "scheduler.params.min_lr_ratio": "scheduler.params.cos_min_ratio",
    "scheduler.params.warmup_min_lr": "scheduler.params.warmup_min_ratio",
    "scheduler.params.warmup_proportion": _WARMUP,
    "scheduler.params.warmup_ratio": _WARMUP,
    "tensor_parallel.degree": "tensor_parallel.autotp_size",
    "tensor_parallel.size": "tensor_parallel.autotp_size",
    "torch_autocast.precision": "torch_autocast.dtype",
    "wandb.entity": "wandb.team",
    "wandb.project_name": "wandb.project",
    "wandb.wandb_project": "wandb.project",
    f"{ZERO}.bucket_cap_mb": f"{ZERO}.reduce_bucket_size",
    f"{ZERO}.enabled": f"{ZERO}.stage",
    f"{ZERO}.level": f"{ZERO}.stage",
    f"{ZERO}.offload": (_OPTIMIZER, _PARAM),
    f"{ZERO}.overlap_communication": f"{ZERO}.overlap_comm",
    f"{ZERO}.prefetch": f"{ZERO}.stage3_prefetch_bucket_size",
    f"{ZERO}.prefetch_size": f"{ZERO}.stage3_prefetch_bucket_size",
    **{
        f"{monitor}.{name}": f"{monitor}.output_path"
        for monitor in ("tensorboard", "csv_monitor")
        for name in ("dir", "log_dir", "logdir", "logging_dir", "output_dir", "path")
    },
    **{f"{monitor}.{name}": f"{monitor}.job_name"
       for monitor in ("tensorboard", "csv_monitor") for name in ("name", "run_name")},
    **{
        f"{part}.{name}": f"{part}.{key}"
        for part in (_OPTIMIZER, _PARAM)
        for key, names in {
            "nvme_path": ("dir", "nvme", "nvme_dir", "path"),
            "pin_memory": ("pin", "pinned", "pinned_memory", "use_pin_memory"),
            "device": ("enable", "enabled"),
        }.items()
        for name in names
    },
    f"{_OPTIMIZER}.pipeline": (f"{_OPTIMIZER}.pipeline_read", f"{_OPTIMIZER}.pipeline_write"),
    **{
        f"{section}.{name}": f"{section}.{key}"
        for section in ("optimizer", "scheduler")
        for key, names in {
            "type": ("class", "name", f"{section}_type"),
            "params": ("args", "config", "kwargs", "parameters"),
        }.items()
        for name in names
    },
}  # fmt: skip
"""Key that DeepSpeed does not have → the key or keys for the same."""

WORDS_OF_OTHERS: Mapping[str, str | tuple[str, ...]] = {
    "accumulate_grad_batches": _ACCUMULATION,
    "accumulation_steps": _ACCUMULATION,
    "adam_beta1": _BETAS,
    "adam_beta2": _BETAS,
    "adam_epsilon": _EPS,
    "adam_w_mode": f"{_PARAMS}.adam_w_mode",
    "aio_config": "aio",
    "allreduce_always_fp32": _DTYPE,
    "autocast": "torch_autocast",
    "autoep_size": "expert_parallel.autoep_size",
    "autotp_size": "tensor_parallel.autotp_size",
    "beta1": _BETAS,
    "beta2": _BETAS,
    "betas": _BETAS,
    "clip_grad": "gradient_clipping",
    "clip_grad_norm": "gradient_clipping",
    "comet_ml": "comet",
    "comm_dtype": _DTYPE,
    "communication_dtype": _DTYPE,
    "communication_logger": "comms_logger",
    "context_parallel_size": "sequence_parallel_size",
    "cpu_offload_optimizer": _OPTIMIZER,
    "cpu_offload_params": _PARAM,
    "csv": "csv_monitor",
    "csv_logger": "csv_monitor",
    "deepcompile": "compile.deepcompile",
    "device": f"{_OPTIMIZER}.device",
    "disable_gc": "disable_python_gc",
    "dtype": _FORMATS,
    "dump": "dump_state",
    "dynamic_loss_scale": _LOSS_SCALE,
    "ep_size": "expert_parallel.autoep_size",
    "eps": _EPS,
    "epsilon": _EPS,
    "expert_parallel_size": "expert_parallel.autoep_size",
    "float16": "fp16",
    "fp32_allreduce": _DTYPE,
    "gather_fp16": f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    "global_batch_size": "train_batch_size",
    "grad_accum": _ACCUMULATION,
    "grad_accumulation": _ACCUMULATION,
    "grad_clip": "gradient_clipping",
    "gradient_accumulation_dtype": "data_types.grad_accum_dtype",
    "gradient_clip": "gradient_clipping",
    "gradient_clip_val": "gradient_clipping",
    "half": "fp16.enabled",
    "hpz": f"{ZERO}.zero_hpz_partition_size",
    "hysteresis": "fp16.hysteresis",
    "learning_rate": _LR,
    "load_universal_checkpoint": "checkpoint.load_universal",
    "loss_scaling": _LOSS_SCALE,
    "lr": _LR,
    "lr_scheduler": "scheduler",
    "lr_scheduler_type": "scheduler.type",
    "lr_warmup_steps": _WARMUP,
    "master_weights": ("fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"),
    "max_grad_norm": "gradient_clipping",
    "micro_batch_per_gpu": _MICRO,
    "micro_batch_size": _MICRO,
    "micro_batch_size_per_gpu": _MICRO,
    "mixed_precision": _FORMATS,
    "model_parallel_size": "tensor_parallel.autotp_size",
    "monitor": _MONITORS,
    "monitor_config": _MONITORS,
    "mp_size": "tensor_parallel.autotp_size",
    "num_training_steps": _TOTAL,
    "num_warmup_steps": _WARMUP,
    "nvme_path": f"{_OPTIMIZER}.nvme_path",
    "offload": (_OPTIMIZER, _PARAM),
    "optim": "optimizer.type",
    "optimizer_type": "optimizer.type",
    "per_device_train_batch_size": _MICRO,
    "per_gpu_train_batch_size": _MICRO,
    "pin_memory": f"{_OPTIMIZER}.pin_memory",
    "precision": _FORMATS,
    "print_steps": "steps_per_print",
    "profiler": "flops_profiler",
    "quantization": "weight_quantization",
    "reduce_dtype": _DTYPE,
    "save_16bit_model": f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    "scheduler_type": "scheduler.type",
    "sp_size": "sequence_parallel_size",
    "steps_per_log": "steps_per_print",
    "tensor_model_parallel_size": "tensor_parallel.autotp_size",
    "tensor_parallel_size": "tensor_parallel.autotp_size",
    "torch_amp": "torch_autocast",
    "torch_dtype": _FORMATS,
    "total_num_steps": _TOTAL,
    "total_steps": _TOTAL,
    "tp_size": "tensor_parallel.autotp_size",
    "train_iters": _TOTAL,
    "ulysses_sequence_parallel_size": "sequence_parallel_size",
    "universal_checkpoint": "checkpoint.load_universal",
    "warmup_num_steps": _WARMUP,
    "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP,
    "wd": _DECAY,
    "weight_decay": _DECAY,
    "zero": ZERO,
    "zero3": ZERO,
    "zero3_save_16bit_model": f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    "zero_config": ZERO,
    "zero_opt": ZERO,
    "zero_optimizer": ZERO,
    "zero_stage": f"{ZERO}.stage",
}
"""Names from other tools, or in the wrong section → where DeepSpeed reads the setting."""

_NO_SCALE = "delete it: bf16 has no loss scale"
_TO_SCRIPT = "give `--{}` to the script, if it uses the Trainer"
_TO_WANDB = "set `WANDB_{}` in the environment"
_TO_PIPELINE = "give `{}` to `PipelineModule` in the script"
_OF_APEX = "use `fp16.enabled`; this is a setting of apex, which DeepSpeed no longer uses"
_OF_ACCELERATE = "move it to the accelerate config, of which it is a field"
_OF_LAUNCHER = "leave it out: the launcher sets it"
_OF_ONE_BIT = "delete it: only the 1-bit optimizers of older releases have it"
_WANDB = {
    **{name: name.upper() for name in ("api_key", "dir", "mode", "name", "notes", "tags")},
    **dict.fromkeys(("job_name", "run_name"), "NAME"),
    **dict.fromkeys(("log_dir", "output_path"), "DIR"),
}

NOT_IN_A_DS_CONFIG: Mapping[str, str] = {
    "fp16.max_loss_scale": "delete it: DeepSpeed has no upper limit of the loss scale",
    "fp32": "leave out `bf16` and `fp16` for fp32",
    "pipeline.num_stages": _TO_PIPELINE.format("num_stages"),
    "pipeline.partition_method": _TO_PIPELINE.format("partition_method"),
    "pipeline_parallel_size": _TO_PIPELINE.format("num_stages"),
    "pp_size": _TO_PIPELINE.format("num_stages"),
    "sparse_gradient": "delete it: DeepSpeed has no sparse gradients any more",
    **{
        f"bf16.{name}": _NO_SCALE
        for name in (
            *("loss_scale", "loss_scale_window", "initial_scale_power", "min_loss_scale"),
            *("hysteresis", "consecutive_hysteresis"),
        )
    },
    **{f"wandb.{name}": _TO_WANDB.format(variable) for name, variable in _WANDB.items()},
    **{
        f"checkpoint.{name}": "give it to `save_checkpoint` and `load_checkpoint` in the script"
        for name in ("load_dir", "load_path", "output_dir", "save_dir", "tag")
    },
    **{
        f"compile.{name}": "give it to `engine.compile()` in the script"
        for name in ("backend", "compile_kwargs", "kwargs")
    },
    **{
        name: _TO_SCRIPT.format(name)
        for name in (
            *("bf16_full_eval", "dataloader_num_workers", "eval_steps", "eval_strategy", "fsdp"),
            *("gradient_checkpointing", "logging_steps", "max_steps", "num_train_epochs", "output_dir"),
            *("per_device_eval_batch_size", "report_to", "run_name", "save_steps", "save_strategy", "seed"),
            *("tf32", "torch_compile"),
        )
    },
    **{
        name: f"give `{option}` to `zlaunch train`: a ds_config does not choose ranks"
        for option, names in {
            "--gpus": ("num_gpus", "nproc_per_node", "num_processes", "world_size"),
            "--nodes": ("num_nodes", "nnodes", "num_machines"),
            "--hostfile": ("hostfile", "deepspeed_hostfile"),
        }.items()
        for name in names
    },
    **dict.fromkeys(("local_rank", "master_addr", "master_port"), _OF_LAUNCHER),
    **dict.fromkeys(("comm_backend_name", "cuda_aware", "freeze_step"), _OF_ONE_BIT),
    **dict.fromkeys(("fp16_backend", "fp16_opt_level", "half_precision_backend", "opt_level"), _OF_APEX),
    **dict.fromkeys(
        ("compute_environment", "deepspeed_config_file", "distributed_type", "zero3_init_flag"),
        _OF_ACCELERATE,
    ),
}
"""Key that means something, for which a ds_config has no key → what to do."""

REMARKS = ("comment", "comments", "description", "note", "notes")
"""Names of keys in which people write remarks, because JSON has no comments."""

_SWITCHES = ("enabled", "enable")
_BROAD = frozenset(
    {
        *("autotuning", "bfloat16", "compile", "data_efficiency", "expert_parallel"),
        *("hybrid_engine", "pipeline", "tensor_parallel"),
    }
)
"""Sections whose keys have names that could mean anything at another place."""


@dataclass(frozen=True, slots=True)
class Intention:
    """What was probably meant by an unknown key."""

    hint: str
    fix: Fix | None = None
    """None if it is only a guess."""
    path: KeyPath | None = None
    """The intended key, if there is one."""
    is_key: bool = False
    """Whether a key of a ds_config was meant, so that the key is a mistake."""
    is_remark: bool = False
    """Whether it is a comment, which is fine wherever DeepSpeed ignores it."""


def intended(whole: dict[str, object], path: KeyPath) -> Intention:
    """Guess what was meant by the unknown key at `path`."""
    guesses = (
        *(_moved, _by_name, _remark, _flat, _written_together, _switch),
        *(_misspelled, _shortened, _misplaced, _argument),
    )
    found = (guess(whole, path[:-1], str(path[-1])) for guess in guesses)
    return next((one for one in found if one is not None), None) or _unknown(path[:-1])


def _moved(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a key of the top level, or of `zero_optimization`."""
    if parent and key in DsConfig.model_fields and _fits(whole, (key,), value_at(whole, (*parent, key))):
        return Intention(f"move `{key}` to the top level", Fix(FixKind.MOVE, ""), (key,), is_key=True)
    if not parent and key in known_keys(whole, (ZERO,)):
        move = Fix(FixKind.MOVE, ZERO) if isinstance(whole.get(ZERO, {}), dict) else None
        return Intention(f"move `{key}` into `{ZERO}`", move, (ZERO, key), is_key=True)
    return None


def _fits(whole: Mapping[str, object], path: KeyPath, value: object) -> bool:
    """Whether a value can be meant for a key: only an object for a section."""
    info = field_at(whole, path)
    return info is not None and (section_in(info.annotation, value) is None or isinstance(value, dict))


def _by_name(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a name of another tool, or of an older release."""
    where = dotted((*parent, key))
    name = where if where in KEYS_ELSEWHERE or where in NOT_IN_A_DS_CONFIG else key
    if hint := NOT_IN_A_DS_CONFIG.get(name):
        return Intention(hint, Fix(FixKind.DELETE) if hint == _NO_SCALE else None)
    targets = [one for one in _targets(parent, key) if one[-1] in (known_keys(whole, one[:-1]) or one[-1:])]
    return _at(whole, parent, key, targets)


def _targets(parent: KeyPath, key: str) -> list[KeyPath]:
    named = KEYS_ELSEWHERE.get(dotted((*parent, key)), WORDS_OF_OTHERS.get(key, ()))
    return [tuple(name.split(".")) for name in ((named,) if isinstance(named, str) else named)]


def _at(
    whole: Mapping[str, object], parent: KeyPath, key: str, targets: Sequence[KeyPath]
) -> Intention | None:
    """Point to the intended key, or to several if the name can mean each of them."""
    targets = [one for one in targets if one[:-1] == parent] or [*targets]
    if not targets or any(one in ((*parent, key), parent[: len(one)]) for one in targets):
        return None
    hint = f"the key in a ds_config is {_or(map(dotted, targets))}"
    if len(targets) > 1:
        return Intention(hint, is_key=True)
    (path,) = targets
    fits = path[:-1] == parent and _fits(whole, path, value_at(whole, (*parent, key)))
    return Intention(hint, _rename(key, str(path[-1])) if fits else None, path, is_key=True)


def _rename(key: str, name: str) -> Fix | None:
    is_sure = difflib.SequenceMatcher(None, key, name).ratio() >= SURE
    return Fix(FixKind.RENAME, name) if is_sure else None


def _or(names: Iterable[str]) -> str:
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} or {last}" if first else last


def _remark(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a comment, for which no key was meant."""
    is_remark = not key.strip() or key.startswith(("_", "//", "#")) or key.lower() in REMARKS
    return Intention("delete it: JSON has no comments", is_remark=True) if is_remark else None


def _flat(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    if parent or "." not in key:
        return None
    return Intention("nest the keys: a ds_config has no dotted keys", is_key=True)


def _written_together(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize the names of a section and its key in one: `offload_optimizer_device`."""
    return _at(whole, parent, key, _joined().get(key, ()))


@cache
def _joined() -> Mapping[str, tuple[KeyPath, ...]]:
    found: dict[str, tuple[KeyPath, ...]] = {}
    for path, _ in fields():
        name = "_".join(map(str, path[-2:]))
        found[name] = (*found.get(name, ()), *([path] if len(path) > 1 else []))
    return found


def _switch(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    known = known_keys(whole, parent)
    if not parent or key not in _SWITCHES or not known or {*_SWITCHES} & {*known}:
        return None
    return Intention(f"delete it: `{parent[-1]}` has no switch")


def _misspelled(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    close = difflib.get_close_matches(key, known_keys(whole, parent), n=1, cutoff=0.75)
    return _did_you_mean(parent, key, close)


def _did_you_mean(parent: KeyPath, key: str, names: Sequence[str]) -> Intention | None:
    if len(names) != 1:
        return None
    (name,) = names
    return Intention(f"did you mean `{name}`?", _rename(key, name), (*parent, name), is_key=True)


def _shortened(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize the first or last words of one key; at the top, one word could be the script's own key."""
    if not parent and "_" not in key:
        return None
    known = known_keys(whole, parent)
    return _did_you_mean(parent, key, [name for name in known if f"_{name}_".find(f"_{key}_") >= 0])


def _misplaced(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a key of another section."""
    params = (*parent, "params")
    if params in _CONSTRUCTORS and key in known_keys(whole, params):
        return _at(whole, parent, key, [(*params, key)])
    return _at(whole, parent, key, [*_places(parent, key)])


_CONSTRUCTORS = (("optimizer", "params"), ("scheduler", "params"))


def _places(parent: KeyPath, key: str) -> Iterator[KeyPath]:
    """Find a key in other sections; names of one word could mean anything, except in a section around."""
    names = {key, f"stage3_{key}", f"zero_{key}"}
    for path, _ in fields():
        is_below = bool(parent) and path[: len(parent)] == parent
        is_clear = "_" in key and path[0] not in _BROAD and "zenflow" not in path
        if path[-1] in names and (is_below or is_clear):
            yield path


def _argument(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Name the schedulers with an argument, or the arguments of the class that is used."""
    known = known_keys(whole, parent)
    if parent not in _CONSTRUCTORS or not known:
        return None
    section = str(parent[0])
    kinds = DEEPSPEED_SCHEDULERS if section == "scheduler" else ()
    names = {key, *(str(one[-1]) for one in _targets(parent, key) if one[:-1] == parent)}
    have = [kind for kind in kinds if names & {*known_keys({section: {"type": kind}}, parent)}]
    if have:
        takes = "takes" if len(have) == 1 else "take"
        return Intention(f"use {_or(have)}, which {takes} it, or delete it")
    return Intention(f"{value_at(whole, (section, 'type'))} takes {', '.join(known)}")


def _unknown(parent: KeyPath) -> Intention:
    command = "zlaunch config explain" + (f" {dotted(parent)}" if parent else "")
    return Intention(f"`{command}` lists the keys")
