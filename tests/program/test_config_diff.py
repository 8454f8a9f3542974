"""`zlaunch config diff`, as a person runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import CONFIGS, Result, zlaunch


def diff(folder: Path, left: Any, right: Any, *words: str) -> Result:
    for name, config in (("a.json", left), ("b.json", right)):
        (folder / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return zlaunch("config", "diff", "a.json", "b.json", *words, cwd=folder, env={"COLUMNS": "80"})


def test_two_presets_are_compared_in_80_columns(tmp_path: Path) -> None:
    done = zlaunch("config", "diff", CONFIGS / "zero2.json", CONFIGS / "zero3_cpu.json", cwd=tmp_path)
    assert done.out.splitlines()[:17] == [
        "                                             zero2.json        zero3_cpu.json",
        "zero_optimization",
        "  stage                                      2                 3",
        '  stage3_prefetch_bucket_size                (not read)        "auto"',
        '  stage3_param_persistence_threshold         (not read)        "auto"',
        "  stage3_gather_16bit_weights_on_model_save  (not read)        true",
        "  offload_optimizer",
        '    device                                   "none" (default)  "cpu"',
        "  offload_param",
        '    device                                   (not read)        "cpu"',
        "",
        "zero_optimization.stage",
        "  memory  bytes per parameter on each GPU: 16 at stage 0, and 4 more during the",
        "          step for a copy of the gradients in fp32; 4 + 12/N at 1; 2 + 14/N at",
        "          2; 16/N at 3; in addition buckets, and temporary memory of the step",
        "  speed   by the ZeRO paper, stages 1 and 2 send as much as plain data",
        "          parallelism, and stage 3 50 % more; DeepSpeed sends 50 % more at",
    ]


@pytest.mark.parametrize("right", [{}, {"train_batch_size": 8}])
def test_the_exit_status_tells_no_difference(right: Any, tmp_path: Path) -> None:
    assert diff(tmp_path, {}, right).status == 0


def test_no_difference_is_said(tmp_path: Path) -> None:
    assert diff(tmp_path, {}, {"gradient_clipping": 1.0}).out == "no difference in meaning\n"


def test_json_marks_what_is_a_default(tmp_path: Path) -> None:
    done = json.loads(diff(tmp_path, {}, {"gradient_clipping": 0.5}, "--json").out)
    assert done["differences"][0]["a"] == {"value": 1, "note": "default"}


def test_a_release_decides_the_defaults(tmp_path: Path) -> None:
    done = diff(tmp_path, {}, {"gradient_clipping": 0.0}, "--deepspeed", "0.16")
    assert done.out.startswith("no difference in meaning")


def test_a_text_that_is_no_ds_config_is_refused(tmp_path: Path) -> None:
    assert diff(tmp_path, {}, '{"a": }').status == 65


@pytest.mark.parametrize("section", ["deepspeed_config_file: a.json", "zero_stage: 3"])
def test_the_ds_config_of_an_accelerate_config_is_compared(section: str, tmp_path: Path) -> None:
    yaml = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  {section}\n"
    (tmp_path / "a.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (tmp_path / "a.yaml").write_text(yaml)
    (tmp_path / "b.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    done = zlaunch("config", "diff", "a.yaml", "b.json", "--json", cwd=tmp_path)
    stage = next(one for one in json.loads(done.out)["differences"] if one["key"].endswith(".stage"))
    assert (stage["a"]["value"], stage["b"]["value"]) == (3, 2)


def test_what_accelerate_adds_is_no_difference(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: DEEPSPEED\n")
    done = zlaunch("config", "diff", "a.yaml", CONFIGS / "zero2.json", "--json", cwd=tmp_path)
    assert "train_batch_size" not in [one["key"] for one in json.loads(done.out)["differences"]]


def test_an_accelerate_config_without_deepspeed_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\n")
    done = zlaunch("config", "diff", "a.yaml", "a.yaml", cwd=tmp_path)
    assert "does not use DeepSpeed" in done.err
