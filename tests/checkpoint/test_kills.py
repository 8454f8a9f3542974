"""Two real ranks, killed while they save; `python -m bench.save_kills` does this at random moments."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bench.save_kills import CASES, Host, kill, not_killed, one_kill, wait_until

pytestmark = pytest.mark.job

STAGE_2 = CASES["stage 2"]
SAVED = 3
"""The step that is saved when the ranks are killed."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    made = Host(*STAGE_2.needs)
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupts."""
    return not_killed(host, tmp_path_factory.mktemp("reference"), STAGE_2)


def begins(folder: Path) -> Callable[[], bool]:
    """Whether rank 1 has begun to write its part of the optimizer."""
    return lambda: any((folder / "saves" / f"global_step{SAVED}").glob("*_rank_1_*_optim_states.pt"))


def at_once(pids: Sequence[int], folder: Path) -> None:
    wait_until(begins(folder))
    for pid in pids:
        kill(pid)


def after_latest(pids: Sequence[int], folder: Path) -> None:
    """Kill rank 1, and rank 0 when it has named the checkpoint the latest one, for which it does not wait."""
    wait_until(begins(folder))
    kill(pids[1])
    latest = folder / "saves" / "latest"
    wait_until(lambda: latest.read_text() == f"global_step{SAVED}")
    kill(pids[0])


@pytest.mark.parametrize(
    ("attack", "latest"),
    [pytest.param(at_once, "complete", marks=pytest.mark.full), (after_latest, "half-written")],
)
def test_ranks_that_are_killed_during_a_save_resume_from_the_one_before_with_equal_losses(
    attack: Callable[[Sequence[int], Path], None], latest: str, host: Host, reference: Path, tmp_path: Path
) -> None:
    for attempt in range(5):  # on a busy machine a rank may have written its part before it is killed
        found = one_kill(host, tmp_path / str(attempt), STAGE_2, reference, attack)
        if found.problems:
            break
    assert (found.was_saving, [*found.problems]) == (True, [f"global_step{SAVED}"])
    assert (found.latest, found.resumed, found.statuses) == (latest, SAVED - 1, [0, 0])
    assert found.is_equal
