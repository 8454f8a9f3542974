from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.estimate.memory.pinned_allocator import PinnedAllocator
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog

GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "locked"), [(0, 0), (1, 1), (2, 2), (3, 4), (5 * GIB, 8 * GIB), (8 * GIB, 8 * GIB)]
)
def test_a_request_is_rounded_up_to_a_power_of_two(asked: int, locked: int) -> None:
    assert PinnedAllocator().malloc(asked) == locked


def test_a_freed_block_serves_one_request_of_its_rounded_size() -> None:
    host = PinnedAllocator()
    host.malloc(5 * GIB)
    host.free(5 * GIB)
    assert [host.malloc(7 * GIB), host.malloc(7 * GIB)] == [0, 8 * GIB]


def test_a_freed_block_serves_no_other_size() -> None:
    host = PinnedAllocator()
    host.malloc(8 * GIB)
    host.free(8 * GIB)
    assert host.malloc(3 * GIB) == 4 * GIB


def test_the_buffers_of_aio_are_neither_rounded_nor_kept() -> None:
    log = AllocationLog()
    log.free(log.allocate("locked", "swap buffers", 5 * GIB))
    assert log.entries == [("pinned", "swap buffers", size) for size in (5 * GIB, -5 * GIB)]


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.booleans()), max_size=50))
def test_what_is_locked_holds_what_lives_and_is_less_than_twice_what_was_asked(
    asked: list[tuple[int, bool]],
) -> None:
    host, live = PinnedAllocator(), Counter[int]()
    locked = total = 0
    for nbytes, freed in asked:
        locked += host.malloc(nbytes)
        total, live[nbytes] = total + nbytes, live[nbytes] + 1
        assert sum(size * number for size, number in live.items()) <= locked < 2 * total
        if freed:
            host.free(nbytes)
            live[nbytes] -= 1
