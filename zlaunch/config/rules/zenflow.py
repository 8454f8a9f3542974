"""Rules about `zenflow` (`deepspeed/runtime/zenflow/engine.py`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import CPU, Subject, Violation, fails_later, ignored, zero
from zlaunch.dsconfig.schema.zero import ZenFlow

_ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}
_OF_ADAMW = frozenset({"lr", "betas", "eps", "weight_decay", "amsgrad"})


def _with(zenflow: dict[str, object], **zero_keys: object) -> dict[str, object]:
    section = {"stage": 2, "offload_optimizer": CPU, "zenflow": zenflow, **zero_keys}
    return {"zero_optimization": section, "optimizer": _ADAMW}


def _settings(subject: Subject) -> ZenFlow | None:
    if subject.stage not in (1, 2, 3):
        return None
    return subject.zero.zenflow


@fails_later(
    {"zero_optimization": {"stage": 2, "zenflow": {}}, "optimizer": _ADAMW}, {zero("offload_optimizer"): CPU}
)
def zenflow_needs_offload(subject: Subject) -> Iterator[Violation]:
    """ZenFlow raises an error unless the optimizer is offloaded to the CPU."""
    if _settings(subject) is not None and "offload_optimizer" not in subject.offloads:
        yield Violation(
            zero("zenflow"),
            "ZenFlow needs optimizer offload to the CPU",
            'add `"offload_optimizer": {"device": "cpu"}`',
        )


@fails_later(_with({"select_interval": 10}), {zero("zenflow", "select_strategy"): "step"})
def zenflow_chooses_its_interval(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed refuses `select_interval` with `select_strategy` "auto", which would overwrite it."""
    zenflow = _settings(subject)
    if zenflow and zenflow.select_strategy == "auto" and zenflow.select_interval != "auto":
        yield Violation(
            zero("zenflow", "select_interval"),
            f'`select_interval` {zenflow.select_interval} does not work with `select_strategy` "auto"',
            'write `"select_strategy": "step"`, or delete the interval',
        )


@fails_later(_with({"select_strategy": "step"}), {zero("zenflow", "select_interval"): 10})
def zenflow_needs_an_interval(subject: Subject) -> Iterator[Violation]:
    """Any `select_strategy` except "auto" needs a number as `select_interval`."""
    zenflow = _settings(subject)
    if zenflow and zenflow.select_strategy != "auto" and zenflow.select_interval == "auto":
        yield Violation(
            zero("zenflow", "select_strategy"),
            f'`select_strategy` "{zenflow.select_strategy}" needs `select_interval` as a number',
            'add `"select_interval": …`, or delete the strategy',
        )


@fails_later(
    _with({"select_strategy": "step", "select_interval": 2, "update_interval": 4}),
    {zero("zenflow", "select_interval"): 8},
)
def zenflow_updates_within_a_choice(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed refuses a `select_interval` shorter than `update_interval`."""
    zenflow = _settings(subject)
    if zenflow is None or zenflow.select_strategy != "step":
        return
    select, update = zenflow.select_interval, zenflow.update_interval
    if isinstance(select, int) and isinstance(update, int) and 0 < select < update:
        yield Violation(
            zero("zenflow", "select_interval"),
            f"`select_interval` {select} is shorter than `update_interval` {update}",
            f"write {update} or more",
        )


@fails_later(_with({"offload": True}), {zero("overlap_comm"): True})
def zenflow_offload_needs_overlap(subject: Subject) -> Iterator[Violation]:
    """At stages 1 and 2 `offload` asserts `overlap_comm`, which is off by default."""
    zenflow = _settings(subject)
    if zenflow and zenflow.offload and subject.stage != 3 and not subject.zero.overlap_comm:
        yield Violation(
            zero("zenflow", "offload"),
            "`offload` in `zenflow` needs `overlap_comm`",
            'add `"overlap_comm": true`',
        )


@ignored(
    {**_with({"update_interval": 4}), "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 4},
)
def zenflow_accumulates_otherwise(subject: Subject) -> Iterator[Violation]:
    """ZenFlow replaces `gradient_accumulation_steps` by its `update_interval`."""
    zenflow, steps = _settings(subject), subject.config.gradient_accumulation_steps
    if zenflow is None:
        return
    update = zenflow.update_interval
    if isinstance(steps, int) and isinstance(update, int) and steps != update:
        yield Violation(
            "gradient_accumulation_steps",
            f"ZenFlow replaces {steps} by its `update_interval` of {update}",
            f"write {update}, or change `update_interval`",
        )


@fails_later(
    {"zero_optimization": {"stage": 2, "offload_optimizer": CPU, "zenflow": {}}}, {"optimizer": _ADAMW}
)
def zenflow_is_adamw(subject: Subject) -> Iterator[Violation]:
    """ZenFlow creates a second AdamW from `optimizer.params`, which may only have AdamW's arguments."""
    if _settings(subject) is None or "offload_optimizer" not in subject.offloads:
        return
    params = [keys for keys in subject.written if keys[:2] == ("optimizer", "params")]
    if subject.optimizer not in ("adam", "adamw") or not params:
        where = zero("zenflow")
        if subject.optimizer:
            where = "optimizer"
        hint = 'write `"optimizer": {"type": "AdamW", "params": {"lr": …}}`'
        yield Violation(where, "ZenFlow needs an AdamW `optimizer` with `params` in the ds_config", hint)
    for keys in params:
        if subject.optimizer in ("adam", "adamw") and keys[2] not in _OF_ADAMW:
            yield Violation(".".join(keys), f"ZenFlow's AdamW has no argument `{keys[2]}`", "delete it")
