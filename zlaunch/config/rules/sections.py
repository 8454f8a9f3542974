"""Rules about whole sections: disabled ones, ones without effect, and ones that do too much."""

from collections.abc import Iterator, Mapping

from zlaunch.config.rules.rule import Subject, Violation, advice, ignored
from zlaunch.dsconfig.keys.read_at import OFF_BY_DEFAULT, switches_over
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Fix, FixKind

DEAD: Mapping[tuple[str, ...], str] = {
    ("disable_allgather",): "delete it",
    ("pipeline", "stages"): "give the stages to `PipelineModule`",
    ("pipeline", "partition"): "give `partition_method` to `PipelineModule`",
    ("pipeline", "seed_layers"): "give `seed_layers` to `PipelineModule`",
}
"""Keys that DeepSpeed parses but never uses → what to do instead."""


@ignored({"tensorboard": {"output_path": "logs"}}, {"tensorboard.enabled": True})
def section_not_enabled(subject: Subject) -> Iterator[Violation]:
    """A section without its switch is off, and DeepSpeed ignores its other keys."""
    for section, switch in OFF_BY_DEFAULT.items():
        keys = tuple(section.split("."))
        says_more = any(path[:-1] == keys for path in subject.changed)
        if says_more and (*keys, switch) not in subject.written:
            yield Violation(
                section,
                f"`{section}` is off because `{switch}` is missing",
                f'add `"{switch}": true`, or delete it',
            )


@ignored(
    {"data_efficiency": {"enabled": False, "data_sampling": {"enabled": True, "num_workers": 2}}},
    {"data_efficiency.enabled": True},
)
def section_in_a_section_that_is_off(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed ignores a section inside one that is off."""
    for section, key in OFF_BY_DEFAULT.items():
        switch = (*section.split("."), key)
        *_, around = (), *switches_over(switch)
        if around and subject.written.get(switch) is True and subject.written.get(around) is not True:
            inner, outer = switch[-2], dotted(around[:-1])
            yield Violation(
                section, f"`{inner}` has no effect because `{outer}` is off", f"turn `{outer}` on as well"
            )


@ignored({"disable_allgather": True}, {"disable_allgather": None})
def dead_key(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed parses some keys that it no longer uses."""
    for keys, instead in DEAD.items():
        if keys in subject.changed:
            fix = None
            if instead == "delete it":
                fix = Fix(FixKind.DELETE)
            yield Violation(".".join(keys), f"DeepSpeed no longer uses `{keys[-1]}`", instead, fix)


@ignored({"autotuning": {"enabled": True}}, {"autotuning.enabled": False})
def autotuning_ends_the_job(subject: Subject) -> Iterator[Violation]:
    """With autotuning enabled, a normal job exits with status 0 after the profiled steps."""
    section = subject.config.autotuning
    if section is not None and section.enabled:
        yield Violation(
            "autotuning.enabled",
            f"autotuning ends the job after {section.end_profile_step + 1} steps with status 0",
            "write false, unless this file is for `deepspeed --autotuning`",
        )


@ignored({"datastates_ckpt": {}}, {"datastates_ckpt": False})
def datastates_is_on(subject: Subject) -> Iterator[Violation]:
    """Any value except false enables the DataStates checkpoint engine, even null and {}."""
    value = subject.config.datastates_ckpt
    if subject.has("datastates_ckpt") and not value and value is not False:
        yield Violation(
            "datastates_ckpt",
            "any value except false enables DataStates checkpoints",
            "write false, or delete it",
        )


@advice({"aio": {"queue_depth": 16}}, {"aio": None})
def aio_without_nvme(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed reads `aio` only for offload to NVMe."""
    reads = any(section.device == "nvme" for section in subject.offloads.values())
    may_read = any(keys[-1] == "device" for keys in subject.autos)
    if subject.config.aio is not None and not (reads or may_read):
        hint = f"delete it, or offload with `{ZERO}.offload_optimizer.device` nvme"
        yield Violation("aio", "`aio` has no effect without offload to NVMe", hint)


@advice(
    {"activation_checkpointing": {"contiguous_memory_optimization": True, "number_checkpoints": 4}},
    {"activation_checkpointing.partition_activations": True},
)
def contiguous_checkpoints(subject: Subject) -> Iterator[Violation]:
    """`deepspeed.checkpointing.configure` asserts `partition_activations` and `number_checkpoints` for it.

    A script can give it both as arguments.
    """
    key = "activation_checkpointing.contiguous_memory_optimization"
    for name in ("partition_activations", "number_checkpoints"):
        is_missing = subject.value(key) and not subject.value(f"activation_checkpointing.{name}")
        if is_missing and not subject.for_trainer:
            yield Violation(
                key,
                f"`contiguous_memory_optimization` needs `{name}`",
                f"add `{name}`, or give it to `deepspeed.checkpointing.configure`",
            )


@ignored({"comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]}}, {"comms_logger.prof_all": False})
def all_collectives_anyway(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed ignores `prof_ops` while `prof_all` is on, the default."""
    section = subject.config.comms_logger
    if section.enabled and section.prof_ops and section.prof_all:
        yield Violation(
            "comms_logger.prof_ops",
            "ignored: `prof_all` is on, so all collectives are logged",
            'add `"prof_all": false`',
        )


@advice({"comet": {"enabled": True, "api_key": "0123"}}, {"comet.api_key": None})
def key_in_the_file(subject: Subject) -> Iterator[Violation]:
    """A config file with an API key ends up in repositories; Comet also reads it from the environment."""
    if subject.config.comet.api_key:
        yield Violation(
            "comet.api_key",
            "the file contains an API key",
            "delete it and set `COMET_API_KEY` in the environment",
        )
