import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.estimate.memory.pinned_allocator import PinnedAllocator

GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "locked"), [(0, 0), (1, 1), (2, 2), (3, 4), (5 * GIB, 8 * GIB), (8 * GIB, 8 * GIB)]
)
def test_a_request_is_rounded_up_to_a_power_of_two(asked: int, locked: int) -> None:
    host = PinnedAllocator()
    host.malloc(asked)
    assert (host.live, host.reserved) == (asked, locked)


def test_a_freed_block_serves_the_next_request_of_its_rounded_size() -> None:
    host = PinnedAllocator()
    host.free(host.malloc(5 * GIB))
    host.malloc(7 * GIB)
    assert (host.live, host.reserved) == (7 * GIB, 8 * GIB)


def test_a_freed_block_serves_no_other_size() -> None:
    host = PinnedAllocator()
    host.free(host.malloc(8 * GIB))
    host.malloc(3 * GIB)
    assert host.reserved == 12 * GIB


def test_the_buffers_of_aio_are_neither_rounded_nor_kept() -> None:
    host = PinnedAllocator()
    handle = host.malloc_exact(5 * GIB)
    assert host.reserved == 5 * GIB
    host.free(handle)
    assert (host.live, host.reserved, host.peak_reserved) == (0, 0, 5 * GIB)


def test_a_threshold_ends_the_rounding() -> None:
    host = PinnedAllocator(max_round_bytes=GIB)
    host.malloc(5 * GIB)
    host.malloc(GIB - 1)
    assert host.reserved == 6 * GIB


def test_freeing_twice_is_an_error() -> None:
    host = PinnedAllocator()
    handle = host.malloc(1)
    host.free(handle)
    with pytest.raises(KeyError):
        host.free(handle)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.booleans(), st.booleans()), max_size=50))
def test_less_than_twice_what_ever_lived_at_once_in_each_size_is_locked(
    asked: list[tuple[int, bool, bool]],
) -> None:
    host = PinnedAllocator()
    total = 0
    for nbytes, exact, freed in asked:
        handle = host.malloc_exact(nbytes) if exact else host.malloc(nbytes)
        total += nbytes
        assert host.live <= host.reserved <= 2 * total
        if freed:
            host.free(handle)
    assert host.peak_reserved >= host.peak_live
