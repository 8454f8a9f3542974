"""Rules about `data_efficiency` (`deepspeed/runtime/data_pipeline/config.py`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Subject, Violation, error
from zlaunch.dsconfig.schema.data import DataSampling

_SAMPLING = "data_efficiency.data_sampling"
_METRIC = {"seqlen": {"min_difficulty": 1, "max_difficulty": 2}}


def _sampling(subject: Subject) -> DataSampling | None:
    section = subject.config.data_efficiency
    return section.data_sampling if section is not None else None


@error(
    {
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": True}},
        }
    },
    {f"{_SAMPLING}.curriculum_learning.curriculum_metrics": _METRIC},
)
def curriculum_needs_metrics(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that curriculum learning has `curriculum_metrics`."""
    sampling = _sampling(subject)
    section = sampling.curriculum_learning if sampling else None
    if section is not None and section.enabled and section.curriculum_metrics is None:
        yield Violation(
            f"{_SAMPLING}.curriculum_learning",
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
    {f"{_SAMPLING}.dynamic_batching.max_tokens": 4096},
)
def dynamic_batching_needs_max_tokens(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that dynamic batching has `max_tokens`."""
    sampling = _sampling(subject)
    section = sampling.dynamic_batching if sampling else None
    if section is not None and section.enabled and section.max_tokens is None:
        yield Violation(
            f"{_SAMPLING}.dynamic_batching", "dynamic batching needs `max_tokens`", 'add `"max_tokens": …`'
        )
