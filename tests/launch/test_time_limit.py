"""When a run must have ended, and who says so."""

import os
import time
from pathlib import Path

import pytest

from zlaunch.job.spec import OnPreempt, PreemptOptions
from zlaunch.launch.time_limit import TimeLimit, limit_words, scheduler_of, shields_ranks, time_limit

SLURM = {"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": "5000"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_the_users_limit_counts_from_the_start_and_goes_before_that_of_slurm() -> None:
    limit = time_limit(PreemptOptions(time_limit=600.0), SLURM, lambda: 1000.0)
    assert limit == TimeLimit(1600.0, "`--time-limit`", 600.0)


def test_the_limit_of_a_slurm_job_is_taken_from_its_environment() -> None:
    assert time_limit(PreemptOptions(), SLURM, lambda: 1000.0) == TimeLimit(
        5000.0, "the limit of Slurm job 12", 4000.0
    )


@pytest.mark.parametrize(("said", "known"), [("2026-11-24T23:30:00", True), ("NONE", False), ("", False)])
def test_an_older_slurm_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, known: bool
) -> None:
    (tmp_path / "squeue").write_text(
        f"#!/bin/sh\n[ \"$*\" = '--noheader --jobs=12 --format=%e' ] && echo '{said}'\n"
    )
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    limit = time_limit(PreemptOptions(), {"SLURM_JOB_ID": "12"}, lambda: 1000.0)
    ends = time.mktime(time.strptime("2026-11-24T23:30:00", "%Y-%m-%dT%H:%M:%S"))
    assert (limit and limit.ends) == (ends if known else None)


@pytest.mark.parametrize("limit", [None, 4000.0])
def test_the_time_that_a_user_leaves_for_saving_counts_whoever_set_the_limit(limit: float | None) -> None:
    found = time_limit(PreemptOptions(time_limit=limit, save_within=600.0), SLURM, lambda: 1000.0)
    assert found is not None
    assert found.lead(1.0) == 600.0


def test_without_a_limit_there_is_none() -> None:
    assert time_limit(PreemptOptions(), {}, lambda: 1000.0) is None


def test_time_to_save_is_kept_but_never_more_than_half() -> None:
    assert TimeLimit(0.0, "", 7200.0).lead(100.0, 2.0) == 171.0
    assert TimeLimit(0.0, "", 100.0).lead(100.0) == 50.0
    assert TimeLimit(0.0, "", 7200.0, 40.0).lead(100.0, 2.0) == 46.0


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "Slurm job 7"),
        (KUBERNETES, "Kubernetes"),
        ({**KUBERNETES, "SLURM_JOB_ID": ""}, "Kubernetes"),
    ],
)
def test_a_scheduler_is_known_by_its_variables(environ: dict[str, str], name: str | None) -> None:
    assert scheduler_of(environ) == name


@pytest.mark.parametrize(
    ("environ", "asked", "shields"),
    [
        ({}, None, False),
        ({}, "save", True),
        (SLURM, None, True),
        (SLURM, "stop", False),
        (KUBERNETES, None, False),
        ({**KUBERNETES, "SLURM_JOB_ID": ""}, None, False),
    ],
)
def test_ranks_are_shielded_from_a_sigterm_that_asks_to_save_and_that_they_get_too(
    environ: dict[str, str], asked: OnPreempt | None, shields: bool
) -> None:
    assert shields_ranks(PreemptOptions(on_preempt=asked), environ) == shields


def test_a_limit_promises_a_save_only_where_it_is_known_where_to_save() -> None:
    limit = TimeLimit(7200.0, "`--time-limit`", 7200.0)
    assert limit_words(limit, 30.0).startswith("saves and stops at ")
    said = limit_words(limit, None)
    assert said.startswith("ends by ")
    assert said.endswith("perhaps without a save: it is not known where the script saves")
