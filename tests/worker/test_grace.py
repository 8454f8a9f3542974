from itertools import pairwise

from zlaunch.worker import grace, reaper


def test_every_program_waits_longer_than_what_is_below_it() -> None:
    waits = (
        grace.SCRIPT_SECONDS,
        grace.HOSTS_SECONDS,
        grace.LAUNCHER_SECONDS,
        grace.JOB_SECONDS,
        reaper.GRACE_SECONDS,
        grace.LEADER_SECONDS,
    )
    assert all(below < above for below, above in pairwise(waits))
