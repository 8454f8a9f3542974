import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import PYTHON
from tests.running import ROOT
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.request import (
    EstimateRequest,
    find_cluster,
    find_model,
    makes_its_model,
    resolve_request,
)
from zlaunch.hosts.agent.own_code import own_code
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Gpu, Machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec
from zlaunch.json_lines import ANSWER, plain

A100 = Gpu(0, "NVIDIA A100-SXM4-80GB", "GPU-1", 80 << 30, (8, 0))
RTX_4090 = Gpu(0, "NVIDIA GeForce RTX 4090", "GPU-2", 24 << 30, (8, 9))
SSH = """#!/bin/sh
for word; do if [ -f "{answers}/$word" ]; then cat "{answers}/$word"; fi; done
"""


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two hosts that answer over ssh, the older one with the larger GPU."""
    answers, programs = tmp_path / "answers", tmp_path / "programs"
    answers.mkdir()
    programs.mkdir()
    for name, gpu in {"w0": A100, "w1": RTX_4090}.items():
        facts = MachineFacts(PYTHON, Machine(name, 8, 1 << 38, (gpu, replace(gpu, index=1))))
        said = [json.dumps({ANSWER: {"code": own_code()}}), json.dumps({ANSWER: {"facts": plain(facts)}})]
        (answers / name).write_text("\n".join(["zlaunch asks", *said, ""]))
    (programs / "ssh").write_text(SSH.format(answers=answers))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (tmp_path / "hosts").write_text("w0 slots=2\nw1 slots=2\n")
    return tmp_path / "hosts"


def test_the_smallest_gpu_of_all_hosts_decides_whether_a_job_fits(hostfile: Path) -> None:
    site, _ = find_cluster(EstimateRequest("m", JobSpec(Path(), hostfile=hostfile), Options()), PYTHON)
    assert site.gpu is not None
    assert (site.world_size, site.gpu.name) == (4, "RTX-4090")


def test_options_describe_the_hosts_of_gpus_that_are_not_here() -> None:
    asked = EstimateRequest("m", JobSpec(Path()), on="8xH100-80GB", host_memory=1 << 40, network=400)
    site, _ = find_cluster(asked, PYTHON)
    assert (site.host_bytes, site.network) == (1 << 40, 50e9)


def test_hosts_are_counted_in_the_gpus_as_for_a_plan_of_a_job() -> None:
    asked = EstimateRequest("m", JobSpec(Path()), on="2x8xH100-80GB")
    site, _ = find_cluster(asked, PYTHON)
    assert (site.world_size, site.ranks_per_host) == (16, 8)
    with pytest.raises(WrongUsage, match="has 2 hosts, and not 3"):
        find_cluster(replace(asked, nodes=3), PYTHON)


def test_the_model_of_a_recipe_is_found_by_the_name_of_the_recipe() -> None:
    assert find_model("moe").value["model_type"] == "mixtral"


def test_a_recipe_without_a_model_is_a_script_to_rehearse() -> None:
    assert makes_its_model("own_loop")
    with pytest.raises(WrongUsage, match="`own_loop` is a training script") as raised:
        find_model("own_loop")
    assert raised.value.hint == "`zlaunch estimate own_loop` rehearses it; or name its model"


def test_a_script_that_does_not_exist_is_answered_with_the_recipe_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_lop.py").touch()
    with pytest.raises(InputMissing) as raised:
        find_model("own_loop.py")
    assert "`zlaunch recipes copy own_loop`" in str(raised.value.hint)


def test_fsdp_which_the_trainer_refuses_beside_a_ds_config_is_an_error_of_the_job() -> None:
    job = JobSpec(Path(), args=ScriptArgs(("--fsdp", "full_shard")))
    query = resolve_request(EstimateRequest(str(ROOT / "recipes" / "small_llama"), job, on="8xH100-80GB"))
    assert "fsdp-and-deepspeed" in {finding.code for finding in query.findings}


def test_the_model_of_a_recipe_has_the_sequences_of_the_recipe() -> None:
    from zlaunch.estimate.query import training_of
    from zlaunch.estimate.request import _as_recipe
    from zlaunch.job.args import ScriptArgs

    def length(name: str, options: Options) -> object:
        model = find_model("causal_lm")
        return _as_recipe(name, training_of(model, ScriptArgs(), options)).seq_len.value

    assert length("causal_lm", Options()) == 128
    assert length("causal_lm", Options(seq_len=64)) == 64
    assert length("some/model", Options()) == 1024
