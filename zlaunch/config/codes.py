"""What the codes of findings mean, apart from those of rules, which say it themselves."""

from collections.abc import Mapping

from zlaunch.config.rules import RULES

LENIENT = (
    *("trailing-comma", "single-quotes", "bare-key", "no-quotes", "missing-comma", "no-braces"),
    *("loose-text", "odd-space", "byte-order-mark"),
)
"""Deviations from JSON that only DeepSpeed reads, besides comments."""

GENERAL: Mapping[str, str] = {
    "unknown-key": "DeepSpeed does not know the key. Some sections reject it, others ignore it. The hint "
    "names the most similar key, the key that means the same, or where the setting belongs.",
    "removed-key": "The key was removed. DeepSpeed rejects it even if it is switched off.",
    "newer-key": "The key was added after the release given with `--deepspeed`.",
    "missing-key": "The section requires this key.",
    "bad-type": "The value has the wrong type: a string for a number, a number for a boolean, or null where "
    "DeepSpeed crashes on it.",
    "bad-value": "The value is out of range, or is not one of the allowed words.",
    "auto-not-here": '"auto" is not supported for this key. The Trainer fails, and DeepSpeed uses its '
    "default.",
    "float-for-whole": "The number is written like `1e3`. The Trainer reads it as a float, and DeepSpeed "
    "requires an integer.",
    "duplicate-key": "The key occurs twice in one object. DeepSpeed rejects this, and the Trainer uses the "
    "last one.",
    "misread-value": "DeepSpeed reads the value as a string, although another type was meant: `True`, "
    "`.5`, or a word without quotes before a comma.",
    "comment": f"DeepSpeed reads comments, but transformers and accelerate do not. The same holds for "
    f"{', '.join(f'`{code}`' for code in LENIENT[:-1])} and `{LENIENT[-1]}`. `loose-text` is a "
    "tab or an unusual escape in a string. With `--for trainer` these fail later.",
    "not-json": "No parser can read the file beyond this position.",
    "not-text": "The file is not UTF-8 text.",
    "no-deepspeed": "The accelerate config does not use DeepSpeed.",
    "deepspeed-refuses": "Only with `--deep`: DeepSpeed rejects the config for a reason that zlaunch does "
    "not check.",
}
"""Codes for single keys and values."""

ELSEWHERE: Mapping[str, str] = {
    "cannot-read": "The file does not exist, or cannot be read.",
    "bad-checkpoint": "A file of a checkpoint is missing, damaged or from another save.",
    "unfit-checkpoint": "`--resume`: the job cannot resume from the checkpoint, or its script would "
    "not load it.",
    "kept-argument": "`--resume`: a Trainer takes the argument from its checkpoint.",
    "nothing-to-train": "`--resume`: the checkpoint is at the end of the training.",
    "bad-argument": "A Trainer argument has a value of the wrong type.",
    "removed-argument": "The installed transformers no longer has the Trainer argument.",
    "newer-argument": "The installed transformers does not have the Trainer argument yet.",
    "both-precisions": "`--bf16` and `--fp16` exclude each other.",
    "fsdp-and-deepspeed": "The Trainer refuses `--fsdp` together with a ds_config, once the model is loaded.",
    "aio-no-section": "`zlaunch nvme tune -o`: `aio` in the file is not an object.",
    "not-python": "The training script is not valid Python.",
    "no-optimizer": "The script trains a DeepSpeed engine, and neither the script nor the ds_config defines "
    "an optimizer.",
    "own-config": "The script passes its own ds_config to DeepSpeed, so zlaunch's is not used.",
    "not-accelerate-config": "The YAML file is not an accelerate config. DeepSpeed itself does not read "
    "YAML.",
    "not-yaml": "The YAML is invalid at this position, or uses syntax that accelerate does not.",
    "yaml-number": "YAML reads a number such as `2e8` as a string.",
    "beside-a-file": "accelerate rejects this field if the config also names a ds_config file, because "
    "the file sets it.",
    "ignored-field": "accelerate ignores the field because of the rest of its config.",
    "lost-nvme-path": "accelerate does not pass on the NVMe directory.",
    "no-equivalent": "`config translate`: zlaunch has no equivalent option.",
    "no-model-type": "The `config.json` of the model has no `model_type`, so the architecture is unknown.",
    "unknown-model-type": "The installed transformers does not have this model type.",
    "no-access": "Preflight: the script loads a model from the hub that does not exist there, or that your "
    "token has no access to.",
    "own-code": "The model has custom code. The estimate uses the transformers class of the same type, "
    "which a script without `trust_remote_code` loads.",
    "absurd-size": "The `config.json` of the model has an impossible size.",
    "sequence-too-long": "The sequence has more tokens than the model has positions.",
    "counted-otherwise": "The estimate leaves something out, or counts it in an unexpected way.",
    "cannot-tell": "Neither a rehearsal nor the closed form can estimate the memory of the job.",
    "cannot-resume": "The job can start and save, but cannot resume from its checkpoint in the same memory.",
    "deepspeed-gives-up": "The rehearsal of two steps ended with an error from DeepSpeed.",
    "not-rehearsed": "The rehearsal itself failed. The job may still work.",
    "does-not-fit": "The job needs more memory than the GPUs or their host have.",
    "gpu-busy": "Preflight: another process uses a GPU of the job. Late if the free memory is too small for "
    "it.",
    "host-memory-short": "Preflight: the ranks on a host need more memory than is available there, or than "
    "their control group allows. Late if swap does not help either.",
    "shm-too-small": "Preflight: /dev/shm is too small for the data that passes through it. Late if the "
    "job would fail.",
    "memlock-too-small": "Preflight: the limit on locked memory is too small for the buffers of an offload "
    "to NVMe, for which DeepSpeed calls mlock regardless of `pin_memory`, or for NCCL over "
    "InfiniBand.",
    "disk-too-small": "Preflight: a file system has too little space for the run directory, a checkpoint, "
    "or data offloaded to NVMe.",
    "not-shared": "Preflight: another host does not have the script, the NVMe directory or the run "
    "directory. Advice if its directory seems to be a different one.",
    "other-script": "Preflight: the script on another host has other bytes than here.",
    "other-version": "Preflight: a package on a host, or Python, has another version than on most hosts. "
    "Advice unless it is another minor release of torch or DeepSpeed.",
    "output-unwritable": "Preflight: nothing can be written to the directory of `--output_dir`.",
    "output-is-pattern": "Preflight: DeepSpeed will not find checkpoints by a path with `[`, `*` or `?`. "
    "Advice unless the job itself loads one, with `--load_best_model_at_end`.",
    "nvme-saved-before": "Preflight: a job with its optimizer on NVMe would save over a checkpoint of "
    "another, which DeepSpeed ends with `FileExistsError`. Advice if its steps are not known.",
    "mixed-checkpoint": "Preflight: a job would save over a checkpoint of more ranks or another stage, and "
    "leave some of its files.",
    "old-driver": "Preflight: the driver of the GPUs is older than the CUDA release of torch.",
    "no-interface": "Preflight: a variable chooses a network interface that a host does not have.",
    "no-compiler": "A native op has to be compiled, but there is no compiler, ninja, or header of Python.",
    "not-writable": "The current directory is not writable.",
    "monitor-missing": "Preflight: the package of an enabled monitor is not installed.",
    "unknown-monitor": "transformers has no integration of the name given with `--report_to`.",
    "unknown-model": "transformers cannot create a trainable model from this `config.json`.",
    "model-without-sizes": "The `config.json` of the model lacks the sizes of the model.",
    "not-as-it-was": "`runs rerun`: the script, its git commit or uncommitted changes, a package, Python or "
    "the GPUs have changed since the run.",
    "unknown-option": "`zlaunch.yaml` has a key that is not an option of `train`, `plan` or `estimate`.",
    "bad-option": "A value in `zlaunch.yaml` is not one that its option takes.",
    "bad-host-line": "A line of the hostfile is not `HOST slots=N`.",
    "not-for-deepspeed": "The hostfile sets a user, port, address or Python, for which DeepSpeed's launcher "
    "has no option.",
    "bad-deepspeed-env": "A line of `.deepspeed_env` is not `NAME=VALUE`, or needs a shell to expand it.",
    "duplicate-host": "The hostfile names a host twice.",
    "no-hosts": "The hostfile names no host.",
    "no-slots": "A host in the hostfile has no slots.",
    "same-machine": "Two hosts of a job are one machine, and the job would use one of its GPUs twice.",
    "too-many-slots": "A host has fewer GPUs than slots in the hostfile.",
}
"""Codes for arguments and other files."""


def meaning(code: str) -> str:
    """Explain a code in a sentence or two; an unknown one by its own words."""
    of_rules = {rule.code: " ".join(rule.why.split()) for rule in RULES}
    lenient = dict.fromkeys(
        LENIENT, "DeepSpeed reads this, but it is not JSON: transformers and accelerate do not."
    )
    return {**of_rules, **GENERAL, **ELSEWHERE, **lenient}.get(code, code.replace("-", " "))
