"""What the kernel counts for the witness of real swapping."""

import ctypes
import mmap
from pathlib import Path

from tests.estimate.rehearsal.drive import Drive, locked_bytes


def test_memory_that_is_locked_counts_until_it_is_unlocked() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    place = ctypes.addressof(held := ctypes.c_char.from_buffer(memory))
    before = locked_bytes()
    assert libc.mlock(ctypes.c_void_p(place), ctypes.c_size_t(len(memory))) == 0
    assert locked_bytes() == before + len(memory)
    assert libc.munlock(ctypes.c_void_p(place), ctypes.c_size_t(len(memory))) == 0
    assert locked_bytes() == before
    del held


def test_files_of_other_ranks_are_not_this_rank_s(tmp_path: Path) -> None:
    for rank, nbytes in ((0, 3), (1, 4)):
        for folder in (tmp_path / "params" / f"rank{rank}", tmp_path / "optimizer" / f"rank{rank}"):
            folder.mkdir(parents=True)
            (folder / "a.swp").write_bytes(bytes(nbytes))
    assert Drive(tmp_path, "1").bytes_in_files() == 8
