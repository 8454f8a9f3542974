"""Every way to die really happens: the exit status is true, nothing is left, and the run directory says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deaths.bed import HERE, Bed, Job
from tests.deaths.deaths import TABLE, Death

pytestmark = pytest.mark.job

SECONDS = 10.0
CASES = [
    pytest.param(death, launcher, id=f"{death.name}-{launcher}")
    for death in TABLE
    for launcher in death.launchers
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
    argv = ["train", str(HERE / f"{file}.py"), *options, "--", function, *bed.args]
    return Job(folder, [str(word) for word in argv], bed)


@pytest.mark.parametrize(("death", "launcher"), CASES)
def test_a_death_is_told_as_it_was(death: Death, launcher: str, tmp_path: Path) -> None:
    with job_of(death, launcher, tmp_path) as job:
        if death.harm is not None:
            job.await_ready(num_ranks=2)
            death.harm(job)
        status, left, seconds = job.await_end(SECONDS)
        ending, told = job.ending(), job.told()
    print(status, left, round(seconds, 1), ending.get("how"), ending.get("verdict"), told)
    verdict = ending.get("verdict") or {}
    assert (status, left) == (death.status, 0)
    assert (ending.get("how"), ending.get("exit_status"), verdict.get("code")) == (
        death.how,
        status,
        death.verdict,
    )
    assert verdict.get("rank") == death.rank or death.rank is None
    assert death.says in " ".join([verdict.get("cause", ""), *verdict.get("facts", ())])
    assert seconds <= SECONDS
