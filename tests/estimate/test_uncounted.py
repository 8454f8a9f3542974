"""What is left out of an estimate, as public training commands write it."""

import shlex

import pytest

from tests.making import script
from zlaunch.estimate.asked_adapters import adapters_of, four_bits_of
from zlaunch.estimate.uncounted import ADAPTED, QUANTIZED, Effect, in_arguments, in_script
from zlaunch.estimate.workload import DEFAULT_MODULES, Lora
from zlaunch.job.args import ScriptArgs

MORE, LESS, EITHER = Effect.MORE, Effect.LESS, Effect.EITHER


def effects(line: str) -> list[Effect]:
    return [one.effect for one in in_arguments(ScriptArgs.of(shlex.split(line)))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--learning_rate 1e-5 --bf16 --gradient_checkpointing --packing", []),
        ("--use_liger_kernel true", []),
        ("--load_in_4bit", [LESS]),
        ("--quantization_bit 4", [LESS]),
        ("--finetuning_type freeze", [LESS]),
        ("--finetuning_type full", []),
        ("--freeze_vit true --freeze_llm false", [LESS]),
        ("--freeze_vit true --freeze_aligner true", [LESS, LESS]),
        ("--tune_vision_tower False", [LESS]),
        ("--use_peft --lora_r 16 --lora_alpha 32", [LESS]),
        ("--rlhf_type dpo", [MORE]),
        ("--rlhf_type orpo", []),
        ("--use_vllm true --vllm_mode colocate", [MORE]),
        ("--use_vllm true --vllm_mode server", []),
        ("--teacher_model_name_or_path big --use_vllm", [MORE, MORE]),
        ("--torch_compile", [EITHER]),
    ],
)
def test_an_argument_tells_what_is_not_counted(line: str, expected: list[Effect]) -> None:
    assert effects(line) == expected


def test_a_setting_is_named_as_it_was_typed() -> None:
    (one,) = in_arguments(ScriptArgs.of(["--load_in_8bit", "true"]))
    assert str(one) == "not counted: `--load_in_8bit true` loads quantized weights"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("trainer = Trainer(model)", []),
        ("trainer = DPOTrainer(model)", [MORE]),
        ("model = get_peft_model(model, config)", [LESS]),
        ("for p in model.vision.parameters(): p.requires_grad = False", [LESS]),
        ("trainer = KTOTrainer(model, peft_config=LoraConfig())", [LESS, MORE]),
    ],
)
def test_a_script_tells_what_may_not_be_counted(source: str, expected: list[Effect]) -> None:
    assert [one.effect for one in in_script(script(source))] == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--learning_rate 1e-5", None),
        ("--use_peft --lora_r 32 --lora_target_modules q_proj k_proj", Lora(32, ("q_proj", "k_proj"))),
        ("--use_peft", Lora(16, DEFAULT_MODULES)),
        ("--use_peft --lora_target_modules all-linear", Lora(16)),
        ("--use_peft false --lora_r 16", None),
        ("--finetuning_type lora --lora_rank 64 --lora_target all", Lora(64)),
        ("--finetuning_type lora --lora_target q_proj,v_proj", Lora(8, ("q_proj", "v_proj"))),
        ("--tuner_type lora --target_modules all-linear", Lora(8)),
        ("--lora_enable True --lora_r 128", Lora(128)),
        ("--use_peft --lora_r rank", None),
        ("--use_peft --use_dora", None),
        ("--use_peft --modules_to_save embed_tokens", None),
    ],
)
def test_adapters_are_read_from_the_arguments_of_common_programs(line: str, expected: Lora | None) -> None:
    assert adapters_of(ScriptArgs.of(shlex.split(line))) == expected


def test_adapters_that_are_counted_are_not_left_out() -> None:
    args = ScriptArgs.of(["--use_peft", "--lora_r", "16", "--load_in_4bit"])
    assert [one.does for one in in_arguments(args, {ADAPTED})] == [QUANTIZED]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--load_in_4bit", "nf4"),
        ("--load_in_4bit --use_bnb_nested_quant", "nf4 nested"),
        ("--quantization_bit 4", "nf4 nested"),
        ("--quantization_bit 4 --quantization_method hqq", None),
        ("--quant_bits 4 --quant_method hqq", None),
        ("--quantization_bit 8", None),
        ("--bits 4", "nf4 nested"),
        ("--load_in_4bit false", None),
    ],
)
def test_weights_of_four_bits_are_read_from_the_arguments(line: str, expected: str | None) -> None:
    assert four_bits_of(ScriptArgs.of(shlex.split(line))) == expected
