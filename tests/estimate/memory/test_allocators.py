from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.estimate.memory.allocators import CachingAllocator, PinnedAllocator
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# What one request takes from an empty allocator: asked, allocated, reserved (CUDACachingAllocator.cpp:
# round_size, get_allocation_size, should_split).
FIRST_REQUESTS = [
    (0, 0, 0),
    (1, 512, 2 * MIB),
    (512, 512, 2 * MIB),
    (513, 1024, 2 * MIB),
    (MIB, MIB, 2 * MIB),
    (MIB + 1, MIB + 512, 20 * MIB),
    (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB, 10 * MIB),
    (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB is not worth splitting off
    (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    (100 * MIB, 100 * MIB, 100 * MIB),
    (100 * MIB + 3, 100 * MIB + 512, 102 * MIB),
]

requests = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 3 * MIB), st.integers(MIB - 600, MIB + 600), st.integers(1, 80 * MIB)),
        st.integers(0, 1),
        st.integers(0, 100),
    ),
    max_size=60,
)
"""What is asked for, on which stream, and which of the living is freed next (100: none)."""


def played(allocator: CachingAllocator, asked: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return what lives at the end: address and size."""
    living: list[tuple[int, int]] = []
    for nbytes, stream, victim in asked:
        before = allocator.allocated
        address = allocator.malloc(nbytes, stream)
        living.append((address, allocator.allocated - before))
        if victim < 100:
            allocator.free(living.pop(victim % len(living))[0])
    return living


@each(("asked", "allocated", "reserved"), FIRST_REQUESTS)
def test_a_first_request_takes_what_torch_takes(asked: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_requests_share_a_segment() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.malloc(512 * KIB)
    assert allocator.reserved == 2 * MIB
    allocator.malloc(1)
    assert allocator.reserved == 4 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    addresses = [allocator.malloc(size * MIB) for size in (30, 12, 20)]
    for address in addresses:
        allocator.free(address)
    assert [allocator.malloc(size * MIB) for size in (11, 19, 21)] == [
        addresses[1],
        addresses[2],
        addresses[0],
    ]


def test_of_equal_blocks_the_first_address_is_taken() -> None:
    allocator = CachingAllocator()
    addresses = [allocator.malloc(16 * MIB) for _ in range(3)]
    for address in reversed(addresses):
        allocator.free(address)
    assert allocator.malloc(16 * MIB) == addresses[0]


def test_a_large_block_is_not_given_to_a_small_request() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(64 * MIB))
    allocator.malloc(4 * KIB)
    assert allocator.reserved == 66 * MIB


def test_a_block_is_not_given_to_another_stream() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(64 * MIB, stream=0))
    allocator.malloc(64 * MIB, stream=1)
    assert allocator.reserved == 128 * MIB


def test_free_neighbours_become_one_block() -> None:
    allocator = CachingAllocator()
    parts = [allocator.malloc(4 * MIB) for _ in range(5)]
    for part in (parts[1], parts[3], parts[2]):
        allocator.free(part)
    assert allocator.malloc(12 * MIB) == parts[1]
    assert allocator.reserved == 20 * MIB


def test_a_hole_between_two_that_live_cannot_take_more_than_it_is() -> None:
    allocator = CachingAllocator()
    parts = [allocator.malloc(4 * MIB) for _ in range(5)]
    allocator.free(parts[1])
    allocator.free(parts[3])
    allocator.malloc(8 * MIB)
    assert allocator.reserved == 40 * MIB


def test_emptying_the_cache_keeps_a_segment_of_which_a_part_lives() -> None:
    allocator = CachingAllocator()
    kept = allocator.malloc(4 * MIB)
    allocator.free(allocator.malloc(4 * MIB))
    allocator.free(allocator.malloc(50 * MIB))
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_freeing_twice_is_an_error() -> None:
    allocator = CachingAllocator()
    address = allocator.malloc(1)
    allocator.free(address)
    with pytest.raises(KeyError):
        allocator.free(address)


@given(requests)
def test_what_lives_never_overlaps(asked: list[tuple[int, int, int]]) -> None:
    living = sorted(played(CachingAllocator(), asked))
    assert all(low + size <= high for (low, size), (high, _) in pairwise(living))


@given(requests)
def test_the_counts_are_those_of_what_lives(asked: list[tuple[int, int, int]]) -> None:
    allocator = CachingAllocator()
    living = played(allocator, asked)
    assert allocator.allocated == sum(size for _, size in living)
    assert allocator.allocated <= allocator.reserved


@given(requests)
def test_freeing_everything_leaves_whole_segments(asked: list[tuple[int, int, int]]) -> None:
    allocator = CachingAllocator()
    for address, _ in played(allocator, asked):
        allocator.free(address)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


@given(requests)
def test_the_same_requests_are_served_the_same_way(asked: list[tuple[int, int, int]]) -> None:
    assert played(CachingAllocator(), asked) == played(CachingAllocator(), asked)


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


def test_each_phase_has_the_parts_that_it_held_at_its_own_peak() -> None:
    log = AllocationLog()
    with log.in_phase("load"):
        log.allocate("gpu", "parameters", 2 * MIB)
    with log.in_phase("forward"):
        activations = log.allocate("gpu", "activations", 4 * MIB)
    with log.in_phase("step"):
        log.free(activations)
        log.allocate("gpu", "optimizer step", 2 * MIB)
    assert {phase.name: phase.parts["gpu"] for phase in log.phases()} == {
        "load": {"parameters": 2 * MIB},
        "forward": {"activations": 4 * MIB, "parameters": 2 * MIB},
        "step": {"activations": 4 * MIB, "parameters": 2 * MIB},  # before any of it is freed
    }


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 9 * MIB), st.booleans()),
        max_size=40,
    )
)
def test_the_parts_of_each_phase_add_up_to_its_peak(asked: list[tuple[str, str, int, bool]]) -> None:
    log = AllocationLog()
    for phase, category, nbytes, freed in asked:
        with log.in_phase(phase):
            block = log.allocate("gpu", category, nbytes)
            if freed:
                log.free(block)
    for one in log.phases():
        assert {pool: sum(parts.values()) for pool, parts in one.parts.items()} == one.peak


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


def test_a_block_of_another_stream_is_reused_one_allocation_later() -> None:
    allocator = CachingAllocator()
    size = 16 << 20
    prefetched = allocator.malloc(size, stream=1)
    allocator.record_stream(prefetched, stream=0)
    allocator.free(prefetched)
    assert allocator.allocated == 0
    assert allocator.malloc(size, stream=1) != prefetched
    assert allocator.malloc(size, stream=1) == prefetched


def test_a_block_is_reused_at_once_if_only_its_own_stream_worked_on_it() -> None:
    allocator = CachingAllocator()
    address = allocator.malloc(16 << 20, stream=1)
    allocator.record_stream(address, stream=1)
    allocator.free(address)
    assert allocator.malloc(16 << 20, stream=1) == address
