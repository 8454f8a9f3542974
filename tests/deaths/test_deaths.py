"""Every way to die really happens: the exit status is true, nothing is left, and the run directory says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deaths.bed import HERE, Bed, Job
from tests.deaths.deaths import TABLE, Death
from tests.deaths.page import record
from tests.launchers import taken

pytestmark = [pytest.mark.job, pytest.mark.timeout(1200)]

REACHED_FIRST = {death.verdict: death for death in reversed(TABLE)}
"""Each verdict, and the death that `make test` dies of."""

CASES = [
    pytest.param(
        death,
        launcher,
        id=f"{death.name}-{launcher}",
        marks=() if REACHED_FIRST[death.verdict] is death else pytest.mark.full,
    )
    for number, death in enumerate(TABLE)
    for launcher in taken(death.launchers, number)
]


@contextmanager
def job_of(death: Death, launcher: str, folder: Path) -> Iterator[Job]:
    with death.around(folder) as bed:
        job = start(death, launcher, folder, bed)
        try:
            yield job
        finally:
            job.end()


def start(death: Death, launcher: str, folder: Path, bed: Bed) -> Job:
    file, _, function = death.script.partition(".")
    where = () if "--run-dir" in bed.options else ("--run-dir", folder / "r")
    options = ("--launcher", launcher, *death.options, *where, *bed.options)
    argv = ["train", str(HERE / f"{file}.py"), "--no-ask", *options, "--", function, *bed.args]
    return Job(folder, [str(word) for word in argv], bed)


@pytest.mark.parametrize(("death", "launcher"), CASES)
def test_a_death_is_told_as_it_was(death: Death, launcher: str, tmp_path: Path) -> None:
    with job_of(death, launcher, tmp_path) as job:
        if death.harm is not None:
            job.await_ready(num_ranks=2)
            death.harm(job)
        status, left, seconds = job.await_end(death.within)
        ending, said, told, printed = job.ending(), job.said(), job.told(), job.printed()
    verdict = ending.get("verdict") or {}
    words = " ".join([verdict.get("cause", ""), *verdict.get("facts", ())])
    assert (status, left) == (death.status, 0), told
    assert (ending.get("how"), ending.get("exit_status")) == (death.how, status), told
    assert (verdict.get("code"), death.rank in (None, verdict.get("rank"))) == (death.verdict, True), told
    assert (ending.get("stall") is not None) == (death.how == "stalled")
    assert death.says in words
    own, _, of_the_script = said.partition("the exception of rank ")
    assert "Traceback" not in own
    assert str(HERE) in of_the_script or not of_the_script
    assert all(death.prints in text for text in printed)
    assert seconds <= death.within
    record(death, launcher, seconds)
