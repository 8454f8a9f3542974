"""Checkpoints with files that can be read, and have something else in them than zlaunch knows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.resume.resuming import findings, planned
from tests.running import zlaunch
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.summary import summarize
from zlaunch.errors import Severity
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume
from zlaunch.resume.newest import newest_complete

pytestmark = pytest.mark.job


def of_another_layout(folder: Path) -> Path:
    """Write what an optimizer of a later DeepSpeed may have."""
    import torch

    for file in folder.rglob("*_optim_states.pt"):
        state = torch.load(file, weights_only=False)["optimizer_state_dict"]
        torch.save({"shards": state["single_partition_of_fp32_groups"]}, file)
    return folder


def without_zip(folder: Path) -> Path:
    """Write the model as torch before 1.6 did."""
    import torch

    (file,) = folder.rglob("mp_rank_00_model_states.pt")
    state = torch.load(file, weights_only=False)
    torch.save(state, file, _use_new_zipfile_serialization=False)
    return folder


@pytest.mark.parametrize("change", [of_another_layout, without_zip])
def test_a_file_of_an_unknown_layout_is_no_damage(
    change: Callable[[Path], Path], copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = change(copied("zero2"))
    found = summarize(checkpoint_at(folder))
    assert (found.problems, bool(found.unknown)) == ((), True)
    assert can_resume(found, ResumeTarget(ranks=2)).way is ResumeWay.UNKNOWN
    verified = zlaunch("checkpoint", "verify", folder, cwd=tmp_path)
    assert (verified.status, "global_step3: unknown layout" in verified.out) == (65, True)
    (members,) = json.loads(zlaunch("checkpoint", "list", folder, "--json", cwd=tmp_path).out)
    assert (members["complete"], members["problems"]) == (False, [])


def test_a_file_of_an_unknown_layout_that_is_damaged_too_is_a_problem(copied: Callable[[str], Path]) -> None:
    folder = of_another_layout(copied("zero2"))
    (file,) = folder.rglob("*rank_1*_optim_states.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (problem,) = summarize(checkpoint_at(folder)).problems
    assert (problem.file.name, "checksum" in problem.message) == (file.name, True)


def test_a_checkpoint_of_an_unknown_layout_is_not_deleted(saved: Path, tmp_path: Path) -> None:
    for step in (100, 200, 300):
        trainers(tmp_path / "out", step, saved / "zero2")
    of_another_layout(tmp_path / "out" / "checkpoint-100")
    zlaunch("checkpoint", "prune", "out", "--keep", "1", "--yes", cwd=tmp_path)
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["checkpoint-100", "checkpoint-300"]


def test_a_job_resumes_from_an_unknown_layout_with_a_warning(saved: Path, tmp_path: Path) -> None:
    trainers(tmp_path, 100, saved / "zero2")
    newest = of_another_layout(trainers(tmp_path, 200, saved / "zero2"))
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.checkpoint.folder == newest
    told = findings(planned(tmp_path))
    assert {one.severity for one in told} == {Severity.ADVICE}
    assert all("its layout is not known to zlaunch" in one.message for one in told)
