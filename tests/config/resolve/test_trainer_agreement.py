from pathlib import Path
from typing import Any

import pytest

from tests.making import CPU_MACHINE, TWO_GPUS, WRITTEN, gpu, machine
from zlaunch.config.resolve.trainer_agreement import (
    TrainerAgreement,
    leave_out_evaluation,
    reconcile_with_trainer,
    script_arguments,
)
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, TrainerArgs, read_arguments
from zlaunch.job.trainer_releases import Value

AUTO_FORMATS = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
NO_AUTO = {"bf16": {"enabled": False}, "fp16": {"enabled": False}}


MATCHED: list[tuple[KeyPath, str]] = [
    (("train_micro_batch_size_per_gpu",), "per_device_train_batch_size"),
    (("gradient_accumulation_steps",), "gradient_accumulation_steps"),
    (("gradient_clipping",), "max_grad_norm"),
    (("optimizer", "params", "lr"), "learning_rate"),
    (("optimizer", "params", "eps"), "adam_epsilon"),
    (("optimizer", "params", "weight_decay"), "weight_decay"),
    (("scheduler", "params", "warmup_max_lr"), "learning_rate"),
    (("scheduler", "params", "total_num_steps"), "max_steps"),
    (("scheduler", "params", "warmup_num_steps"), "warmup_steps"),
]


def _agree(
    config: dict[str, Any],
    *argv: str,
    precision: str | None = None,
    on: Machine = TWO_GPUS,
    interface: ConfigInterface = ConfigInterface.TRAINER,
) -> TrainerAgreement:
    return reconcile_with_trainer(
        Values.of(config, WRITTEN), read_arguments(ScriptArgs.of(argv))[0], precision, on, interface
    )


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize(("path", "name"), MATCHED)
def test_what_the_config_fixes_is_passed_on(path: KeyPath, name: str) -> None:
    assert _agree(_nested(path, 7)).added == ((name, 7),)


@pytest.mark.parametrize(("path", "name"), MATCHED)
def test_what_is_passed_on_names_its_key(path: KeyPath, name: str) -> None:
    assert _agree(_nested(path, 7)).args[name].source.text == f"`{'.'.join(map(str, path))}` in the ds_config"


@pytest.mark.parametrize(("path", "_name"), MATCHED)
def test_what_the_config_leaves_to_the_trainer_is_not_passed_on(path: KeyPath, _name: str) -> None:
    assert _agree(_nested(path, "auto")).added == ()


@pytest.mark.parametrize(("path", "name"), MATCHED)
def test_an_argument_that_differs_is_a_dispute(path: KeyPath, name: str) -> None:
    findings = _agree(_nested(path, 7), f"--{name}=8").findings
    assert [(finding.code, finding.where) for finding in findings] == [
        ("differs-from-argument", ".".join(map(str, path)))
    ]


def test_an_argument_that_differs_is_not_overridden() -> None:
    assert _agree({"gradient_clipping": 7}, "--max_grad_norm=8").added == ()


@pytest.mark.parametrize(("path", "name"), MATCHED)
def test_an_argument_that_agrees_is_no_dispute(path: KeyPath, name: str) -> None:
    assert _agree(_nested(path, 7), f"--{name}=7").findings == ()


@pytest.mark.parametrize(("path", "name"), MATCHED)
def test_an_argument_that_agrees_is_not_passed_on(path: KeyPath, name: str) -> None:
    assert _agree(_nested(path, 7), f"--{name}=7").added == ()


def test_what_is_the_trainers_default_anyway_is_not_passed_on() -> None:
    assert _agree({"gradient_clipping": 1.0}).added == ()


def test_what_the_config_fixes_goes_before_the_scripts_own_default() -> None:
    args = TrainerArgs(
        {"max_grad_norm": Argument(0.5, Source(SourceKind.SCRIPT, "`max_grad_norm` in train.py:3"))}
    )
    values = Values.of({"gradient_clipping": 1.0}, WRITTEN)
    agreement = reconcile_with_trainer(values, args, None, TWO_GPUS, ConfigInterface.TRAINER)
    assert agreement.added == (("max_grad_norm", 1.0),)


def test_betas_that_the_config_fixes_are_passed_on() -> None:
    agreement = _agree({"optimizer": {"params": {"betas": [0.9, 0.95]}}})
    assert dict(agreement.added)["adam_beta2"] == 0.95


def test_betas_that_differ_are_a_dispute() -> None:
    agreement = _agree({"optimizer": {"params": {"betas": [0.9, 0.95]}}}, "--adam_beta2=0.99")
    assert [finding.code for finding in agreement.findings] == ["differs-from-argument"]


def test_two_keys_that_want_one_argument_to_differ_are_a_dispute() -> None:
    config = {"optimizer": {"params": {"lr": 1e-3}}, "scheduler": {"params": {"warmup_max_lr": 2e-3}}}
    assert len(_agree(config).findings) == 1


def test_a_share_of_a_known_number_of_steps_can_be_compared() -> None:
    config = {"scheduler": {"params": {"warmup_num_steps": 10}}}
    assert len(_agree(config, "--warmup_steps=0.1", "--max_steps=50").findings) == 1


def test_a_share_of_an_unknown_number_of_steps_cannot_be_compared() -> None:
    assert _agree({"scheduler": {"params": {"warmup_num_steps": 10}}}, "--warmup_steps=0.1").findings == ()


def test_steps_that_the_dataset_decides_cannot_be_compared_with_a_number() -> None:
    assert _agree({"scheduler": {"params": {"total_num_steps": 10}}}, "--max_steps=-1").findings == ()


@pytest.mark.parametrize("interface", [ConfigInterface.DEEPSPEED, ConfigInterface.ACCELERATE])
def test_a_script_without_trainer_arguments_gets_none(interface: ConfigInterface) -> None:
    assert _agree({"gradient_clipping": 7, **AUTO_FORMATS}, interface=interface).added == ()


@pytest.mark.parametrize(
    ("config", "argv", "precision", "switched_on"),
    [
        (AUTO_FORMATS, [], None, ["bf16"]),
        (AUTO_FORMATS, [], "fp16", ["fp16"]),
        (AUTO_FORMATS, [], "fp32", []),
        (AUTO_FORMATS, ["--fp16"], None, []),
        (AUTO_FORMATS, ["--bf16_full_eval"], None, []),
        (NO_AUTO, [], None, []),
        ({**NO_AUTO, "fp16": {"enabled": "auto"}}, [], None, []),
        ({"fp16": {"enabled": True}}, [], None, ["fp16"]),
        ({**AUTO_FORMATS, "fp16": {"enabled": True}}, [], None, ["fp16"]),
        ({}, [], None, []),
    ],
)
def test_a_format_is_switched_on_by_whoever_decides_it(
    config: dict[str, Any], argv: list[str], precision: str | None, switched_on: list[str]
) -> None:
    assert [name for name, _ in _agree(config, *argv, precision=precision).added] == switched_on


@pytest.mark.parametrize(("capability", "name"), [((7, 0), ["fp16"]), ((6, 0), []), ((8, 0), ["bf16"])])
def test_the_machine_decides_a_format_that_nobody_did(capability: tuple[int, int], name: list[str]) -> None:
    added = _agree(AUTO_FORMATS, on=machine(gpu(0, capability))).added
    assert [switched_on for switched_on, _ in added] == name


@pytest.mark.parametrize(
    ("config", "argv", "precision"),
    [
        ({}, ["--bf16"], "fp16"),
        ({}, ["--bf16"], "fp32"),
        ({"bf16": {"enabled": False}}, ["--bf16"], None),
        ({"bf16": {"enabled": True}}, ["--fp16"], None),
        ({"fp16": {"enabled": True}}, ["--bf16"], None),
    ],
)
def test_two_formats_at_once_are_a_dispute(
    config: dict[str, Any], argv: list[str], precision: str | None
) -> None:
    findings = _agree(config, *argv, precision=precision).findings
    assert [finding.code for finding in findings] == ["differs-from-argument"]


def test_two_formats_on_the_command_line_exclude_each_other() -> None:
    assert [finding.code for finding in _agree({}, "--bf16", "--fp16").findings] == ["both-precisions"]


def test_a_format_that_both_sides_name_is_no_dispute() -> None:
    assert _agree({"bf16": {"enabled": True}}, "--bf16", precision="bf16").findings == ()


def test_a_trainer_without_a_gpu_is_told_so() -> None:
    assert ("use_cpu", True) in _agree({}, on=CPU_MACHINE).added


def test_a_trainer_that_knows_it_has_no_gpu_is_not_told() -> None:
    assert _agree({}, "--use_cpu", on=CPU_MACHINE).added == ()


def test_the_arguments_are_as_the_trainer_will_have_them() -> None:
    assert _agree({"train_micro_batch_size_per_gpu": 3}).args["per_device_train_batch_size"].value == 3


BOTH = ("--deepspeed", "--deepspeed_config")


@pytest.mark.parametrize("flags", [("--deepspeed",), BOTH, ("--deepspeed_config",)])
def test_a_script_gets_its_ds_config_after_its_flags(flags: tuple[str, ...]) -> None:
    agreement = TrainerAgreement(TrainerArgs(), (), ())
    assert script_arguments(agreement, Path("/run/ds.json"), flags) == (*flags, "/run/ds.json")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ("--x", "True")),
        (3, ("--x", "3")),
        (1e-05, ("--x", "1e-05")),
        ("adafactor", ("--x", "adafactor")),
    ],
)
def test_an_added_argument_is_written_as_the_trainer_reads_it(value: Value, words: tuple[str, ...]) -> None:
    agreement = TrainerAgreement(TrainerArgs(), (("x", value),), ())
    assert script_arguments(agreement, Path("ds.json"), ()) == words


def test_a_parser_that_takes_no_ds_config_gets_none() -> None:
    assert script_arguments(TrainerAgreement(TrainerArgs(), (), ()), Path("ds.json"), ()) == ()


def test_formats_that_exclude_each_other_are_named_as_they_were_typed() -> None:
    (finding,) = _agree({}, "--bf16_full_eval", "--fp16_full_eval").findings
    assert finding.message == "`--bf16_full_eval` and `--fp16_full_eval` exclude each other"


def test_a_section_that_the_evaluation_turns_on_beside_the_training_is_named() -> None:
    (finding,) = _agree({"fp16": {"enabled": "auto"}}, "--bf16", "--fp16_full_eval").findings
    assert (
        finding.message
        == "`fp16.enabled` is auto (ds.json:1), but `--fp16_full_eval` turns it on beside `--bf16`"
    )


@pytest.mark.parametrize(("argv", "precision"), [(["--bf16"], None), ([], "bf16"), ([], "fp32"), ([], None)])
def test_a_preset_has_no_section_for_a_format_of_the_evaluation_alone(
    argv: list[str], precision: str | None
) -> None:
    args, _ = read_arguments(ScriptArgs.of([*argv, "--fp16_full_eval"]))
    values = Values.of(AUTO_FORMATS, Source(SourceKind.PRESET, "preset"))
    assert leave_out_evaluation(values, args, precision, TWO_GPUS).config() == {"bf16": {"enabled": "auto"}}
