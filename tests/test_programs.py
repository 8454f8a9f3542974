"""The table of programs of other projects: how their results are read and shown."""

import os
from pathlib import Path

from tools.programs.program import Program, Way
from tools.programs.report import page, summary
from tools.programs.run import Result, _bare_command, _read_observations, _zlaunch_command, job_row
from tools.programs.table import PROGRAMS, TRANSFORMERS


def results(**of_one: Result) -> dict[str, Result]:
    """Return results in which each program trains, but for the first way of the first program."""
    trained = Result(
        "", 0, 1.0, stages=[2], losses=[4.0, 3.0, 2.0, 1.0], job="ZeRO stage 2, nothing offloaded, bf16"
    )
    found = {
        f"{one.key(way)} {side}": trained
        for one in PROGRAMS
        for way in one.ways
        for side in ("bare", "zlaunch")
    }
    first = PROGRAMS[0]
    return found | {f"{first.key(first.ways[0])} {side}": result for side, result in of_one.items()}


def test_a_row_shows_both_launchers_and_what_was_announced() -> None:
    ddp = Result("", 0, 1.0, is_ddp=True, losses=[2.0, 1.0])
    row = next(line for line in page(results(bare=ddp)).splitlines() if line.startswith("| run_clm |"))
    assert (
        row
        == "| run_clm | torchrun | unchanged | 0 | 2 → 1 | DDP | 0 | 4 → 1 | ZeRO 2 | ZeRO stage 2, bf16 |"
    )


def test_a_program_that_fails_only_under_zlaunch_is_named() -> None:
    assert "only without zlaunch: none; only with it: none." in summary(results())
    failed = summary(results(zlaunch=Result("", 69, 1.0)))
    assert "only without zlaunch: transformers: run_clm (torchrun, unchanged);" in failed


def test_a_loss_that_does_not_fall_is_no_training() -> None:
    assert not Result("", 0, 1.0, losses=[1.0, 2.0]).is_training
    assert not Result("", 1, 1.0, losses=[2.0, 1.0]).is_training


def test_each_way_of_each_program_has_a_key_of_its_own() -> None:
    keys = [program.key(way) for program in PROGRAMS for way in program.ways]
    assert len(set(keys)) == len(keys)


def test_zlaunch_gets_the_options_of_a_way_in_place_of_the_arguments_of_the_bare_launcher() -> None:
    way = Way("deepspeed", "--deepspeed file.json", options="--stage 3", zlaunch="")
    program = Program("p", TRANSFORMERS, "examples/train.py", "--lr 1", (way,))
    assert _bare_command(program, way) == "deepspeed --num_gpus 2 train.py --lr 1 --deepspeed file.json"
    assert (
        _zlaunch_command(program, way)
        == "zlaunch train --gpus 2 --launcher deepspeed --stage 3 train.py -- --lr 1"
    )


def test_observations_of_both_ranks_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank-0-7.jsonl").write_text('{"stage": 1, "world": 2, "precision": "bf16"}\n{"loss": 3.0}\n')
    (tmp_path / "rank-1-8.jsonl").write_text('{"loss": 2.0}\n')
    result = Result("", 0, 1.0)
    _read_observations(tmp_path, result)
    assert (result.stages, result.world, result.losses, result.others) == ([1], 2, [3.0], [2.0])


def test_observations_of_a_process_that_was_asked_do_not_count(tmp_path: Path) -> None:
    for pid, seconds in ((9, 1), (8, 2)):
        (tmp_path / f"rank-0-{pid}.jsonl").write_text(f'{{"loss": {pid}}}\n')
        os.utime(tmp_path / f"rank-0-{pid}.jsonl", (seconds, seconds))
    result = Result("", 0, 1.0)
    _read_observations(tmp_path, result)
    assert result.losses == [8]


def test_what_zlaunch_announces_is_read_from_all_lines_of_its_row() -> None:
    plan = ["job     the ds_config of the script itself:", "        ZeRO stage 1", "script  train.py"]
    assert job_row(plan) == "the ds_config of the script itself: ZeRO stage 1"
    assert not job_row(["error: no"])
