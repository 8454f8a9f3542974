"""What is meant by a value that an option does not take."""

import pytest

from zlaunch.config.validate import validate_mapping
from zlaunch.job.spec import parse_offload
from zlaunch.other_values import MEANT, hint_for_value, line_for_value, plain_value

PRECISIONS = ("bf16", "fp16", "fp32")


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [
        ("stage", "zero3", "--stage 3"),
        ("stage", "ZeRO-2", "--stage 2"),
        ("stage", "3-offload", "--stage 3 --offload cpu"),
        ("stage", "deepspeed_stage_3_offload", "--stage 3 --offload cpu"),
        ("stage", "zero3-nvme", "--stage 3 --offload nvme --nvme DIR"),
        ("stage", "full_shard", "--stage 3"),
        ("precision", "mixed", "--precision bf16"),
        ("precision", "torch.float16", "--precision fp16"),
        ("precision", "16-mixed", "--precision fp16"),
        ("precision", "BF16", "--precision bf16"),
        ("offload", "disk", "--offload nvme"),
        ("offload", "optimizer", "--offload optimizer:cpu"),
        ("launcher", "accelerate", "--launcher torchrun"),
        ("launcher", "srun", "--submit slurm"),
        ("submit", "k8s", "--submit kubernetes"),
        ("on-oom", "restart", "--on-oom retry"),
        ("resume", "last", "--resume latest"),
        ("attention", "flash_attn", "--attention flash_attention_2"),
    ],
)
def test_a_value_as_other_tools_spell_it_is_known(option: str, value: str, meant: str) -> None:
    choices: tuple[str, ...] = ()
    if option == "precision":
        choices = PRECISIONS
    assert hint_for_value(option, value, choices) == f"did you mean `{meant}`?"


def test_a_value_that_a_command_does_not_take_is_not_proposed() -> None:
    assert hint_for_value("precision", "half", ("bf16", "fp32")) is None


@pytest.mark.parametrize("value", ["4", "zero4", "fast", "", "3 or so"])
def test_what_means_nothing_gets_no_proposal(value: str) -> None:
    assert hint_for_value("stage", value) is None


@pytest.mark.parametrize(
    ("zero", "hint"),
    [
        ({"stage": "zero3"}, "write 3"),
        ({"stage": 2, "offload_optimizer": {"device": "disk"}}, 'write "nvme"'),
        ({"stage": 2, "offload_optimizer": {"device": "gpu"}}, 'write "none"'),
    ],
)
def test_a_ds_config_with_a_value_of_another_tool_gets_the_one_of_deepspeed(
    zero: dict[str, object], hint: str
) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    (finding,) = (one for one in validate_mapping(config) if one.code == "bad-value")
    assert finding.hint == hint


def test_a_file_gets_its_keys() -> None:
    assert line_for_value("stage", "3-offload") == "did you mean `stage: 3` and `offload: cpu`?"
    assert line_for_value("on_oom", "restart") == "did you mean `on_oom: retry`?"


def test_every_word_is_written_as_it_is_looked_up() -> None:
    words = [word for values in MEANT.values() for text in values.values() for word in text.split()]
    assert [word for word in words if plain_value(word) != word] == []


def test_no_word_means_two_values_of_an_option() -> None:
    for values in MEANT.values():
        words = " ".join(values.values()).split()
        assert len(words) == len({*words})


def test_the_offloads_that_are_meant_are_offloads() -> None:
    for meant in MEANT["offload"]:
        parse_offload(meant)
