"""What can be loaded where: the rules, compared with DeepSpeed's engine."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.ranks import run_ranks
from tests.checkpoint.save import ENGINES
from tests.running import ROOT, zlaunch
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.resume import ResumeTarget, ResumeWay, can_resume, newest_to_resume
from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.universal import make_universal
from zlaunch.errors import Refused, WrongUsage

pytestmark = pytest.mark.job

NAMES = ("zero0-bf16", "zero1", "zero2", "zero2-fp32", "zero3")
"""Engines with the same optimizer: another class may have states of another form."""
CONVERTED = ("zero2", "zero2-fp32", "zero3")


def load(ranks: int, pairs: list[str], folder: Path) -> dict[str, Any]:
    out = folder / f"told-{ranks}.json"
    run_ranks(ranks, "tests.checkpoint.load", out, *pairs)
    told: dict[str, Any] = json.loads(out.read_text())
    return told


@pytest.fixture(scope="module")
def bed(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the checkpoints, some of them with a universal one beside them."""
    folder = tmp_path_factory.mktemp("bed")
    for name in NAMES:
        shutil.copytree(saved / name, folder / name)
    for name in CONVERTED:
        assert zlaunch("checkpoint", "universal", name, cwd=folder).status == 0
    return folder


@pytest.fixture(scope="module")
def answers(bed: Path) -> dict[tuple[str, str, int], Any]:
    """What DeepSpeed says: name of the checkpoint, of the engine, and ranks → the next loss, or the error."""
    found = {}
    for ranks in (1, 2):
        pairs = [f"{bed / saved}:{name}" for saved, name in itertools.product(NAMES, NAMES)]
        pairs += [f"{bed / saved}:{name}+universal" for saved, name in itertools.product(CONVERTED, NAMES)]
        for pair, answer in load(ranks, pairs, bed).items():
            folder, _, name = pair.rpartition(":")
            found[Path(folder).name, name, ranks] = answer
    return found


def asked(folder: Path, name: str, ranks: int) -> ResumeWay:
    config = ENGINES[name]
    target = ResumeTarget(ranks, config["zero_optimization"]["stage"], "bf16" in config)
    return can_resume(summarize(checkpoint_at(folder)), target).way


def test_what_is_said_to_load_as_it_is_does_and_nothing_else(
    bed: Path, saved: Path, answers: dict[tuple[str, str, int], Any]
) -> None:
    pairs = list(itertools.product(NAMES, NAMES, (1, 2)))
    real = {pair: isinstance(answers[pair], float) for pair in pairs}
    ours = {(name, into, ranks): asked(saved / name, into, ranks) for name, into, ranks in pairs}
    # A frozen parameter of stage 0 in another precision is not converted; that is no matter of its files.
    assert {pair: answers[pair] for pair in pairs if (ours[pair] is ResumeWay.AS_IT_IS) != real[pair]} == {}


def test_what_is_said_to_load_once_it_is_universal_does_and_only_weights_are_left_of_the_rest(
    saved: Path, answers: dict[tuple[str, str, int], Any]
) -> None:
    for name, into, ranks in itertools.product(CONVERTED, NAMES, (1, 2)):
        way, answer = asked(saved / name, into, ranks), answers[name, f"{into}+universal", ranks]
        assert isinstance(answer, float) == (way is not ResumeWay.WEIGHTS), (name, into, ranks, answer)


def test_the_next_loss_is_the_same_on_other_ranks(answers: dict[tuple[str, str, int], Any]) -> None:
    for name in CONVERTED:
        as_it_was = answers[name, name, 2]
        assert answers[name, f"{name}+universal", 1] == pytest.approx(as_it_was, rel=1e-2)
        assert answers[name, f"{name}+universal", 2] == as_it_was


def trainers(output: Path, step: int, source: Path) -> Path:
    """A checkpoint as a Trainer writes it; the state that it trains on from is that of the source."""
    checkpoint = Path(shutil.copytree(source, output / f"checkpoint-{step}"))
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoint


def test_the_newest_checkpoint_that_is_complete_and_fits_is_found(saved: Path, tmp_path: Path) -> None:
    nine, ten = (trainers(tmp_path, step, saved / "zero2") for step in (9, 10))
    trainers(tmp_path, 11, saved / "zero3")
    (trainers(tmp_path, 12, saved / "zero2") / "latest").unlink()
    (tmp_path / "checkpoint-best").mkdir()
    target = ResumeTarget(2, 2)
    assert newest_to_resume(tmp_path, target) == ten
    next(ten.glob("*/*rank_1*")).write_bytes(b"PK")
    assert newest_to_resume(tmp_path, target) == nine
    assert newest_to_resume(tmp_path, ResumeTarget(4, 2)) is None
    assert newest_to_resume(tmp_path / "none", target) is None


def test_the_command_says_what_to_do(saved: Path, tmp_path: Path) -> None:
    folder = saved / "zero2"
    assert zlaunch("checkpoint", "can-resume", folder, cwd=tmp_path).status == 0
    other = zlaunch("checkpoint", "can-resume", folder, "--ranks", "4", cwd=tmp_path)
    assert other.status == 65
    assert "its optimizer is cut for 2 ranks, not for 4" in other.out
    assert "zlaunch checkpoint universal" in other.out
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    stage = zlaunch("checkpoint", "can-resume", folder, "--ds-config", "ds.json", "--json", cwd=tmp_path)
    assert json.loads(stage.out)["way"] == "weights"


def test_a_conversion_that_fails_leaves_nothing(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero1", tmp_path / "zero1"))
    before = sorted(folder.rglob("*"))
    broken = tmp_path / "packages" / "deepspeed"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('this package is broken')\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(broken.parent), str(ROOT)])}
    result = zlaunch("checkpoint", "universal", folder, cwd=tmp_path, env=environment)
    assert result.status == 69
    assert "conversion failed: OSError: this package is broken" in result.err
    assert sorted(folder.rglob("*")) == before


def test_a_damaged_checkpoint_is_not_converted(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero1", tmp_path / "zero1"))
    next(folder.glob("*/*rank_1*")).unlink()
    with pytest.raises(Refused):
        make_universal(checkpoint_at(folder), None, lambda: None)


def test_what_needs_no_conversion_is_said_to_need_none(bed: Path) -> None:
    with pytest.raises(WrongUsage, match="stage 0, which any number of ranks can load"):
        make_universal(checkpoint_at(bed / "zero0-bf16"), None, lambda: None)
    with pytest.raises(WrongUsage, match="universal already"):
        make_universal(checkpoint_at(bed / "zero2" / "global_step3_universal"), None, lambda: None)


def test_a_universal_checkpoint_is_exported_with_what_was_not_trained(bed: Path, tmp_path: Path) -> None:
    from tests.checkpoint.test_export import exported

    as_it_was = exported(bed / "zero2" / "global_step3", tmp_path / "a", "float32")
    converted = exported(bed / "zero2" / "global_step3_universal", tmp_path / "b", "float32")
    assert converted.keys() == as_it_was.keys()
    assert {name for name, one in as_it_was.items() if not one.equal(converted[name])} == set()
