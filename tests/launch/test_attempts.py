"""What is said of the attempt after a failure."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import facts_of
from tests.resume.resuming import LOOP
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.summary import Summary
from zlaunch.cli.views.launch import LaunchView
from zlaunch.diagnosis.evidence import Evidence, RankEvidence
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.job.spec import JobSpec, RestartPolicy, RunOptions
from zlaunch.launch.attempts import _Attempt, _retries
from zlaunch.launch.finish import FinishedRun
from zlaunch.launch.make_plan import make_plan
from zlaunch.resume.handover import Resumption, checkpoint_handover
from zlaunch.rundir.layout import RunDir


def test_an_attempt_after_one_that_saved_nothing_begins_where_the_first_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("kept", "global_step3")
    checkpoint = CheckpointFolder(folder, SavedBy.ENGINE, folder)
    saved = Summary(checkpoint, 1, (), (), 3, 2, "bf16", has_optimizer=True, fits_all_stages=False)
    job = JobSpec(
        Path("train.py"), resume=str(folder), run_options=RunOptions(policy=RestartPolicy(max_restarts=1))
    )
    facts = facts_of(job, LOOP, layout=RunDir(tmp_path / "run"))
    facts = replace(facts, resumption=Resumption(saved, checkpoint_handover(LOOP)))
    lost = Outcome("failed", 137, -signal.SIGKILL, Verdict("rank-lost", "rank 0 was lost", rank=0))
    ended = FinishedRun(lost, Evidence(ranks=(RankEvidence(0, step=7),)))
    attempt = _Attempt(make_plan(facts), ended)
    ((following, lineage, note),) = _retries(facts, attempt, [attempt.failure], LaunchView())
    assert (following.resume, lineage.attempt, lineage.continues) == (str(folder), 2, "run")
    assert note.endswith(f"; resuming from {folder}, 4 steps lost")
