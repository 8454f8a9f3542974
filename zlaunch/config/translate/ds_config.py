"""Translate flags about the ds_config: a file, or a stage with its settings."""

from collections.abc import Iterable, Iterator, Mapping

from zlaunch.config.translate.flags import Command, GivenFlag, Role, Roles, implied
from zlaunch.config.translate.parts import Note, Option, Piece, becomes, no_equivalent, not_needed, sets
from zlaunch.config.translate.script import FORMATS, TranslatedScript, leaves_precision_open

STAGE = "2"
"""Accelerate's default stage, and zlaunch's."""

_GATHER = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
_INIT = "ACCELERATE_DEEPSPEED_ZERO3_INIT"
_MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
_DEVICES = (Role.OPTIMIZER_DEVICE, Role.PARAM_DEVICE)
_PATHS: Mapping[Role, str] = {
    Role.OPTIMIZER_PATH: "zero_optimization.offload_optimizer.nvme_path",
    Role.PARAM_PATH: "zero_optimization.offload_param.nvme_path",
}
_SET: Mapping[Role, tuple[str, str, str | None]] = {
    Role.ACCUMULATION: ("gradient_accumulation_steps", "gradient_accumulation_steps", "1"),
    Role.CLIPPING: ("gradient_clipping", "max_grad_norm", None),
}
"""Role → key of the ds_config, Trainer argument of the same meaning, default."""

_DECIDED_BY_A_FILE = (
    *(Role.STAGE, Role.OPTIMIZER_DEVICE, Role.PARAM_DEVICE, Role.OPTIMIZER_PATH, Role.PARAM_PATH),
    *(Role.ACCUMULATION, Role.CLIPPING, Role.SAVE_16BIT),
)


def settings(
    command: Command, roles: Roles, uses_deepspeed: bool, script: TranslatedScript
) -> Iterator[Piece]:
    """Translate flags about the ds_config; `uses_deepspeed`: whether the launcher configures DeepSpeed."""
    named, file = script.ds_config, roles.get(Role.DS_CONFIG)
    if named is not None:
        flag = command.args.config_flags[-1]
        yield from becomes(implied(f"{flag} {named}", named), "--ds-config", named)
        if file:
            yield not_needed(file, "the script's own argument takes precedence")
    elif file and uses_deepspeed:
        yield from becomes(file, "--ds-config", file.value)
    if named is None and (switch := command.args.flag("deepspeed")) is not None:
        yield Note(command.args.words[switch.index], "stays: it is an argument of the script itself")
    yield from _fsdp(command, named is not None or uses_deepspeed)
    if named is not None:
        yield from _beside_a_file(command, roles, script, named)
    elif file and uses_deepspeed:
        yield from _beside_a_file(command, roles, script, file.value)
    elif uses_deepspeed:
        yield from _from_fields(command, roles, script)
    else:
        yield from _without_deepspeed(command, roles, script)


def _fsdp(command: Command, gets_ds_config: bool) -> Iterator[Note]:
    """Note what becomes of an argument with which the Trainer uses FSDP."""
    if fsdp := command.args.fsdp:
        refused = "the Trainer refuses it together with a ds_config: leave out one of the two"
        yield Note(fsdp, refused if gets_ds_config else "stays: the Trainer uses FSDP, without a ds_config")


def _beside_a_file(command: Command, roles: Roles, script: TranslatedScript, file: str) -> Iterator[Piece]:
    for role in _DECIDED_BY_A_FILE:
        if role in roles:
            yield not_needed(roles[role], 'the ds_config decides; accelerate only fills in "auto"')
    asked = roles.get(Role.PRECISION)
    is_open = leaves_precision_open(file)
    if asked and asked.value.lower() != "no":
        yield from _precision_pieces(command, asked, script)
    elif is_open and not script.leaves_precision_to_accelerate:
        if script.script is None:
            yield from _open_precision(asked or implied(command.launcher.name, "no"), "the script")
        else:
            yield from _precision_pieces(command, asked, script)
    elif asked:
        yield not_needed(asked, "the ds_config decides")
    if Role.SHARDED_INIT in roles:
        yield from _sharded_init(roles[Role.SHARDED_INIT], "3")


def _without_deepspeed(command: Command, roles: Roles, script: TranslatedScript) -> Iterator[Piece]:
    name = command.launcher.name
    for role in (*_DECIDED_BY_A_FILE, Role.SHARDED_INIT, Role.DS_CONFIG):
        if role in roles:
            yield not_needed(roles[role], f"{name} ignores it without `--use_deepspeed`")
    precision = roles.get(Role.PRECISION)
    if command.args.fsdp:
        if precision:
            yield not_needed(precision, "the script's own `--bf16` or `--fp16` decides")
        return
    if script.has_own_config:
        if precision and script.leaves_precision_to_accelerate:
            yield from sets(precision, _MIXED_PRECISION, precision.value.lower())
        elif precision:
            yield no_equivalent(precision, "the script decides its precision itself")
        return
    if command.launcher.hostfile:
        text = (
            "the script gets no ds_config, so zlaunch writes one for stage 2, in the device's best precision"
        )
        yield Note(name, f"{text}; if it has its own, give `--ds-config FILE`")
        return
    yield Option("--stage", "0")
    yield Note(name, "`--stage 0`: the command does not use ZeRO; `--stage 2` needs less memory")
    yield from _clipping(name, script)
    yield from _precision_pieces(command, precision, script)


def _clipping(name: str, script: TranslatedScript) -> Iterator[Piece]:
    """Turn off what DeepSpeed does unasked; the Trainer clips as much without it."""
    match script.clips_gradients:
        case False:
            yield Option("--set", "gradient_clipping=0")
            text = "the script clips no gradients; DeepSpeed would, at 1.0"
            yield Note(name, f"`--set gradient_clipping=0`: {text}")
        case None:
            text = "DeepSpeed clips gradients at 1.0; if the script clips none"
            yield Note(name, f"{text}, add `--set gradient_clipping=0`")


def _from_fields(command: Command, roles: Roles, script: TranslatedScript) -> Iterator[Piece]:
    stage = STAGE
    if Role.STAGE in roles:
        stage = roles[Role.STAGE].value
        yield from becomes(roles[Role.STAGE], "--stage", stage)
    yield from _offload(roles, stage)
    yield from _precision_pieces(command, roles.get(Role.PRECISION), script)
    for role in (role for role in _SET if role in roles):
        key, argument, default = _SET[role]
        if command.args.has(argument):
            yield not_needed(
                roles[role], f"the script's own `--{argument} {command.args.value(argument)}` decides"
            )
        elif roles[role].value != default:
            yield from becomes(roles[role], "--set", f"{key}={roles[role].value}")
        elif not roles[role].place:
            yield not_needed(roles[role], "it is the default")
    if Role.SAVE_16BIT in roles:
        given = roles[Role.SAVE_16BIT]
        yield from _at_stage_3(given, stage, becomes(given, "--set", f"{_GATHER}=false"))
    if Role.SHARDED_INIT in roles:
        yield from _sharded_init(roles[Role.SHARDED_INIT], stage)


def _offload(roles: Roles, stage: str) -> Iterator[Piece]:
    wanted = {part: roles[part].value.lower() for part in _DEVICES if part in roles}
    offloaded = {part: device for part, device in wanted.items() if device != "none"}
    devices = _as_deepspeed_offloads(wanted, stage)
    optimizer, param = devices
    if optimizer != "none" or param != "none":
        follows = optimizer if stage == "3" else "none"
        text = optimizer if param == follows else f"optimizer:{optimizer},param:{param}"
        yield Option("--offload", text)
        yield Note(" ".join(roles[part].written for part in wanted), f"`--offload {text}`")
    for part, device in zip(_DEVICES, devices, strict=True):
        if offloaded.get(part, device) == device:
            continue
        if device == "none":
            yield not_needed(roles[part], f"at stage {stage}, DeepSpeed does not offload it")
        else:
            yield Note(roles[part].written, "below stage 3, DeepSpeed offloads to the CPU instead")
    if "nvme" in devices and not roles.keys() & _PATHS.keys():
        yield Note("nvme", "add `--nvme DIR`; accelerate would swap to `./none`")
    yield from _nvme(
        {role: roles[role] for role in _PATHS if role in roles}, dict(zip(_PATHS, devices, strict=True))
    )


def _as_deepspeed_offloads(wanted: Mapping[Role, str], stage: str) -> list[str]:
    """Return where the optimizer and the parameters really are at a stage."""
    optimizer, param = (wanted.get(part, "none") for part in _DEVICES)
    if stage == "0":
        return ["none", "none"]
    if stage in ("1", "2"):
        return ["cpu" if optimizer == "nvme" else optimizer, "none"]
    return [optimizer, param]


def _nvme(paths: Roles, devices: Mapping[Role, str]) -> Iterator[Piece]:
    """Name the directory; a different one for the parameters goes into the ds_config."""
    used = {role: given for role, given in paths.items() if devices[role] == "nvme"}
    first = next((given.value for given in used.values()), None)
    if first is not None:
        yield Option("--nvme", first)
    for role, given in paths.items():
        text = f"--nvme {first}" if given.value == first else f"--set {_PATHS[role]}={given.value}"
        if role not in used:
            yield not_needed(given, "it is not offloaded to NVMe")
            continue
        if given.value != first:
            yield Option("--set", f"{_PATHS[role]}={given.value}")
        yield Note(given.written, f"`{text}`; accelerate ignores it and swaps to `./none`")


def _precision_pieces(command: Command, asked: GivenFlag | None, script: TranslatedScript) -> Iterator[Piece]:
    precision = asked or implied(command.launcher.name, "no")
    own = [flag.name for flag in command.args.flags if flag.name in FORMATS]
    if command.args.value("mixed_precision") is not None:
        own.append("mixed_precision")
    if own:
        if asked:
            yield not_needed(asked, f"the script's own `--{own[0]}` decides")
    elif precision.value.lower() == "fp8":
        yield Option("--precision", "bf16")
        yield no_equivalent(
            precision, "zlaunch does not support fp8; `--precision bf16` is what accelerate uses around it"
        )
    elif precision.value.lower() in FORMATS:
        yield from becomes(precision, "--precision", precision.value.lower())
    elif script.leaves_precision_to_accelerate:
        yield Note(precision.written, "the script chooses its precision, with zlaunch as without")
    elif (chooses := script.chosen_precision) is not None:
        yield from _open_precision(precision, chooses)
    else:
        yield Option("--precision", "fp32")
        yield Note(
            precision.written, "`--precision fp32`: the command does not set a precision; try without it"
        )


def _open_precision(precision: GivenFlag, chooses: str) -> Iterator[Note]:
    """Note that the precision may become another one."""
    text = f"it trains in fp32 unless {chooses} chooses a precision, and zlaunch in the best of the device"
    yield Note(precision.written, f"{text}; for fp32, add `--precision fp32`")


def _sharded_init(given: GivenFlag, stage: str) -> Iterator[Piece]:
    if stage != "3" and given.place and given.value == "false":
        return  # as `accelerate config` writes it for every stage
    yield from _at_stage_3(given, stage, sets(given, _INIT, "false"))


def _at_stage_3(given: GivenFlag, stage: str, turned_off: Iterable[Piece]) -> Iterator[Piece]:
    """Translate a switch that is on by default at stage 3, and not read below it."""
    if stage != "3":
        yield not_needed(given, "it has no effect below stage 3")
    elif given.value.lower() == "true":
        yield not_needed(given, "it is the default of zlaunch at stage 3")
    else:
        yield from turned_off
