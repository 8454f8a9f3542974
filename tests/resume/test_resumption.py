"""What a resumed script is told, and where it goes on in its data."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.checkpoint.trainers import trainers
from tests.each import each
from tests.resume.resuming import LOOP, TRAINER, planned, resumption
from zlaunch.rundir.layout import RunDir

pytestmark = pytest.mark.job


@each(
    ("argv", "seen", "skipped"),
    [
        ((), 5 * 2 * 8, 5 * 2 * 8),
        (("--per_device_train_batch_size", "4"), 5 * 2 * 8, 5 * 2 * 4),
        (("--gradient_accumulation_steps", "2"), 5 * 2 * 8, 5 * 2 * 16),
    ],
)
def test_what_is_seen_again_follows_from_both_batches(
    argv: tuple[str, ...], seen: int, skipped: int, saved: Path, tmp_path: Path
) -> None:
    import torch

    five = trainers(tmp_path / f"skips-{skipped}", 5, saved / "zero2")
    arguments = SimpleNamespace(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    torch.save(arguments, five / "training_args.bin")
    position = planned(five, TRAINER, 2, *argv).data_position
    assert position is not None
    assert (position.seen, position.skipped, position.ignores) == (seen, skipped, False)
    again = planned(five, TRAINER, 2, "--ignore_data_skip", *argv).data_position
    assert again is not None
    assert again.ignores


def test_a_script_that_loads_latest_gets_the_tag_that_was_chosen(saved: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    shutil.copytree(base / "global_step3", base / "best")
    run = RunDir(tmp_path)
    chosen = resumption(base / "best", LOOP)
    assert chosen.variables(run)["ZLAUNCH_RESUME"].value == str(run.resume)
    chosen.link(run)
    assert (run.resume / "latest").read_text() == "best"
    assert (run.resume / "best").resolve() == base / "best"
    assert (base / "latest").read_text() == "global_step3"
    reads_both = replace(LOOP, source=LOOP.source + 'os.environ["ZLAUNCH_RESUME_TAG"]')
    for other in (resumption(base / "global_step3", LOOP), resumption(base / "best", reads_both)):
        assert other.variables(run)["ZLAUNCH_RESUME"].value == str(base)
        assert not other.is_linked
