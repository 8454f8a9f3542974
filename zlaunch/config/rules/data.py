"""Rules about `data_efficiency` (`deepspeed/runtime/data_pipeline/config.py`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Subject, Violation, error

_CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"
_DYNAMIC = "data_efficiency.data_sampling.dynamic_batching"
_METRIC = {"seqlen": {"min_difficulty": 1, "max_difficulty": 2}}


@error(
    {
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": True}},
        }
    },
    {f"{_CURRICULUM}.curriculum_metrics": _METRIC},
)
def curriculum_needs_metrics(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that curriculum learning has `curriculum_metrics`."""
    if subject.value(f"{_CURRICULUM}.enabled") and subject.value(f"{_CURRICULUM}.curriculum_metrics") is None:
        yield Violation(
            _CURRICULUM,
            "curriculum learning needs `curriculum_metrics`",
            'add `"curriculum_metrics": {…}`, or write `"enabled": false`',
        )


@error(
    {
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "dynamic_batching": {"enabled": True}},
        }
    },
    {f"{_DYNAMIC}.max_tokens": 4096},
)
def dynamic_batching_needs_max_tokens(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that dynamic batching has `max_tokens`."""
    if subject.value(f"{_DYNAMIC}.enabled") and subject.value(f"{_DYNAMIC}.max_tokens") is None:
        yield Violation(_DYNAMIC, "dynamic batching needs `max_tokens`", 'add `"max_tokens": …`')
