"""Checkpoints that real ranks have saved, damaged in every way that a save or a copy can go wrong."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.engines import ENGINES
from tests.checkpoint.swapping import put_on_nvme
from tests.checkpoint.trainers import trainers
from tests.running import zlaunch
from zlaunch.checkpoint.find import SavedBy, find, recognize
from zlaunch.checkpoint.safetensors import write_header
from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.verify import verify
from zlaunch.resume.newest import newest_complete

pytestmark = pytest.mark.job

Z2, Z3 = "zero2/global_step3/", "zero3/global_step3/"
MODEL, MODEL_0, MODEL_1 = (
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt",
    "zero_pp_rank_1_mp_rank_00_model_states.pt",
)
OPTIM_0, OPTIM_1 = (f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))


def test_what_real_ranks_saved_is_complete(saved: Path) -> None:
    found = [
        one for one in find(saved) if one.folder.parent.name != "others" and one.saved_by is not SavedBy.DCP
    ]
    names = {one.folder.relative_to(saved).parts[0] for one in found}
    assert names == {
        *ENGINES,
        "accelerate",
        "models",
        "adapters",
        "experts",
        "pipeline",
        "tensor-parallel",
    }
    assert {str(one.folder): verify(one, complete=True) for one in found if verify(one, complete=True)} == {}


def test_a_checkpoint_of_torch_itself_is_named_but_not_judged(saved: Path) -> None:
    (checkpoint,) = find(saved / "dcp")
    summary = summarize(checkpoint)
    assert (checkpoint.saved_by, summary.problems) == (SavedBy.DCP, ())
    assert "dcp_to_torch DIR FILE` converts it" in summary.unknown[0].message


@pytest.mark.parametrize("name", ENGINES)
def test_a_summary_says_what_was_saved(name: str, saved: Path) -> None:
    checkpoint = recognize(saved / name)
    assert checkpoint is not None
    summary, config = summarize(checkpoint), ENGINES[name]
    assert checkpoint.saved_by is SavedBy.ENGINE
    assert (summary.step, summary.ranks) == (3, 2)
    assert summary.stage == config["zero_optimization"]["stage"]
    assert summary.dtype == ("bfloat16" if "bf16" in config else "float32")
    assert summary.has_optimizer
    assert summary.num_parameters == 33 * 7 + 33 + 33 * 33 + 33 + 33 * 5 + 5 + 33 * 7


def cut(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def flip(file: Path) -> None:
    """Change one bit of the numbers, which no size and no structure shows."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def take(other: str) -> Callable[[Path], None]:
    """Make a file that of another checkpoint, given as its path below all of them."""

    def copy(file: Path) -> None:
        shutil.copy(file.parents[2] / "others" / other, file)

    return copy


def write(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


def nothing(file: Path) -> None:
    file.unlink()


DAMAGE = {
    "the model is missing": (f"{Z2}{MODEL}", nothing, "the model is missing"),
    "the model is cut": (f"{Z2}{MODEL}", cut, "its end is missing"),
    "the model is empty": (f"{Z2}{MODEL}", empty, "it is empty"),
    "the model is text": (f"{Z2}{MODEL}", write("<html>404</html>"), "not a file of `torch.save`"),
    "a bit of the model is wrong": (f"{Z2}{MODEL}", flip, "checksum"),
    "the optimizer of a rank is missing": (
        f"{Z2}{OPTIM_1}",
        nothing,
        "the optimizer of rank 1 of 2 is missing",
    ),
    "the optimizer of rank 0 is missing": (
        f"{Z2}{OPTIM_0}",
        nothing,
        "the optimizer of rank 0 of 2 is missing",
    ),
    "the optimizer of a rank is cut": (f"{Z2}{OPTIM_1}", cut, "its end is missing"),
    "the optimizer is of another model": (
        f"{Z2}{OPTIM_1}",
        take("wider/" + OPTIM_1),
        "fp32 parameters in all ranks",
    ),
    "the optimizer is of another step": (f"{Z2}{OPTIM_1}", take("later/" + OPTIM_1), "from another save"),
    "the model is of another step": (f"{Z2}{MODEL}", take("later/" + MODEL), "its model is at step 4"),
    "the optimizer is of another stage": (
        f"{Z2}{OPTIM_1}",
        take("zero1/" + OPTIM_1),
        "it has stage 1, the others",
    ),
    "a rank too many": (
        f"{Z2}bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
        take("later/" + OPTIM_1),
        "from another save: this one has 2 ranks",
    ),
    "a model file instead of an optimizer": (f"{Z2}{OPTIM_1}", take("later/" + MODEL), "no named parts"),
    "the model of a rank is missing": (f"{Z3}{MODEL_1}", nothing, "the model of rank 1 of 2 is missing"),
    "the model of rank 0 is missing": (f"{Z3}{MODEL_0}", nothing, "the model of rank 0 of 2 is missing"),
    "the optimizer at stage 3 is of another model": (
        f"{Z3}{OPTIM_1}",
        take("wider3/" + OPTIM_1),
        "and the model 811 in this rank",
    ),
    "the optimizer at stage 3 is cut": (f"{Z3}{OPTIM_0}", cut, "its end is missing"),
    "a layer of a pipeline is missing": (
        "pipeline/global_step1/layer_02-model_states.pt",
        nothing,
        "1 layer of a pipeline is missing",
    ),
    "the optimizer of a stage of a pipeline is cut": (
        "pipeline/global_step1/zero_pp_rank_0_mp_rank_01_optim_states.pt",
        cut,
        "its end is missing",
    ),
    "a part of an interrupted save": (
        f"{Z2}model.safetensors.tmp",
        write("x"),
        "left over from an interrupted save",
    ),
    "the DCP metadata are missing": ("dcp/.metadata", nothing, "the save was interrupted"),
    "the random numbers of accelerate are cut": ("accelerate/random_states_0.pkl", cut, "its end is missing"),
    "a bit of the random numbers of accelerate is wrong": (
        "accelerate/random_states_0.pkl",
        flip,
        "its structure is damaged",
    ),
    "a shard of accelerate's is missing": (
        f"accelerate/pytorch_model/{OPTIM_0}",
        nothing,
        "rank 0 of 2 is missing",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str, saved: Path, tmp_path: Path) -> None:
    name, damage, said = DAMAGE[kind]
    top = name.partition("/")[0]
    folder = Path(shutil.copytree(saved / top, tmp_path / top))
    (tmp_path / "others").symlink_to(saved.parent / "saved" / "others")
    damage(tmp_path / name)
    (checkpoint, *more) = find(folder)
    assert not more
    told = [f"{problem.file}: {problem.message}" for problem in verify(checkpoint, complete=True)]
    assert any(said in one for one in told), told


COMMANDS = {
    "show": ((), 0),
    "verify": (("--full",), 65),
    "export": (("out",), 65),
    "can-resume": (("--ranks", 4), 65),
    "reshard": (("--ranks", 4), 65),
    "universal": (("out",), 65),
    "prune": (("--keep", 1, "--yes"), 0),
}
"""Verb → its arguments, and its exit status for a damaged checkpoint."""

IN_NUMBERS = {kind for kind in DAMAGE if kind.startswith(("a bit", "a number"))}
"""Only `verify --full` finds these."""


def test_every_command_says_what_is_wrong_with_a_damaged_checkpoint(saved: Path, tmp_path: Path) -> None:
    kinds = [
        kind for kind, (name, *_) in DAMAGE.items() if name.startswith("zero") and kind not in IN_NUMBERS
    ]
    wrong = []
    for kind, verb in zip(kinds, itertools.cycle(COMMANDS), strict=False):  # each kind with one of them
        name, damage, said = DAMAGE[kind]
        place = tmp_path / kind
        shutil.copytree(saved / name.partition("/")[0], place / name.partition("/")[0])
        (place / "others").symlink_to(saved / "others")
        damage(place / name)
        (place / "others").unlink()
        words, status = COMMANDS[verb]
        result = zlaunch("checkpoint", verb, name.partition("/")[0], *words, cwd=place)
        text = " ".join((result.out + result.err).split())
        if result.status != status or "Traceback" in text or (said not in text and verb != "prune"):
            wrong.append((kind, verb, result))
    assert wrong == []
    assert len(kinds) > 2 * len(COMMANDS)


def told(folder: Path) -> list[str]:
    return [
        f"{one.file.name}: {one.message}" for found in find(folder) for one in verify(found, complete=True)
    ]


def test_a_trainer_finds_its_checkpoint_by_the_file_latest_alone(saved: Path, tmp_path: Path) -> None:
    checkpoint = trainers(tmp_path, 3, saved / "zero2")
    assert told(checkpoint) == []
    for damage in (empty, nothing):
        damage(checkpoint / "latest")
        said = "latest: it is missing, empty or not text, and DeepSpeed finds the checkpoint by it"
        assert told(checkpoint) == [said]
    (checkpoint / "latest").write_text("global_step4")
    assert told(checkpoint) == ["latest: it names `global_step4`, which is not there"]


def test_an_engine_that_was_saved_and_is_not_there_is_missed(saved: Path, tmp_path: Path) -> None:
    model = write_header({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}) + b"1"
    trained = trainers(tmp_path, 3, saved / "zero2")
    shutil.rmtree(trained / "global_step3")
    (trained / "model.safetensors").write_bytes(model)
    assert told(trained) == ["global_step3: it is missing, and `latest` names it"]
    (trained / "latest").unlink()
    assert told(trained) == [
        "checkpoint-3: the files of DeepSpeed's engine are missing, although it saved `zero_to_fp32.py`"
    ]
    (trained / "zero_to_fp32.py").unlink()
    assert told(trained) == []  # as with `save_only_model`
    accelerated = Path(shutil.copytree(saved / "accelerate", tmp_path / "step_3"))
    shutil.rmtree(accelerated / "pytorch_model")
    assert told(accelerated) == ["pytorch_model: it is missing, and `latest` names it"]
    (accelerated / "pytorch_model").mkdir()
    assert told(accelerated) == ["pytorch_model: it has no files of DeepSpeed's engine"]


@pytest.mark.parametrize("named", ["", "global_step4", "global_step5"])
def test_a_latest_that_names_no_complete_tag_damages_none_of_them(
    named: str, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("zero2")
    half = Path(shutil.copytree(folder / "global_step3", folder / "global_step4"))
    (half / OPTIM_1).unlink()
    (folder / "latest").write_text(named)
    newest = newest_complete(folder)
    assert newest is not None
    assert newest.checkpoint.tag == "global_step3"
    result = zlaunch("checkpoint", "verify", folder, cwd=tmp_path)
    said = " ".join(result.out.split())
    assert (result.status, "zero2/global_step3: complete" in said) == (65, True)
    assert "`echo global_step3 > zero2/latest` repairs it" in said
    told = json.loads(zlaunch("checkpoint", "verify", folder, "--json", cwd=tmp_path).out)
    for one in told:
        ((file, message),) = (problem.values() for problem in one["problems_beside"])
        assert (file, message.endswith("repairs it")) == (str(folder / "latest"), True)
    (folder / "latest").write_text("global_step3")
    assert "latest" not in zlaunch("checkpoint", "verify", folder, cwd=tmp_path).out


def test_a_tag_may_have_any_name_and_be_copied_alone(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "zero2" / "global_step3", tmp_path / "global_step3-best")
    assert told(tmp_path / "global_step3-best") == []


def test_what_a_trainer_writes_at_its_end_does_not_hide_its_checkpoints(saved: Path, tmp_path: Path) -> None:
    checkpoint = trainers(tmp_path / "out", 3, saved / "zero2")
    (tmp_path / "out" / "trainer_state.json").write_text('{"global_step": 3}')
    assert [one.folder for one in find(tmp_path / "out")] == [checkpoint]


def test_the_model_beside_checkpoints_is_one_of_its_own(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    checkpoint = trainers(out, 3, saved / "zero2")
    (out / "trainer_state.json").write_text('{"global_step": 3}')
    header = write_header({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    (out / "model.safetensors").write_bytes(header + b"1")
    model, other = find(out)
    size = len('{"global_step": 3}') + len(header) + 1
    assert (model.saved_by, model.nbytes, other.folder) == (SavedBy.WEIGHTS, size, checkpoint)
    assert told(out) == []
    (out / "model.safetensors").write_bytes(b"\2")
    assert told(out) == ["model.safetensors: its header is damaged"]


def test_a_trainer_needs_its_scheduler_unless_the_engine_has_it(saved: Path, tmp_path: Path) -> None:
    import torch

    checkpoint = trainers(tmp_path, 3, saved / "zero2")
    (checkpoint / "scheduler.pt").unlink()
    model = checkpoint / "global_step3" / MODEL
    state = torch.load(model, weights_only=False)
    del state["ds_config"]["optimizer"]
    missing = "scheduler.pt: it is missing, and the Trainer loads its scheduler from it"
    for section, problems in (({}, [missing]), ({"optimizer": {}}, []), ({"scheduler": {}}, [])):
        torch.save({**state, "ds_config": {**state["ds_config"], **section}}, model)
        assert told(checkpoint) == problems


def test_random_numbers_that_a_rank_of_a_trainer_has_not_written_are_found(
    saved: Path, tmp_path: Path
) -> None:
    import torch

    checkpoint = trainers(tmp_path, 3, saved / "zero2")
    first, second = (checkpoint / f"rng_state_{rank}.pth" for rank in (0, 1))
    torch.save({"cpu": torch.get_rng_state()}, first)
    assert told(checkpoint) == ["rng_state_1.pth: the random numbers of rank 1 of 2 are missing"]
    second.write_bytes(first.read_bytes())
    assert told(checkpoint) == []
    cut(second)
    assert told(checkpoint) == ["rng_state_1.pth: it is incomplete: its end is missing"]


@pytest.mark.parametrize("verb", ["show", "verify", "export", "can-resume"])
def test_a_directory_that_does_not_exist_is_no_checkpoint(verb: str, tmp_path: Path) -> None:
    words = ["checkpoint-9", *(["out"] if verb == "export" else [])]
    result = zlaunch("checkpoint", verb, *words, cwd=tmp_path)
    assert (result.status, result.err) == (66, "error: there is no directory `checkpoint-9`\n")


def test_accelerate_may_name_its_checkpoints_as_a_trainer_does(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "accelerate", tmp_path / "checkpoint-500")
    (found,) = find(tmp_path)
    assert found.saved_by is SavedBy.ACCELERATE
    assert told(tmp_path) == []


def test_a_link_to_a_checkpoint_is_followed(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(saved / "zero3")
    assert [one.folder for one in find(tmp_path)] == [tmp_path / "scratch" / "global_step3"]


@pytest.mark.parametrize("change", [{"shape": [2, 4]}, {"dtype": "F16"}, {"data_offsets": [8, 20]}])
def test_a_header_of_safetensors_that_does_not_fit_its_tensors_is_found(
    change: dict[str, Any], tmp_path: Path
) -> None:
    tensors: dict[str, dict[str, Any]] = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]},
    }
    file = tmp_path / "model.safetensors"
    file.write_bytes(write_header(tensors) + bytes(20))
    assert told(tmp_path) == []
    tensors["a"] |= change
    file.write_bytes(write_header(tensors) + bytes(20))
    assert len(told(tmp_path)) == 1


def test_a_bit_of_a_bin_file_is_looked_at_too(saved: Path, tmp_path: Path) -> None:
    checkpoint = trainers(tmp_path, 3, saved / "zero2")
    weights = checkpoint / "pytorch_model.bin"
    shutil.copy(checkpoint / "global_step3" / MODEL, weights)
    flip(weights)
    assert any("checksum" in one for one in told(checkpoint))


def test_parts_of_model_parallelism_that_are_missing_are_found(copied: Callable[[str], Path]) -> None:
    import torch

    file = copied("zero2") / "global_step3" / MODEL
    state = torch.load(file, weights_only=False)
    torch.save({**state, "mp_world_size": 2}, file)
    assert "global_step3: the model has 1 of 2 parts of model parallelism" in told(file.parent)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_part_of_model_parallelism_that_is_too_many_is_found(
    parts: int, copied: Callable[[str], Path]
) -> None:
    import torch

    file = copied("zero2") / "global_step3" / MODEL
    state = torch.load(file, weights_only=False)
    torch.save({**state, "mp_world_size": parts}, file.with_name("mp_rank_01_model_states.pt"))
    assert any("it is from another save: " in one for one in told(file.parent))


def test_the_command_ends_with_65_and_names_the_file(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("zero2")
    cut(folder / "global_step3" / OPTIM_1)
    result = zlaunch("checkpoint", "verify", folder, cwd=tmp_path)
    assert result.status == 65
    assert f"{OPTIM_1}: it is incomplete" in " ".join(result.out.split())
    listed = zlaunch("checkpoint", "list", "--json", cwd=tmp_path)
    (one,) = json.loads(listed.out)
    assert (one["step"], one["stage"], one["complete"]) == (3, 2, False)


def test_a_complete_checkpoint_ends_with_0(saved: Path, tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "verify", saved / "zero3", "--full", cwd=tmp_path)
    assert (result.status, result.err) == (0, "")
    shown = zlaunch("checkpoint", "show", saved / "zero3", cwd=tmp_path).out
    assert "ZeRO stage  3\n" in shown
    assert "state       complete\n" in shown


def test_a_directory_without_a_checkpoint_is_said_to_have_none(tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "verify", tmp_path, cwd=tmp_path)
    assert result.status == 66
    assert "there is no checkpoint in" in result.err


@pytest.fixture
def swapped(copied: Callable[[str], Path]) -> Path:
    folder = copied("zero3") / "global_step3"
    put_on_nvme(folder)
    return folder


def test_an_optimizer_that_was_on_nvme_is_in_its_files(swapped: Path) -> None:
    assert told(swapped) == []


def test_a_file_of_nvme_that_is_missing_is_found_even_if_another_is_there(swapped: Path) -> None:
    rank = swapped / "offloaded_tensors" / "rank01"
    (rank / "exp_avg_sq-9_20.tensor.swp").rename(rank / "exp_avg_sq-9_99.tensor.swp")
    said = "exp_avg_sq-9_20.tensor.swp: it is missing: a part of the optimizer, which was on NVMe"
    assert told(swapped) == [said]


def test_a_file_of_nvme_that_was_copied_in_part_is_found(swapped: Path) -> None:
    file = swapped / "offloaded_tensors" / "rank00" / "9_20.tensor.swp"
    os.truncate(file, 1024)
    assert [one.partition("bytes")[0] for one in told(swapped)] == [
        "9_20.tensor.swp: it has 1024 of at least 3108 "
    ]


def test_a_tag_of_an_engine_hides_no_other_checkpoint_beside_it(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "zero2", tmp_path / "out")
    trainers(tmp_path / "out", 5, saved / "zero2")
    trainers(tmp_path / "out" / "run", 7, saved / "zero2")
    trainers(tmp_path / "out", 6, saved / "zero2").rename(tmp_path / "out" / ".checkpoint-6.77.deleted")
    names = [str(one.folder.relative_to(tmp_path / "out")) for one in find(tmp_path / "out")]
    assert names == ["global_step3", "checkpoint-5", "run/checkpoint-7"]
