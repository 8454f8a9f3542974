"""The flags of `accelerate launch` (accelerate/commands/launch.py) and the fields of its configs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from zlaunch.config.accelerate import AccelerateConfig
from zlaunch.config.translate.flags import (
    Becomes,
    BecomesOption,
    BecomesVariable,
    Command,
    Flag,
    GivenFlag,
    LauncherSyntax,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
    flag,
    switch,
)
from zlaunch.config.translate.launchers import LOGS, RENDEZVOUS

_NO_COMPILER = NoEquivalent("accelerate ignores it with DeepSpeed; call `torch.compile` in the script")
_CPU = BecomesVariable("DS_ACCELERATOR", "cpu")
_TPU = Untranslatable("zlaunch starts DeepSpeed, which does not run on TPUs")
_FSDP = Untranslatable(
    "zlaunch starts DeepSpeed, not FSDP", "`zlaunch train --stage 3` partitions as FSDP does"
)
_MEGATRON = Untranslatable("zlaunch starts DeepSpeed, not Megatron-LM")
_ELSEWHERE = NotNeeded("it does not concern DeepSpeed")
_PARALLEL = NoEquivalent("zlaunch only supports data parallelism")
_FP8 = NoEquivalent("zlaunch supports bf16, fp16 and fp32")

DISTRIBUTED_TYPES: Mapping[str, bool | Untranslatable] = {
    "DEEPSPEED": True,
    "NO": False,
    "MULTI_GPU": False,
    "MULTI_CPU": False,
    "FSDP": _FSDP,
    "MEGATRON_LM": _MEGATRON,
    "XLA": _TPU,
}
"""Whether accelerate uses DeepSpeed; other types are for hardware that zlaunch does not support."""

OTHER_HARDWARE = Untranslatable("zlaunch supports NVIDIA GPUs and CPUs")


def _family(prefix: str, names: str, becomes: Becomes) -> Iterator[Flag]:
    return (flag(f"--{prefix}_{name}", becomes) for name in names.split())


FLAGS: tuple[Flag, ...] = (
    flag("--config_file", Role.CONFIG_FILE),
    switch(
        "-q --quiet", NotNeeded("zlaunch shows rank 0, and keeps the launcher's log in the run directory")
    ),
    switch("--debug", BecomesVariable("ACCELERATE_DEBUG_MODE", "true")),
    switch("--cpu", _CPU),
    switch("--multi_gpu", NotNeeded("zlaunch starts a rank on each GPU")),
    switch("--tpu", _TPU),
    flag("--mixed_precision", Role.PRECISION),
    flag("--num_processes", Role.ALL_RANKS, idle="-1"),
    flag("--num_machines", Role.HOSTS),
    flag("--num_cpu_threads_per_process", BecomesVariable("OMP_NUM_THREADS")),
    switch("--enable_cpu_affinity", BecomesVariable("ACCELERATE_CPU_AFFINITY", "1")),
    flag("--dynamo_backend", _NO_COMPILER, idle="no"),
    flag("--dynamo_mode", _NO_COMPILER, idle="default"),
    switch("--dynamo_use_fullgraph", _NO_COMPILER),
    switch("--dynamo_use_dynamic", _NO_COMPILER),
    switch("--dynamo_use_regional_compilation", _NO_COMPILER),
    switch("--use_deepspeed", Role.USE_DEEPSPEED),
    switch("--use_fsdp", _FSDP),
    switch("--use_parallelism_config", _PARALLEL),
    switch("--use_megatron_lm", _MEGATRON),
    flag("--gpu_ids", Role.DEVICES, idle="all"),
    switch("--same_network", RENDEZVOUS),
    flag("--machine_rank", NotNeeded("zlaunch starts all hosts from one of them; run it once"), idle="0"),
    flag("--main_process_ip", RENDEZVOUS),
    flag("--main_process_port", NotNeeded("zlaunch picks a free port")),
    flag("-t --tee", LOGS, idle="0"),
    flag("--log_dir", LOGS),
    flag("--role", NoEquivalent("zlaunch has no rank roles"), idle="default"),
    flag("--rdzv_backend", RENDEZVOUS, idle="static"),
    flag("--rdzv_conf", RENDEZVOUS),
    flag("--max_restarts", BecomesOption("--max-restarts"), idle="0"),
    flag("--monitor_interval", NoEquivalent("zlaunch keeps torchrun's own interval")),
    switch("-m --module", Role.MODULE),
    switch("--no_python", Untranslatable("zlaunch only starts Python scripts")),
    switch("--tpu_cluster", _TPU),
    switch("--no_tpu_cluster", _ELSEWHERE),
    switch("--tpu_use_sudo", _ELSEWHERE),
    flag("--vm", _ELSEWHERE),
    flag("--env", _ELSEWHERE),
    flag("--main_training_function", _ELSEWHERE, idle="main"),
    switch("--downcast_bf16", _ELSEWHERE),
    flag("--deepspeed_config_file", Role.DS_CONFIG, idle="none"),
    flag("--zero_stage", Role.STAGE),
    flag("--offload_optimizer_device", Role.OPTIMIZER_DEVICE),
    flag("--offload_param_device", Role.PARAM_DEVICE),
    flag("--offload_optimizer_nvme_path", Role.OPTIMIZER_PATH, idle="none"),
    flag("--offload_param_nvme_path", Role.PARAM_PATH, idle="none"),
    flag("--gradient_accumulation_steps", Role.ACCUMULATION, idle="auto"),
    flag("--gradient_clipping", Role.CLIPPING, idle="auto"),
    flag("--zero3_init_flag", Role.SHARDED_INIT),
    flag("--zero3_save_16bit_model", Role.SAVE_16BIT),
    flag("--deepspeed_hostfile", Role.HOSTFILE),
    flag("--deepspeed_exclusion_filter", Role.EXCLUDE),
    flag("--deepspeed_inclusion_filter", Role.INCLUDE),
    flag(
        "--deepspeed_multinode_launcher",
        NoEquivalent("zlaunch starts other hosts with pdsh"),
        idle="pdsh standard",
    ),
    flag(
        "--deepspeed_moe_layer_cls_names",
        BecomesVariable("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
        idle="none",
    ),
    *_family(
        "fsdp",
        "version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy "
        "transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params "
        "cpu_ram_efficient_loading sync_module_states activation_checkpointing "
        "activation_checkpointing_offload",
        _ELSEWHERE,
    ),
    *_family(
        "megatron_lm",
        "tp_degree use_custom_fsdp no_load_optim eod_mask_loss overlap_cpu_optimizer_d2h_h2d no_save_optim "
        "optimizer_cpu_offload use_precision_aware_optimizer decoder_last_pipeline_num_layers pp_degree "
        "num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer "
        "gradient_clipping recompute_granularity recompute_method recompute_num_layers attention_backend "
        "expert_model_parallel_size context_parallel_size attention_dropout hidden_dropout "
        "attention_softmax_in_fp32 expert_tensor_parallel_size calculate_per_token_loss "
        "use_rotary_position_embeddings",
        _ELSEWHERE,
    ),
    *_family(
        "fp8",
        "backend margin interval format amax_history_len amax_compute_algo override_linear_precision "
        "opt_level enable_fsdp_float8_all_gather pad_inner_dim",
        _FP8,
    ),
    switch("--fp8_use_autocast_during_eval", _FP8),
    *_family("aws", "access_key_id secret_access_key", _ELSEWHERE),
    flag("--mpirun_hostfile", NoEquivalent("zlaunch does not start mpirun")),
    *_family(
        "parallelism_config",
        "dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend "
        "sp_seq_length sp_seq_length_is_variable sp_attn_implementation",
        _PARALLEL,
    ),
)

LAUNCHER = LauncherSyntax(name="accelerate launch", flags=FLAGS, shortens=False)

_FIELDS: Mapping[str, Flag] = {
    **{one.key: one for one in FLAGS},
    "compute_environment": flag("compute_environment", _ELSEWHERE, idle="local_machine"),
    "distributed_type": flag("distributed_type", Role.DISTRIBUTED_TYPE),
    "downcast_bf16": flag("downcast_bf16", _ELSEWHERE, idle="no"),
    "num_machines": flag("num_machines", Role.HOSTS, idle="1"),
    "fp16": switch("fp16", NoEquivalent("write `mixed_precision: fp16`")),
    "same_network": flag("same_network", RENDEZVOUS, idle="true false"),
    "tpu_use_cluster": switch("tpu_use_cluster", _TPU),
    "use_cpu": switch("use_cpu", _CPU),
    **{
        name: flag(name, _ELSEWHERE, idle="[]")
        for name in ("tpu_name", "tpu_zone", "tpu_vm", "tpu_env", "command_file", "commands")
    },
}
"""The fields of a config: the flags, and what only a config has."""


def with_settings(command: Command, config: AccelerateConfig) -> Command:
    """Add the settings of a config that the command line does not override, as `accelerate launch` does."""
    said = {one.flag.key for one in command.given}
    found = [one for one in _from_config(config) if one.flag.key not in said]
    return replace(command, given=(*found, *command.given))


def _from_config(config: AccelerateConfig) -> Iterator[GivenFlag]:
    """Read the fields as flags, except placeholders that `accelerate config` writes."""
    hints = {finding.place: f"; {finding.hint}" for finding in config.findings if finding.hint}
    for setting in config.settings():
        text = setting.value if isinstance(setting.value, str) else json.dumps(setting.value)
        unknown = NotNeeded(f"accelerate ignores it{hints.get(setting.place, '')}")
        field = _FIELDS.get(setting.name) or flag(setting.name, unknown)
        is_off = not field.takes_value and text.lower() in ("false", "no")
        if not is_off and text.lower() not in field.idle:
            yield GivenFlag(field, text, f"{setting.name}: {text}", place=setting.place)


def paradigm(command: Command) -> bool | Untranslatable:
    """Whether accelerate uses DeepSpeed; Untranslatable if it uses something else."""
    roles = command.roles()
    chosen = {one.flag.key for one in command.given if one.place is None} & {"multi_gpu", "cpu"}
    if Role.USE_DEEPSPEED in roles:
        return True
    if chosen or Role.DISTRIBUTED_TYPE not in roles:
        return False
    return DISTRIBUTED_TYPES.get(roles[Role.DISTRIBUTED_TYPE].value, OTHER_HARDWARE)
