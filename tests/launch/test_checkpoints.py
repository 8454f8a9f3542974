import json
import zipfile
from pathlib import Path

import pytest

from zlaunch.launch.checkpoints import is_whole, newest_whole


def checkpoint(folder: Path, step: int, ranks: int = 2) -> Path:
    path = folder / f"checkpoint-{step}"
    states = path / f"global_step{step}"
    states.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (path / "latest").write_text(states.name)
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks)]
    for name in (*names, "mp_rank_00_model_states.pt"):
        with zipfile.ZipFile(states / name, "w") as archive:
            archive.writestr("data.pkl", b"states" * 1000)
    return path


def cut(path: Path) -> None:
    (file,) = path.glob("global_step*/*rank_1_mp*")
    file.write_bytes(file.read_bytes()[:-30])


def lose_a_rank(path: Path) -> None:
    (file,) = path.glob("global_step*/*rank_1_mp*")
    file.unlink()


def lose_the_state(path: Path) -> None:
    (path / "trainer_state.json").unlink()


def lose_latest(path: Path) -> None:
    (path / "latest").unlink()


def half_a_state(path: Path) -> None:
    (path / "trainer_state.json").write_text('{"global_st')


def lose_the_model(path: Path) -> None:
    (file,) = path.glob("global_step*/*model_states*")
    file.unlink()


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 100)
    assert newest_whole(tmp_path, 2, 2) == newest


@pytest.mark.parametrize(
    "harm", [cut, lose_a_rank, lose_the_state, lose_latest, half_a_state, lose_the_model]
)
def test_a_checkpoint_that_something_is_missing_from_is_passed_over(harm: object, tmp_path: Path) -> None:
    assert callable(harm)
    older = checkpoint(tmp_path, 9)
    harm(checkpoint(tmp_path, 100))
    assert newest_whole(tmp_path, 2, 2) == older


def test_a_checkpoint_of_another_number_of_ranks_is_passed_over(tmp_path: Path) -> None:
    assert not is_whole(checkpoint(tmp_path, 9, ranks=4), 2, 2)


def test_where_there_is_no_checkpoint_none_is_found(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "none", 2, 2) is None


def test_without_zero_the_optimizer_may_be_in_the_models_file(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 9, ranks=0)
    assert is_whole(path, 2, 0)
    assert not is_whole(path, 2, 1)
