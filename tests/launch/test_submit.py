"""What is said of a submitted job while it is followed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from zlaunch.errors import Unavailable
from zlaunch.launch import submit
from zlaunch.launch.scheduler import JobStatus, Scheduler, SubmitRequest

REQUEST = SubmitRequest((), (), "job", Path())


class Told:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def submitted(self, job: str, cancel: str) -> None:
        self.said.append(f"{job}: {cancel}")

    def changed(self, before: JobStatus | None, state: JobStatus) -> None:
        self.said.append(f"{before and before.name} -> {state.name}")

    def output(self, chunk: bytes) -> None:
        self.said.append(chunk.decode())

    def unanswered(self, error: Unavailable) -> None:
        self.said.append(error.message)

    def ended(self, job: str, state: JobStatus) -> None:
        self.said.append(f"{job} ended")

    def left(self, job: str, cancel: str) -> None:
        self.said.append(f"{job} is left")


def follow(monkeypatch: pytest.MonkeyPatch, *answers: JobStatus | None) -> tuple[int, list[str]]:
    """Submit a job to a scheduler that gives these answers, and none where there is None."""
    monkeypatch.setattr(submit, "FIRST_SECONDS", 0.0)
    states: Iterator[JobStatus | None] = iter(answers)

    def look(_job: str, _request: SubmitRequest) -> JobStatus:
        if (state := next(states)) is None:
            raise Unavailable("no answer")
        return state

    scheduler = Scheduler(
        "A scheduler",
        SubmitRequest,
        lambda _: [],
        lambda _: "text",
        lambda text, _: f"job of {text}",
        look,
        lambda job, _: f"cancel {job}",
    )
    told = Told()
    return submit.submit(scheduler, REQUEST, told, detach=False), told.said


def test_a_scheduler_that_does_not_answer_for_a_while_has_not_changed_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, over = JobStatus("running"), JobStatus("failed", is_over=True, exit_status=7)
    status, said = follow(monkeypatch, running, None, running, over)
    assert said == [
        "job of text: cancel job of text",
        "None -> running",
        "no answer",
        "running -> failed",
        "job of text ended",
    ]
    assert status == 7


def test_the_output_of_a_job_is_passed_on_to_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("first\nlast")
    over = JobStatus("completed", is_over=True, exit_status=0, output=tmp_path / "log")
    status, said = follow(monkeypatch, JobStatus("pending"), over)
    assert (status, "".join(said[3:])) == (0, "first\nlastjob of text ended")


def test_a_job_that_ended_without_a_status_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(monkeypatch, JobStatus("unknown", is_over=True))[0] == 1
