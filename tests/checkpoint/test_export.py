import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.engines import ENGINES, MODELS
from tests.checkpoint.swapping import put_on_nvme
from tests.running import zlaunch
from zlaunch.checkpoint.dtypes import convert
from zlaunch.checkpoint.export import plan_export, write_export
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.process import Stopped

pytestmark = pytest.mark.job

WITH_SHARDS = [name for name, config in ENGINES.items() if config["zero_optimization"]["stage"]]


def exported(folder: Path, out: Path, dtype: str | None = None, **options: Any) -> dict[str, Any]:
    from safetensors.torch import load_file

    write_export(plan_export(checkpoint_at(folder), dtype, **options), out, lambda done: None)
    return {name: one for file in sorted(out.glob("*.safetensors")) for name, one in load_file(file).items()}


@pytest.mark.parametrize("name", WITH_SHARDS)
def test_the_weights_are_those_of_the_conversion_that_comes_with_deepspeed(
    name: str, saved: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    theirs, ours = (
        load_file(saved / f"{name}.safetensors"),
        exported(saved / name, tmp_path / "out", "float32"),
    )
    assert {key for key in theirs if not theirs[key].float().equal(ours[key])} == set()
    # Of tied parameters theirs keeps one name, and of frozen ones at stage 1 none.
    more = {"tied.weight"} if ENGINES[name]["zero_optimization"]["stage"] < 3 else set()
    is_stage_1 = ENGINES[name]["zero_optimization"]["stage"] == 1
    more |= {"frozen.weight", "frozen.bias"} if is_stage_1 else set()
    assert ours.keys() - theirs.keys() == more


def test_weights_that_were_on_nvme_are_those_that_were_in_memory(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("zero3")
    before = exported(folder, tmp_path / "before", "float32")
    put_on_nvme(folder / "global_step3")
    after = exported(folder, tmp_path / "after", "float32")
    assert [name for name in before if not before[name].equal(after[name])] == []


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_bf16_weights_are_those_that_trained(name: str, saved: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    ours, whole = exported(saved / name, tmp_path / "out"), load_file(saved / f"{name}.safetensors")
    assert {str(one.dtype) for one in ours.values()} == {"torch.bfloat16"}
    assert all(ours[key].equal(whole[key].to(torch.bfloat16)) for key in whole)


def test_stage_0_has_its_weights_in_the_model(saved: Path, tmp_path: Path) -> None:
    import torch

    theirs = torch.load(saved / "zero0" / "global_step3" / "mp_rank_00_model_states.pt", weights_only=False)
    ours = exported(saved / "zero0", tmp_path / "out")
    assert all(theirs["module"][key].equal(ours[key]) for key in theirs["module"])


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_answers_like_the_one_that_trained(name: str, saved: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    result = zlaunch("checkpoint", "export", saved / "models" / name, "out", cwd=tmp_path)
    assert result.status == 0, result.err
    assert (
        f"{json.loads((tmp_path / 'out' / 'config.json').read_text())['architectures'][0]}.from_pr"
        in result.err
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    with torch.no_grad():
        logits = model(input_ids=torch.arange(12)[None]).logits
    assert logits.equal(load_file(saved / "models" / f"{name}.safetensors")["logits"])


def test_experts_of_deepspeeds_own_layer_are_those_of_all_ranks(saved: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ours, wanted = exported(saved / "experts", tmp_path / "out"), {}
    for rank in (0, 1):  # two experts each
        for name, one in load_file(saved / f"experts-{rank}.safetensors").items():
            head, _, expert = name.partition("deepspeed_experts.")
            number, _, tail = expert.partition(".")
            wanted[f"{head}deepspeed_experts.{int(number) + 2 * rank}.{tail}" if expert else name] = one
    assert len(wanted) == 11
    assert ours.keys() == wanted.keys()
    assert all(ours[key].equal(wanted[key]) for key in wanted)


def test_an_expert_that_is_missing_is_found(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("experts") / "global_step1"
    (folder / "layer_0_expert_2_mp_rank_00_model_states.pt").unlink()
    result = zlaunch("checkpoint", "export", folder, "out", cwd=tmp_path)
    assert result.status == 65
    assert "1 of 4 experts of a layer are missing" in result.err


def test_tensor_parallelism_is_refused_with_a_way_out(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("zero2") / "global_step3"
    shutil.copy(folder / "mp_rank_00_model_states.pt", folder / "mp_rank_01_model_states.pt")
    with pytest.raises(Unavailable, match="cut by tensor parallelism") as caught:
        exported(folder, tmp_path / "out")
    assert "`engine._consolidated_16bit_state_dict()`" in str(caught.value.hint)


def test_what_tensor_parallelism_has_cut_is_exported_once_it_is_converted(
    saved: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    folder = saved / "tensor-parallel"
    refused = zlaunch("checkpoint", "export", folder, "out", cwd=tmp_path)
    assert refused.status == 69
    (command,) = re.findall("`zlaunch (checkpoint universal .*) OUT`", " ".join(refused.err.split()))
    result = zlaunch(*command.split(), "converted", cwd=tmp_path)
    assert result.status == 0, result.err
    ours, whole = exported(tmp_path / "converted", tmp_path / "out"), load_file(f"{folder}.safetensors")
    assert ours.keys() == whole.keys()
    assert [name for name, one in whole.items() if not one.equal(ours[name])] == []


def test_a_pipeline_is_not_exported_and_its_layers_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is a pipeline") as caught:
        exported(saved / "pipeline", tmp_path / "out")
    assert "`layer_00-model_states.pt`" in str(caught.value.hint)


def test_experts_of_stage_0_are_exported_too(copied: Callable[[str], Path], tmp_path: Path) -> None:
    import torch

    folder = copied("experts") / "global_step1"
    for file in folder.glob("*zero_pp_rank_*"):
        file.unlink()
    torch.save({"optimizer": None}, folder / "expp_rank_0_mp_rank_00_optim_states.pt")  # as stage 0 names it
    assert len(exported(folder, tmp_path / "out")) == 11


def test_a_large_model_is_written_in_several_files_with_an_index(saved: Path, tmp_path: Path) -> None:
    whole = exported(saved / "models" / "dense", tmp_path / "whole")
    pieces = exported(saved / "models" / "dense", tmp_path / "out", shard_bytes=20_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 3
    assert all((tmp_path / "out" / file).stat().st_size < 21_000 for file in index["weight_map"].values())
    assert index["weight_map"].keys() == whole.keys()
    assert all(pieces[key].equal(whole[key]) for key in whole)


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 65504.0, 65520.0, 1e38, 1e-45, 3.3895314e38])


@given(st.lists(NUMBERS, min_size=1))
def test_rounding_is_that_of_torch(numbers: list[float]) -> None:
    import torch

    given_numbers = np.array(numbers, np.float32)
    for wanted in ("bfloat16", "float16", "float64"):
        ours = convert(given_numbers, "float32", wanted)
        tensor = torch.from_numpy(given_numbers).to(getattr(torch, wanted))
        theirs = tensor.view(torch.uint16).numpy() if wanted == "bfloat16" else tensor.numpy()
        is_nan = np.isnan(given_numbers)
        assert ours[~is_nan].tobytes() == theirs[~is_nan].tobytes()
        back = convert(ours, wanted, "float32")
        assert np.isnan(back[is_nan]).all()


def test_a_damaged_checkpoint_is_refused_before_anything_is_written(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("zero3")
    next(folder.glob("*/*rank_1*optim*")).unlink()
    result = zlaunch("checkpoint", "export", folder, "out", cwd=tmp_path)
    assert result.status == 65
    assert "the optimizer of rank 1 of 2 is missing" in result.err
    assert not (tmp_path / "out").exists()


def test_a_directory_with_files_is_not_written_to(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(WrongUsage, match="exists already"):
        exported(saved / "zero2", tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_write_that_fails_leaves_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(done: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Unavailable, match="No space left"):
        write_export(plan_export(checkpoint_at(saved / "zero2"), None), tmp_path / "out", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_said_before(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(Unavailable, match=r"needs .* has 1 B left"):
        exported(saved / "zero2", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_looks_like_a_part_of_it_is_not_touched(saved: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "mine").write_text("mine")
    exported(saved / "zero2", tmp_path / "out")
    assert (tmp_path / ".out.partial" / "mine").read_text() == "mine"


def test_a_link_is_refused_before_anything_is_written(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WrongUsage, match="exists already"):
        exported(saved / "zero2", tmp_path / "out")


def test_a_directory_without_a_config_is_no_model_to_copy_from(saved: Path, tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "export", saved / "zero2", "out", "--model", saved, cwd=tmp_path)
    assert result.status == 66
    assert "has no config.json" in result.err


def test_a_term_signal_leaves_nothing_of_an_export(saved: Path, tmp_path: Path) -> None:
    def end(done: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        write_export(plan_export(checkpoint_at(saved / "zero2"), None), tmp_path / "out", end)
    assert list(tmp_path.iterdir()) == []


def test_json_names_what_was_written(saved: Path, tmp_path: Path) -> None:
    told = json.loads(zlaunch("checkpoint", "export", saved / "zero1", "out", "--json", cwd=tmp_path).out)
    assert (told["directory"], told["is_adapter"]) == (str(tmp_path / "out"), False)
    assert {one.name for one in (tmp_path / "out").iterdir()} >= {*told["files"]}


def test_json_of_reshard_names_what_can_be_loaded_as_it_is(saved: Path, tmp_path: Path) -> None:
    told = json.loads(zlaunch("checkpoint", "reshard", saved / "zero1", "--json", cwd=tmp_path).out)
    assert told == {"directory": told["directory"], "way": "as it is", "written": False, "reasons": []}
