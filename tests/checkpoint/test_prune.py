import json
import shutil
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.running import zlaunch

pytestmark = pytest.mark.job


def save(folder: Path, source: Path, step: int, is_complete: bool = True) -> Path:
    checkpoint = trainers(folder, step, source)
    if not is_complete:
        next(checkpoint.glob("*/*rank_1*")).unlink()
    return checkpoint


def left(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_the_newest_complete_ones_stay_and_what_may_just_be_written(saved: Path, tmp_path: Path) -> None:
    for step, is_complete in ((100, True), (200, False), (300, True), (400, True), (500, False)):
        save(tmp_path / "out", saved / "zero2", step, is_complete)
    listed = zlaunch("checkpoint", "prune", "out", "--keep", "2", cwd=tmp_path)
    assert listed.status == 0
    assert "`--yes` deletes 2 checkpoints" in listed.err
    assert len(left(tmp_path / "out")) == 5
    pruned = zlaunch("checkpoint", "prune", "out", "--keep", "2", "--yes", cwd=tmp_path)
    assert pruned.out == listed.out
    assert left(tmp_path / "out") == ["checkpoint-300", "checkpoint-400", "checkpoint-500"]


def test_the_only_complete_one_stays(saved: Path, tmp_path: Path) -> None:
    save(tmp_path / "out", saved / "zero2", 100)
    save(tmp_path / "out", saved / "zero2", 200, is_complete=False)
    result = zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert "nothing to delete" in result.err
    assert left(tmp_path / "out") == ["checkpoint-100", "checkpoint-200"]


def test_nothing_is_deleted_where_nothing_is_complete(saved: Path, tmp_path: Path) -> None:
    save(tmp_path / "out", saved / "zero2", 100, is_complete=False)
    save(tmp_path / "out", saved / "zero2", 200, is_complete=False)
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert left(tmp_path / "out") == ["checkpoint-100", "checkpoint-200"]


def test_each_run_keeps_its_own_and_models_stay(saved: Path, tmp_path: Path) -> None:
    for run, step in (("a", 1), ("a", 2), ("b", 1)):
        save(tmp_path / "out" / run, saved / "zero2", step)
    (tmp_path / "out" / "model").mkdir()
    (tmp_path / "out" / "model" / "model.safetensors").touch()
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert [left(tmp_path / "out" / name) for name in ("a", "b")] == [["checkpoint-2"], ["checkpoint-1"]]
    assert left(tmp_path / "out") == ["a", "b", "model"]


def test_the_tag_that_latest_names_stays(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "zero2", tmp_path / "out"))
    shutil.copytree(saved / "others" / "later", folder / "global_step4")
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert {"global_step3", "global_step4"} <= set(left(folder))


def test_what_an_interrupted_deletion_left_is_deleted(saved: Path, tmp_path: Path) -> None:
    save(tmp_path / "out", saved / "zero2", 200)
    save(tmp_path / "out", saved / "zero2", 100).rename(tmp_path / "out" / ".checkpoint-100.77.deleted")
    said = "out/.checkpoint-100.77.deleted: left over from an interrupted deletion\n"
    assert zlaunch("checkpoint", "prune", "out", "--keep", "1", cwd=tmp_path).out == said
    assert len(left(tmp_path / "out")) == 2
    assert zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path).out == said
    assert left(tmp_path / "out") == ["checkpoint-200"]


def test_a_link_is_no_checkpoint_of_its_own_and_what_it_leads_to_stays(saved: Path, tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path / "out", saved / "zero2", step)
    (tmp_path / "out" / "best").symlink_to("checkpoint-100")
    (tmp_path / "out" / "step-900").symlink_to("checkpoint-300")
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert left(tmp_path / "out") == ["best", "checkpoint-100", "checkpoint-300", "step-900"]


def test_the_best_one_of_a_trainer_stays(saved: Path, tmp_path: Path) -> None:
    for step in (100, 200, 300):
        one = save(tmp_path / "out", saved / "zero2", step)
    state = {"global_step": 300, "best_model_checkpoint": "elsewhere/out/checkpoint-100"}
    (one / "trainer_state.json").write_text(json.dumps(state))
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert left(tmp_path / "out") == ["checkpoint-100", "checkpoint-300"]


def test_what_a_later_training_saves_in_the_same_directory_stays(saved: Path, tmp_path: Path) -> None:
    for step, is_complete in ((900, True), (1000, True), (100, True), (200, False)):
        save(tmp_path / "out", saved / "zero2", step, is_complete)
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert left(tmp_path / "out") == ["checkpoint-100", "checkpoint-1000", "checkpoint-200"]


def test_json_lists_what_is_deleted(saved: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path / "out", saved / "zero1", step)
    told = json.loads(zlaunch("checkpoint", "prune", "out", "--keep", "1", "--json", cwd=tmp_path).out)
    assert (told["deleted"], [one["step"] for one in told["checkpoints"]], told["interrupted"]) == (
        False,
        [1],
        [],
    )
