"""`zlaunch config resolve`, as a person runs it."""

import json
from pathlib import Path
from typing import Any

from tests.running import CONFIGS, Result, zlaunch


def resolve(folder: Path, *words: object, **config: Any) -> Result:
    file = folder / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, **config}))
    return zlaunch("config", "resolve", "ds.json", *words, cwd=folder, env={"COLUMNS": "80"})


def test_a_shipped_config_is_resolved(tmp_path: Path) -> None:
    assert zlaunch("config", "resolve", CONFIGS / "zero3.json", cwd=tmp_path).status == 0


def test_a_config_with_errors_is_refused(tmp_path: Path) -> None:
    assert resolve(tmp_path, zero_optimisation={}).status == 65


def test_an_error_that_only_the_filled_in_values_have_is_refused(tmp_path: Path) -> None:
    batch = {"train_batch_size": 63, "train_micro_batch_size_per_gpu": "auto"}
    done = resolve(tmp_path, "--world-size", "2", **batch, gradient_accumulation_steps="auto")
    assert done.status == 65


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert zlaunch("config", "resolve", "none.json", cwd=tmp_path).status == 66


def test_no_line_is_wider_than_80_columns(tmp_path: Path) -> None:
    done = resolve(tmp_path, "--world-size", "2", gradient_clipping="auto", train_batch_size=8)
    assert [line for line in done.out.splitlines() if len(line) > 80] == []


def test_json_is_one_object(tmp_path: Path) -> None:
    done = resolve(tmp_path, "--format", "json", gradient_clipping="auto", train_batch_size=8)
    assert json.loads(done.out)["filled"]["gradient_clipping"] == {
        "value": 1.0,
        "source": "default of `--max_grad_norm`",
    }


def test_the_learning_rate_is_listed_at_the_peak_and_the_quarters_of_the_run(tmp_path: Path) -> None:
    done = resolve(tmp_path, "--", "--max_steps", "200", "--warmup_steps", "10", train_batch_size=8)
    assert done.out.splitlines()[-7:] == [
        "  step  learning rate",
        "  1     0",
        "  11    5e-05          peak",
        "  50    3.97e-05",
        "  100   2.66e-05",
        "  150   1.34e-05",
        "  200   2.63e-07",
    ]


def test_silent_findings_are_counted_and_lead_to_validate(tmp_path: Path) -> None:
    zero = {"stage": 2, "offload_param": {"device": "cpu"}}
    done = resolve(tmp_path, train_batch_size=8, zero_optimization=zero)
    assert "see `zlaunch config validate ds.json`" in done.err


def test_an_accelerate_config_leads_to_its_ds_config(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text((CONFIGS / "zero2.json").read_text())
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    (tmp_path / "accelerate.yaml").write_text(text)
    done = zlaunch("config", "resolve", "accelerate.yaml", "--for", "accelerate", cwd=tmp_path)
    assert "gradient_clipping = 1.0" in done.out


def test_an_accelerate_config_without_deepspeed_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert zlaunch("config", "resolve", "accelerate.yaml", cwd=tmp_path).status == 2
