"""Which checkpoint of a directory is the newest that can be used."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.running import zlaunch
from zlaunch.checkpoint.find import checkpoint_parent, find
from zlaunch.checkpoint.summary import Summary, summarize, wrong_latest
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume
from zlaunch.resume.newest import checkpoint_of, newest_complete

pytestmark = pytest.mark.job


def newest(folder: Path, since: float = 0.0, ranks: int = 2) -> Path | None:
    def fits(one: Summary) -> bool:
        return can_resume(one, ResumeTarget(ranks, 2)).way is ResumeWay.AS_IT_IS

    found = newest_complete(folder, since, fits)
    return None if found is None else found.checkpoint.folder


def model(folder: Path) -> Path:
    """A directory for `from_pretrained`."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    return folder


def test_the_newest_checkpoint_that_is_complete_and_fits_is_found(saved: Path, tmp_path: Path) -> None:
    nine, ten = (trainers(tmp_path, step, saved / "zero2") for step in (9, 10))
    trainers(tmp_path, 11, saved / "zero3")
    (trainers(tmp_path, 12, saved / "zero2") / "latest").unlink()
    (tmp_path / "checkpoint-best").mkdir()
    assert newest(tmp_path) == ten
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    assert newest(tmp_path) == nine
    assert newest(tmp_path, ranks=4) is None
    assert newest(tmp_path / "none") is None


def test_what_an_earlier_training_left_does_not_count(saved: Path, tmp_path: Path) -> None:
    five, nine = (trainers(tmp_path, step, saved / "zero2") for step in (5, 9))
    now = time.time()
    for folder, when in ((five, now), (nine, now - 60)):
        for file in folder.rglob("*.*"):
            os.utime(file, (when, when))
    assert newest(tmp_path, since=now - 1) == five
    assert newest(tmp_path) == nine
    (nine / "global_step3_universal").mkdir()  # a conversion is no save
    assert newest(tmp_path, since=now - 1) == five


def test_a_directory_with_checkpoints_and_the_model_stands_for_the_newest_checkpoint(
    saved: Path, tmp_path: Path
) -> None:
    output = model(tmp_path / "output")
    nine, ten = (trainers(output, step, saved / "zero2") for step in (9, 10))
    assert checkpoint_of(output).checkpoint.folder == ten
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    assert checkpoint_of(output).checkpoint.folder == nine
    assert checkpoint_of(ten).problems


def test_what_a_directory_stands_for_is_said_by_all_commands_that_read_only_one(
    saved: Path, tmp_path: Path
) -> None:
    output = model(tmp_path / "output")
    nine, ten = (trainers(output, step, saved / "zero2") for step in (9, 10))
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    told = "using output/checkpoint-9, the newest complete checkpoint in output"
    for words in (("export", output, "model"), ("universal", output, "out"), ("reshard", output)):
        result = zlaunch("checkpoint", *words, cwd=tmp_path)
        assert (result.status, told in result.err) == (0, True), result.err
        assert ("output has a model, too" in result.err) == (words[0] == "export")
    assert "output/checkpoint-9 can" in zlaunch("checkpoint", "can-resume", output, cwd=tmp_path).out
    assert "using" not in zlaunch("checkpoint", "export", nine, "other", cwd=tmp_path).err


def test_a_model_alone_need_not_be_exported(tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "export", model(tmp_path / "model"), "out", cwd=tmp_path)
    assert (result.status, "it is a model already" in result.err) == (69, True)


@pytest.mark.parametrize("state", [(), ("trainer_state.json",)])
def test_a_partitioned_model_that_a_trainer_saved_at_its_end_is_not_its_newest_checkpoint(
    state: tuple[str, ...], saved: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    two, three = (trainers(output, step, saved / "zero3") for step in (2, 3))
    shutil.copytree(saved / "zero3", output, dirs_exist_ok=True)
    for name in state:
        shutil.copy(three / name, output)
    (output / "global_step3").touch()
    assert checkpoint_of(output).checkpoint.folder == three
    assert checkpoint_parent(output) == output
    options = ("checkpoint", "prune", output, "--keep", 1, "--yes")
    assert zlaunch(*options, cwd=tmp_path).status == 0
    assert [one for one in (two, three, output / "global_step3") if not one.is_dir()] == [two]


def test_from_a_model_alone_no_training_resumes(tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "can-resume", model(tmp_path / "model"), "--stage", 3, cwd=tmp_path)
    assert (result.status, "it is a model, without the state of a training" in result.out) == (65, True)
    assert "name it to the script as its model" in result.out


def test_a_tag_that_nobody_asked_for_makes_no_problem_of_latest(saved: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    shutil.copytree(base / "global_step3", base / "best")
    result = zlaunch("checkpoint", "verify", base / "best", cwd=tmp_path)
    assert (result.status, "names" in result.out + result.err) == (0, False)


def test_the_newest_complete_tag_counts_and_not_a_half_written_one_that_latest_names(
    saved: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    shutil.copytree(base / "global_step3", base / "best")
    next((base / "global_step3").glob("*rank_1*")).write_bytes(b"PK")
    assert checkpoint_of(base).checkpoint.tag == "best"


def test_the_steps_taken_count_and_not_the_number_in_a_name_nor_a_conversion(
    saved: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    shutil.copytree(saved / "others" / "later", base / "best")
    shutil.copytree(base / "global_step3", base / "epoch7")
    assert checkpoint_of(base).checkpoint.tag == "best"
    assert zlaunch("checkpoint", "universal", base / "global_step3", cwd=tmp_path).status == 0
    shutil.rmtree(base / "best")
    shutil.rmtree(base / "epoch7")
    assert checkpoint_of(base).checkpoint.tag == "global_step3"


@pytest.mark.parametrize(
    ("latest", "said"), [(b"", "it is empty"), (b"\xff\xfe", "it is not text"), (None, None)]
)
def test_a_file_latest_that_names_nothing_is_a_problem(
    latest: bytes | None, said: str | None, saved: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    (base / "latest").unlink()
    if latest is not None:
        (base / "latest").write_bytes(latest)
    problems = list(wrong_latest([summarize(one) for one in find(base)]))
    assert [one.message.partition(",")[0] for one in problems] == ([] if said is None else [said])


def test_tags_beside_the_model_are_those_of_their_directory(saved: Path, tmp_path: Path) -> None:
    both = model(tmp_path / "out")
    shutil.copytree(saved / "zero2", both, dirs_exist_ok=True)
    assert checkpoint_parent(both) == both
    assert checkpoint_of(both).checkpoint.tag == "global_step3"
