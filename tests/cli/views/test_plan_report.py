"""What a plan says, over answers that are made up."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import answer, forecast, question
from zlaunch.cli.views.plan_report import (
    _Candidates,
    _considered,
    _write_config,
    plan_rows,
    show_nothing,
    stages_on_one_gpu,
)
from zlaunch.errors import Finding, Refused
from zlaunch.estimate.candidates import Candidate, candidates
from zlaunch.estimate.query import Estimate, Rejected
from zlaunch.estimate.search import NothingFits, SearchResult
from zlaunch.estimate.strategies import STRATEGIES
from zlaunch.estimate.workload import Lora


def chosen(micro: int) -> Candidate:
    listed = candidates(question(), 8)
    return next(one for one in listed if one.strategy == STRATEGIES[2] and one.micro_batch == micro)


def sized(one: Candidate, gib: float, seconds: float, **changes: object) -> tuple[Candidate, Estimate]:
    return one, answer(one.query, replace(forecast(gib), **changes), seconds)  # type: ignore[arg-type]


def test_a_plan_names_what_is_faster_and_may_not_fit_but_nothing_slower() -> None:
    listed = reversed(candidates(question(), 8))  # so that the one without checkpointing is kept
    by_strategy = {one.strategy: one for one in listed if one.micro_batch == 8}
    close = [sized(by_strategy[STRATEGIES[number]], 77.0, 0.5) for number in (0, 1)]
    slower = [sized(by_strategy[STRATEGIES[3]], 77.0, 2.0)]
    large = [sized(by_strategy[STRATEGIES[4]], 500.0, 1.0)]
    own = sized(chosen(4), 10.0, 1.0)
    rows = [
        (options, step, why)
        for _, step, why, options in _considered(SearchResult(*own, (*close, *slower, *large, own), (), None))
    ]
    assert rows == [
        ("--stage 2 --micro-batch 4", "about 1.0 s", "chosen"),
        ("--stage 0 --micro-batch 8", "about 0.50 s", "may not fit"),
        ("--stage 1 --micro-batch 8", "about 0.50 s", "may not fit"),
        ("--stage 2 --offload cpu --micro-batch 8", "about 1.0 s", "too large"),
    ]


def test_a_candidate_that_fits_and_is_slower_stays_in_the_table() -> None:
    other = next(one for one in candidates(question(), 8) if one.strategy == STRATEGIES[4])
    own, slower = sized(chosen(4), 10.0, 1.0), sized(other, 16.5, 1.5)
    rows = list(_considered(SearchResult(*own, (own, slower), (), (other, 1.5))))
    assert [row[1:] for row in rows[1:]] == [("about 1.5 s", "50% slower", str(other.options))]


def test_rows_on_a_terminal_name_candidates_as_the_final_table_does() -> None:
    listed = candidates(question(), 8)
    tried = [sized(one, 77.0, 0.5) for one in listed if one.strategy in STRATEGIES[:5]]
    for one, estimate in tried:
        row = " ".join(" ".join(_Candidates()({0: estimate})[1:]).split())
        assert row.endswith(f"may not fit {one.options}")


def test_a_plan_for_gpus_of_unknown_speed_says_that_it_is_not_the_fastest() -> None:
    one = chosen(4)
    gpu = one.query.cluster.gpu
    assert gpu is not None
    unknown = replace(one.query, cluster=replace(one.query.cluster, gpu=replace(gpu, half_flops=0.0)))
    own = (replace(one, query=unknown), answer(unknown, forecast(10.0)))
    said = dict(plan_rows(SearchResult(*own, (own,), (), None)))["step"]
    assert "not the fastest; name the GPU" in said


def test_on_one_gpu_a_plan_says_that_no_stage_partitions_anything() -> None:
    query = question()
    alone = replace(query, cluster=replace(query.cluster, num_hosts=1, ranks_per_host=1))
    lower, higher = (
        next(one for one in candidates(alone, 8) if one.strategy == STRATEGIES[number]) for number in (0, 3)
    )
    close, own = sized(lower, 75.0, 0.5, phases=forecast(75.0, 77.0).phases), sized(higher, 74.0, 0.5)
    said = " ".join(" ".join(stages_on_one_gpu(SearchResult(*own, (close, own), (), None))).split())
    assert "`--stage 3` takes 74.0 GiB for tensors and 0 GiB more" in said
    assert "`--stage 0` takes 75.0 GiB for tensors and 2.0 GiB more" in said


def test_where_nothing_fits_a_plan_counts_what_was_rehearsed_and_names_what_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = chosen(1)
    late = (Finding("no-lamb", "why not"),)
    remarked = replace(one.query, remarks=(Finding("own-remark", "what was remarked"),))
    smallest = (
        sized(replace(one, query=remarked), 500.0, 1.0),
        sized(one, 900.0, 1.0, method="closed form"),
    )
    show_nothing(NothingFits(smallest, ((STRATEGIES[3], Rejected(Refused(late))),)), one.query)
    said = " ".join(capsys.readouterr().err.split())
    assert "combinations of stage and offload tried: 1 rehearsed, 1 by the closed form" in said
    assert "`--stage 3` cannot work: why not" in said
    assert "what was remarked" in said


def test_the_command_that_a_plan_ends_with_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = sized(chosen(1), 10.0, 1.0)
    _write_config(SearchResult(*own, (own,), (), None), tmp_path / "my $plan's.json")
    written = (tmp_path / "my $plan's.json").exists()
    command = capsys.readouterr().err.splitlines()[-1]
    assert written
    assert Path(shlex.split(command)[4]).resolve() == tmp_path / "my $plan's.json"


def test_the_command_that_a_plan_ends_with_trains_in_the_environment_that_was_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = chosen(1)
    query = replace(one.query, job=replace(one.query.job, python=Path("/my env/bin/python")))
    own = sized(replace(one, query=query), 10.0, 1.0)
    _write_config(SearchResult(*own, (own,), (), None), tmp_path / "ds.json")
    assert "--python '/my env/bin/python'" in capsys.readouterr().err


def test_adapters_that_a_plan_counts_on_are_said_to_be_those_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = chosen(1)
    query = replace(one.query, training=replace(one.query.training, lora=Lora(16), frozen="^visual"))
    own = sized(replace(one, query=query), 10.0, 1.0)
    _write_config(SearchResult(*own, (own,), (), None), tmp_path / "ds.json")
    said = " ".join(capsys.readouterr().err.split())
    assert "SCRIPT itself has to train LoRA adapters of rank 16" in said
    assert "SCRIPT itself has to freeze the parameters that match ^visual" in said
