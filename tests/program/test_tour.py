from pathlib import Path

from tests.running import zlaunch


def test_a_tour_on_more_ranks_than_cores_is_refused_with_the_number_that_works(tmp_path: Path) -> None:
    result = zlaunch("tour", "--ranks", 1000, cwd=tmp_path)
    assert result.status == 69
    assert "`--ranks 1000`: this machine has no GPU, and" in result.err
    assert "hint: `--ranks" in result.err
    assert not any(tmp_path.iterdir())


def test_a_tour_does_not_overwrite_another(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tour.json").write_text("{}")
    result = zlaunch("tour", "--out", "mine", cwd=tmp_path)
    assert result.status == 69
    assert "`mine/tour.json` already exists" in result.err
    assert "--out DIR" in result.err


def test_a_drive_is_for_the_comparison_of_losses_only(tmp_path: Path) -> None:
    result = zlaunch("tour", "--nvme", ".", cwd=tmp_path)
    assert result.status == 2
    assert "`--nvme` is for `--parity`" in result.err


def test_losses_are_compared_in_fp32_only(tmp_path: Path) -> None:
    result = zlaunch("tour", "--parity", "--precision", "bf16", cwd=tmp_path)
    assert result.status == 2
    assert "`--parity` compares losses in fp32" in result.err


def test_a_tour_is_not_taken_by_each_of_several(tmp_path: Path) -> None:
    member = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    result = zlaunch("tour", cwd=tmp_path, env=member)
    assert result.status == 2
    assert "`zlaunch tour` runs on one machine, but zlaunch was started as one of 2" in result.err
