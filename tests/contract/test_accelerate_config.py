"""What an accelerate config amounts to, against what `accelerate launch` and `DeepSpeedPlugin` make of it."""

import importlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.each import each
from zlaunch.config.accelerate import AccelerateConfig, default_file, read
from zlaunch.config.accelerate.fields import (
    CHOICES,
    FIELDS,
    FILE,
    KEYS,
    NVME_PATHS,
    REFUSED_BESIDE_A_FILE,
    SECTION_KEYS,
)
from zlaunch.dsconfig.text.document import Document

VALUES: Mapping[str, tuple[object, ...]] = {
    "zero_stage": (0, 1, 2, 3, "3"),
    "gradient_accumulation_steps": (1, 4, "8", "auto", "many"),
    "gradient_clipping": (0, 0.5, 1.0, "1e-1", "auto"),
    "offload_optimizer_device": ("none", "cpu", "nvme", "CPU"),
    "offload_param_device": ("none", "cpu", "nvme"),
    "offload_optimizer_nvme_path": ("/nvme",),
    "offload_param_nvme_path": ("/nvme",),
    "zero3_save_16bit_model": (True, False, "true", "yes"),
    "zero3_init_flag": (True, False),
    "mixed_precision": ("no", "fp16", "bf16", "BF16"),
}
ALONE = [{name: value} for name, values in VALUES.items() for value in (None, *values)]
TOGETHER = [
    {"zero_stage": stage, "offload_optimizer_device": one, "offload_param_device": other, **paths}
    for stage, one, other in itertools.product((2, 3), ("none", "cpu", "nvme"), ("none", "cpu", "nvme"))
    for paths in ({}, dict.fromkeys(NVME_PATHS, "/nvme"))
]


def written(folder: Path, given: Mapping[str, object]) -> Path:
    top = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": 2}
    section = {name: value for name, value in given.items() if name in SECTION_KEYS}
    rest = {name: value for name, value in given.items() if name not in SECTION_KEYS}
    file = folder / "accelerate.yaml"
    file.write_text(yaml.safe_dump({**top, **rest, "deepspeed_config": section}))
    return file


def launch_module() -> Any:
    return importlib.import_module("accelerate.commands.launch")


def plugin(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Go the way of `accelerate launch`, up to the ranks."""
    from accelerate.utils import DeepSpeedPlugin, prepare_deepspeed_cmd_env

    caught: list[Any] = []
    launch = launch_module()
    monkeypatch.setattr(launch, "deepspeed_launcher", caught.append)
    launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", str(file), "t.py"]))
    caught[0].main_process_port = 0
    _, environment = prepare_deepspeed_cmd_env(caught[0])
    with monkeypatch.context() as patch:
        for name in {*environment} - {*os.environ}:
            patch.setenv(name, environment[name])
        made: Any = DeepSpeedPlugin()
        made.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return made


@pytest.mark.parametrize("given", [*ALONE, *TOGETHER], ids=str)
def test_the_ds_config_is_the_one_that_accelerate_makes(
    given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, given)
    found = read(file).ds_config
    assert isinstance(found, Document)
    assert {**found.value, "steps_per_print": math.inf} == plugin(file, monkeypatch).deepspeed_config


@pytest.mark.parametrize("name", ["zero_stage", "gradient_clipping"])
def test_what_is_no_number_ends_accelerate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, {name: "many"})
    with pytest.raises(ValueError, match="many"):
        plugin(file, monkeypatch)


@pytest.mark.parametrize("name", [*REFUSED_BESIDE_A_FILE, "mixed_precision", "zero3_init_flag"])
def test_what_is_refused_beside_a_file_is_what_accelerate_refuses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds_config = tmp_path / "ds.json"
    ds_config.write_text('{"zero_optimization": {"stage": 2}}')
    file = written(tmp_path, {FILE: str(ds_config), name: VALUES[name][0]})
    try:
        plugin(file, monkeypatch)
        refused = False
    except ValueError:
        refused = True
    assert refused == any(finding.code == "beside-a-file" for finding in read(file).findings)


def test_the_keys_are_those_of_accelerate() -> None:
    from accelerate.commands.config.config_args import ClusterConfig

    assert set(KEYS) == {field.name for field in fields(ClusterConfig)}


def test_the_choices_are_those_of_accelerate() -> None:
    from accelerate.utils import DistributedType, PrecisionType

    assert set(CHOICES["distributed_type"]) == {one.value for one in DistributedType}
    assert set(CHOICES["mixed_precision"]) == set(PrecisionType.list())


def test_every_field_of_the_section_is_an_argument_of_accelerate_launch() -> None:
    flags = launch_module().launch_command_parser()._option_string_actions
    assert [name for name in SECTION_KEYS if f"--{name}" not in flags] == []


def test_every_argument_about_deepspeed_is_a_field_of_the_section() -> None:
    (group,) = [
        group
        for group in launch_module().launch_command_parser()._action_groups
        if group.title == "DeepSpeed Arguments"
    ]
    assert {action.dest for action in group._group_actions} == {*SECTION_KEYS}


def test_the_default_config_lies_where_accelerate_looks() -> None:
    from accelerate.commands.config.config_args import default_yaml_config_file

    assert str(default_file(os.environ)) == default_yaml_config_file


def answered(monkeypatch: pytest.MonkeyPatch, **answers: object) -> Any:
    """Answer the questions of `accelerate config`: by the words in them, otherwise as it proposes."""
    from accelerate.commands.config.cluster import get_cluster_input

    cluster = importlib.import_module("accelerate.commands.config.cluster")

    def answer(question: str, *_: object, default: object = None, **__: object) -> object:
        return next((answers[word] for word in answers if word in question), default)

    monkeypatch.setattr(cluster, "_ask_field", answer)
    monkeypatch.setattr(cluster, "_ask_options", lambda question, *rest, **more: answer(question, **more))
    return get_cluster_input()


def asked(folder: Path, made: Any) -> AccelerateConfig:
    file = folder / "default_config.yaml"
    made.to_yaml_file(file)
    return read(file)


def questionnaires() -> Iterator[dict[str, object]]:
    from accelerate.utils import DistributedType

    for stage, device, several in itertools.product((0, 1, 2, 3), ("none", "cpu"), (1, 2)):
        yield {
            "Which type of machine": DistributedType.MULTI_GPU,
            "use DeepSpeed": True,
            "json file": False,
            "ZeRO optimization stage": stage,
            "offload": device,
            "How many different machines": several,
            "Type of launcher": "pdsh",
            "location of hostfile": "hosts",
            "How many GPU": 8,
            "mixed precision": "bf16",
            "rank of this machine": 0,
        }


@each("answers", questionnaires, ids=lambda answers: str([*answers.values()][3:6]))
def test_what_accelerate_config_writes_has_no_finding(
    answers: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(tmp_path, answered(monkeypatch, **answers)).findings == ()


def test_every_field_is_tried() -> None:
    assert {*FIELDS, *NVME_PATHS} <= {*VALUES}
