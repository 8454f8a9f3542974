"""What a rank prints, passed on while it is written."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.launch.monitoring.log_tail import LONGEST_LINE_BYTES, LogTail

TEXT = "one\ntwo µ\n 10%\r 20%\r 30% ü\nwindows\r\n\nlast"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


places = st.lists(st.integers(0, len(TEXT.encode())), max_size=6)


@given(places)
def test_one_rank_is_passed_on_byte_for_byte_however_it_comes(folder: Path, cuts: list[int]) -> None:
    assert follow(folder, cut(TEXT.encode(), cuts), "") == TEXT.encode()


@given(places)
def test_several_ranks_come_in_whole_lines_with_their_number(folder: Path, cuts: list[int]) -> None:
    wanted = "[3] one\n[3] two µ\n[3]  30% ü\n[3] windows\n[3] \n[3] last\n"
    assert follow(folder, cut(TEXT.encode(), cuts), "[3] ") == wanted.encode()


def follow(folder: Path, chunks: list[bytes], prefix: str) -> bytes:
    written: list[bytes] = []
    log = folder / "log"
    log.unlink(missing_ok=True)
    tail = LogTail(log, written.append, prefix)
    tail.pump()
    for chunk in chunks:
        with log.open("ab") as file:
            file.write(chunk)
        tail.pump()
    tail.finish()
    return b"".join(written)


def test_a_bar_that_is_drawn_for_days_takes_no_memory(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log", lambda _: None, "[0] ")
    with (tmp_path / "log").open("ab", buffering=0) as log:
        for n in range(2000):
            log.write(b"\r%04d |########################" % n)
            tail.pump()
    assert tail._rest == b"1999 |########################"


def test_a_line_without_an_end_comes_in_pieces(folder: Path) -> None:
    assert len(follow(folder, [b"x" * LONGEST_LINE_BYTES, b"y" * 10], "[0] ")) > LONGEST_LINE_BYTES


def test_a_log_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    shown: list[bytes] = []
    LogTail(tmp_path, shown.append).pump()
    LogTail(tmp_path / "not there" / "log", shown.append).finish()
    assert shown == []
