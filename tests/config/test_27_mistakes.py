"""Mistakes that people make in a ds_config, and the line on which each of them is found.

DeepSpeed 0.19 accepts the first 13, and refuses the others without a place, a suggestion, or both.
"""

from textwrap import dedent

from tests.each import each
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.job.script import ConfigInterface

ACCEPTED: dict[str, tuple[str, str, int]] = {
    "a section that is misspelled": (
        """
        {
          "train_batch_size": 8,
          "zero_optimisation": {"stage": 3}
        }
        """,
        "unknown-key",
        3,
    ),
    "a stage that nobody fills in": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": "auto"
          }
        }
        """,
        "stage-left-open",
        4,
    ),
    "a format that nobody switches on": (
        """
        {
          "train_batch_size": 8,
          "bf16": {"enabled": "auto"}
        }
        """,
        "auto-becomes-the-default",
        3,
    ),
    "a norm that nobody fills in": (
        """
        {
          "train_batch_size": 8,
          "gradient_clipping": "auto"
        }
        """,
        "auto-ends-in-a-type-error",
        3,
    ),
    "a learning rate that nobody fills in": (
        """
        {
          "train_batch_size": 8,
          "optimizer": {
            "type": "AdamW",
            "params": {
              "lr": "auto"
            }
          }
        }
        """,
        "auto-ends-in-a-type-error",
        6,
    ),
    "parameters on NVMe without a directory": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme"}
          }
        }
        """,
        "nvme-needs-a-path",
        5,
    ),
    "parameters offloaded at stage 2": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2,
            "offload_param": {"device": "cpu"}
          }
        }
        """,
        "offload-param-needs-stage-3",
        5,
    ),
    "a key of stage 3 at stage 2": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2,
            "stage3_max_live_parameters": 100000000
          }
        }
        """,
        "key-needs-stage-3",
        5,
    ),
    "an optimizer that does not exist": (
        """
        {
          "train_batch_size": 8,
          "optimizer": {
            "type": "AdamWW",
            "params": {"lr": 0.001}
          }
        }
        """,
        "bad-value",
        4,
    ),
    "a schedule that does not exist": (
        """
        {
          "train_batch_size": 8,
          "scheduler": {
            "type": "WarmupLRR",
            "params": {"warmup_num_steps": 10}
          }
        }
        """,
        "bad-value",
        4,
    ),
    "a misspelled key for NVMe": (
        """
        {
          "train_batch_size": 8,
          "aio": {
            "blok_size": 1048576
          }
        }
        """,
        "unknown-key",
        4,
    ),
    "a misspelled key for activations": (
        """
        {
          "train_batch_size": 8,
          "activation_checkpointing": {
            "partition_activation": true
          }
        }
        """,
        "unknown-key",
        4,
    ),
    "one and a half steps": (
        """
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_accumulation_steps": 1.5
        }
        """,
        "bad-type",
        3,
    ),
}

REFUSED: dict[str, tuple[str, str, int]] = {
    "an offload section that is misspelled": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2,
            "offload_optimiser": {"device": "cpu"}
          }
        }
        """,
        "unknown-key",
        5,
    ),
    "a stage that does not exist": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 4
          }
        }
        """,
        "bad-value",
        4,
    ),
    "a size in quotes": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "5e8"
          }
        }
        """,
        "bad-type",
        5,
    ),
    "a micro-batch in quotes": (
        """
        {
          "train_micro_batch_size_per_gpu": "4"
        }
        """,
        "bad-type",
        2,
    ),
    "two formats": (
        """
        {
          "train_batch_size": 8,
          "bf16": {"enabled": true},
          "fp16": {
            "enabled": true
          }
        }
        """,
        "both-formats",
        5,
    ),
    "a batch that does not multiply out": (
        """
        {
          "gradient_accumulation_steps": 2,
          "train_micro_batch_size_per_gpu": 2,
          "train_batch_size": 8
        }
        """,
        "batch-equation",
        4,
    ),
    "a key twice": (
        """
        {
          "train_batch_size": 8,
          "gradient_clipping": 1.0,
          "gradient_clipping": 0.5
        }
        """,
        "duplicate-key",
        4,
    ),
    "a missing brace": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2
        }
        """,
        "not-json",
        5,
    ),
    "a global batch that nobody fills in": (
        """
        {
          "train_batch_size": "auto"
        }
        """,
        "auto-is-no-number",
        2,
    ),
    "a micro-batch that nobody fills in": (
        """
        {
          "train_micro_batch_size_per_gpu": "auto"
        }
        """,
        "auto-is-no-number",
        2,
    ),
    "a misspelled key for fp16": (
        """
        {
          "train_batch_size": 8,
          "fp16": {
            "enabled": true,
            "inital_scale_power": 12
          }
        }
        """,
        "unknown-key",
        5,
    ),
    "an empty file": ("", "not-json", 1),
    "part of the optimizer at stage 2": (
        """
        {
          "train_batch_size": 8,
          "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {
              "device": "cpu",
              "ratio": 0.5
            }
          }
        }
        """,
        "ratio-needs-stage-3",
        7,
    ),
    "a negative micro-batch": (
        """
        {
          "train_micro_batch_size_per_gpu": -1
        }
        """,
        "bad-value",
        2,
    ),
}

RAW = Context(world_size=1, interface=ConfigInterface.DEEPSPEED)
MISTAKES = {**ACCEPTED, **REFUSED}


def found(text: str) -> list[Finding]:
    try:
        return validate_document(parse(dedent(text).strip(), "ds.json"), RAW)
    except Refused as refused:
        return list(refused.findings)


def test_there_are_27() -> None:
    assert (len(ACCEPTED), len(MISTAKES)) == (13, 27)


@each("mistake", MISTAKES)
def test_a_mistake_is_found_on_its_line(mistake: str) -> None:
    text, code, line = MISTAKES[mistake]
    places = {(one.code, one.place.line) for one in found(text) if one.place is not None}
    assert (code, line) in places


@each("mistake", MISTAKES)
def test_nothing_else_is_found(mistake: str) -> None:
    text, code, _ = MISTAKES[mistake]
    assert {one.code for one in found(text) if one.severity is not Severity.ADVICE} == {code}


@each("mistake", MISTAKES)
def test_a_mistake_is_more_than_advice(mistake: str) -> None:
    text, code, _ = MISTAKES[mistake]
    assert all(one.severity is not Severity.ADVICE for one in found(text) if one.code == code)
