"""`zlaunch estimate`, as a person runs it; the rehearsals are real, the models small."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.asking import LLAMA
from tests.hub_server import hub
from tests.running import ZLAUNCH, Result, on_terminal, zlaunch
from zlaunch.estimate.forecast import PHASES
from zlaunch.estimate.strategies import STRATEGIES

pytestmark = pytest.mark.job

ON = ("--on", "8xH100-80GB")
QUICK = ("--micro-batch", "1", "--activation-checkpointing", "--seq-len", "256")
"""Leaves few levers to try."""
ALONE = (*QUICK, "--no-levers")
"""Tries none, which takes half the time."""
WIDE: dict[str, Any] = {**LLAMA, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4}
LARGE: dict[str, Any] = {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for name, config in {"small": LLAMA, "wide": WIDE, "large": LARGE}.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    (place / "hosts").write_text("a slots=4\nb slots=4\n")
    return place


@pytest.fixture(scope="module")
def ladder(folder: Path) -> Result:
    return zlaunch("estimate", "small", *ON, cwd=folder, env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def one(folder: Path) -> Result:
    words = ("--stage", "3", "--offload", "cpu", "--", "--per_device_train_batch_size", "2")
    return zlaunch("estimate", "small", *ON, *words, cwd=folder, env={"COLUMNS": "80"})


def told(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_ladder_has_every_rung_and_marks_the_fastest_that_fits(ladder: Result) -> None:
    assert ladder.status == 0, ladder.err
    rows = [line for line in ladder.out.splitlines() if line[2:3].isdigit()]
    assert len(rows) == len(STRATEGIES)
    assert [line for line in ladder.out.splitlines() if line.startswith("> ")] == [rows[0]]
    assert "`--stage 0` is the fastest that fits" in ladder.out


def test_one_job_is_shown_in_all_its_phases(one: Result) -> None:
    assert one.status == 0, one.err
    phases = [phase for phase in PHASES if f"\n{phase} " in one.out]
    assert phases[:6] == list(PHASES[:6])
    assert "batch      16 = 2 per rank x 1 accumulated x 8 ranks" in one.out
    assert "it fits with sequences of 2048 tokens (`--seq-len N` if they are longer); it needs " in " ".join(
        one.out.split()
    )


@pytest.mark.parametrize("shown", ["ladder", "one"])
def test_no_line_is_wider_than_80_columns(shown: str, request: pytest.FixtureRequest) -> None:
    result: Result = request.getfixturevalue(shown)
    assert [line for line in f"{result.out}{result.err}".splitlines() if len(line) > 80] == []


def test_without_a_gpu_the_numbers_are_shown_and_nobody_can_tell(folder: Path) -> None:
    done = zlaunch("estimate", "small", *ALONE, "--stage", "1", "--gpus", "4", cwd=folder)
    assert done.status == 69
    assert "4 ranks on 1 host" in done.out
    assert "--on 8xH100-80GB" in done.err


def test_a_job_that_does_not_fit_is_told_what_would_do(folder: Path) -> None:
    done = zlaunch("estimate", "large", "--on", "8xT4", "--stage", "0", "--micro-batch", "1", cwd=folder)
    assert done.status == 65
    assert "does not fit: " in done.out
    assert "`--stage 3`" in done.out


@pytest.mark.parametrize(("offload", "is_told"), [("cpu", True), ("none", False)])
def test_a_job_that_offloads_is_told_what_it_needs_of_hosts_that_nobody_named(
    offload: str, is_told: bool, folder: Path
) -> None:
    done = zlaunch("estimate", "small", *ON, *ALONE, "--stage", "2", "--offload", offload, cwd=folder)
    assert done.status == 0
    said = " ".join(done.out.split())
    assert ("of host memory on each host (not checked: `--host-memory SIZE`" in said) == is_told
    assert "it fits" in said


@pytest.mark.full
def test_parameters_on_nvme_are_computed_again_with_the_buffers_that_takes(folder: Path) -> None:
    nowhere_else = ("--set", "zero_optimization.offload_param.max_in_cpu=0")
    words = ("--on", "1xH100-80GB", "--offload", "nvme", "--nvme", folder, "--stage", "3", *nowhere_else)
    done = zlaunch("estimate", "wide", *words, *QUICK, "--json", cwd=folder)
    assert done.status == 0, done.err
    assert told(done)["need"]["nvme"] > 17.9 * told(done)["forecast"]["parameters"]


@pytest.mark.full
def test_a_ladder_that_nothing_fits_on_is_refused(folder: Path) -> None:
    words = ("--on", "T4", "--micro-batch", "64", "--seq-len", "4096")
    done = zlaunch("estimate", "large", *words, cwd=folder)
    assert done.status == 65
    assert "no stage or offload fits" in done.out
    assert "hint: it fits with `--stage " in done.out


def test_json_holds_one_job_and_its_changes(folder: Path) -> None:
    words = (*ON, *QUICK, "--stage", "2", "--json", "--levers")
    said = told(zlaunch("estimate", "small", *words, cwd=folder))
    assert (said["fit"], said["gpu"]["name"]) == ("fits", "H100-80GB")
    assert said["forecast"]["phases"]
    assert {"words", "gpu", "host", "pace", "fit"} <= said["changes"][0].keys()
    assert said["ds_config"]["train_batch_size"] == 8


def test_json_holds_no_changes_unless_they_are_asked_for(folder: Path) -> None:
    done = zlaunch("estimate", "small", *ON, *QUICK, "--stage", "2", "--json", cwd=folder)
    assert told(done)["changes"] is None
    assert "change" not in done.err


def test_on_a_terminal_the_answer_is_shown_before_any_change_is_tried(folder: Path) -> None:
    words = ("estimate", "small", *ON, "--stage", "2", "--micro-batch", "1", "--seq-len", "320")
    shown = on_terminal(*ZLAUNCH, *words, cwd=folder).out
    moments = ("rehearsing 1 job", "\nit fits", " changes (", "effect of each change")
    assert sorted(moments, key=shown.find) == list(moments)
    assert all(one in shown for one in moments)


def test_without_levers_nothing_is_tried_besides(folder: Path) -> None:
    done = zlaunch("estimate", "small", *ON, *ALONE, "--stage", "2", cwd=folder)
    assert "\nit fits" in done.out
    assert "effect of each change" not in done.out
    assert "change" not in done.err


def test_the_same_question_again_is_answered_without_a_rehearsal(folder: Path, tmp_path: Path) -> None:
    words = ("estimate", "small", *ON, *ALONE, "--stage", "1")
    env = {"ZLAUNCH_CACHE": str(tmp_path)}
    first, second, again = (
        zlaunch(*words, cwd=folder, env=one) for one in (env, env, {"ZLAUNCH_CACHE": "off"})
    )
    assert [("an earlier command" in one.out) for one in (first, second, again)] == [False, True, False]
    assert "method     rehearsed by an earlier command; " in second.out
    assert not first.err + second.err + again.err
    assert [line for line in second.out.splitlines() if not line.startswith("method")] == [
        line for line in first.out.splitlines() if not line.startswith("method")
    ]


def test_a_hostfile_says_how_many_ranks_there_are(folder: Path) -> None:
    words = (*ALONE, "--hostfile", "hosts", "--on", "A100-80GB", "--stage", "1")
    done = zlaunch("estimate", "small", *words, cwd=folder)
    assert "8 ranks on 2 hosts of 4 x A100-80GB" in done.out


def test_a_gpu_without_bf16_gets_fp16(folder: Path) -> None:
    said = told(zlaunch("estimate", "small", *QUICK, "--on", "T4", "--stage", "0", "--json", cwd=folder))
    assert said["ds_config"]["fp16"]["enabled"] is True


def test_a_sequence_beyond_rotary_positions_is_remarked_and_estimated(folder: Path) -> None:
    done = zlaunch("estimate", "small", *ON, *ALONE, "--stage", "3", "--seq-len", "5000", cwd=folder)
    assert done.status == 0
    assert "[sequence-too-long]" in done.err


def test_a_model_on_the_hub_is_estimated_from_its_config_alone(tmp_path: Path) -> None:
    with hub({"org/small": LLAMA}) as server:
        env = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
        done = zlaunch("estimate", "org/small", *ON, *ALONE, "--stage", "3", cwd=tmp_path, env=env)
        assert done.status == 0, done.err
        assert not [line for line in server.asked if "safetensors" in line or line.endswith(".bin")]
    assert "model      org/small: " in done.out


def test_offline_a_public_model_is_estimated_from_the_bundled_config(tmp_path: Path) -> None:
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    words = ("estimate", "HuggingFaceTB/SmolLM2-135M", *ON, *ALONE, "--stage", "1")
    done = zlaunch(*words, cwd=tmp_path, env=env)
    assert done.status == 0, done.err
    assert done.out.startswith("model      HuggingFaceTB/SmolLM2-135M: 135 M parameters, all trained\n")
    assert "\n           config.json as bundled with zlaunch\n" in done.out
    told = json.loads(zlaunch(*words, "--json", cwd=tmp_path, env=env).out)
    assert told["model"] == "HuggingFaceTB/SmolLM2-135M/config.json"
    assert told["model_is_bundled"] is True


def test_a_picture_is_written_and_never_over_another(folder: Path) -> None:
    words = ("estimate", "small", *ON, *ALONE, "--stage", "3", "--plot", "phases.png")
    assert zlaunch(*words, cwd=folder).status == 0
    assert (folder / "phases.png").read_bytes().startswith(b"\x89PNG")
    assert zlaunch(*words, cwd=folder).status == 69


@pytest.mark.full
def test_a_picture_compares_all_stages_too(folder: Path) -> None:
    done = zlaunch("estimate", "small", *ON, *QUICK, "--plot", "stages.svg", "--json", cwd=folder)
    assert done.status == 0
    assert len(told(done)["ladder"]) == len(STRATEGIES)
    assert ">stage 3, NVMe all<" in (folder / "stages.svg").read_text()
