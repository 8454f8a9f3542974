"""What a rank prints, passed on while it is written."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.launch.monitoring.log_tail import LONGEST_LINE_BYTES, LogTail

TEXT = "one\ntwo µ\n 10%\r 20%\r 30% ü\nwindows\r\n\nlast"

TRAINER = (
    "start\n\r  0%|          | 0/12 [00:00<?, ?it/s]\r 25%|██▌       | 3/12 [00:01<00:04,  2.01it/s]"
    "\r                                              \r{'loss': 5.8}\n"
    "\r 25%|██▌       | 3/12 [00:01<00:04,  2.01it/s]saved\n"
    "\rMap: 100%|██████████| 1/1 [00:00<00:00,  4.25 examples/s]\n"
    "\r7it [00:01,  4.25it/s]\x1b[A\n\r                \r{'loss': 4.7}\r\n"
    "\x1b[31mred\x1b[0m\x07\n\nlast"
)
"""Bars as tqdm draws them, and what is printed beside them."""


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


@given(st.lists(st.integers(0, len(TRAINER.encode())), max_size=6))
def test_in_a_pipe_there_is_a_line_for_each_log_interval_and_no_bar(folder: Path, cuts: list[int]) -> None:
    wanted = "start\n{'loss': 5.8}\nsaved\n{'loss': 4.7}\nred\n\nlast"
    assert follow(folder, cut(TRAINER.encode(), cuts), "", is_plain=True) == wanted.encode()


@given(places)
def test_in_a_pipe_whole_lines_come_as_they_were_written(folder: Path, cuts: list[int]) -> None:
    wanted = "one\ntwo µ\n 30% ü\nwindows\n\nlast"
    assert follow(folder, cut(TEXT.encode(), cuts), "", is_plain=True) == wanted.encode()


@pytest.mark.parametrize(
    "line",
    ["loss [00:01, it/s] 3", "50%|half| of 3/12 [a]", "50%|half| 3/12 [a]", "2it [00:01, 3it/s]", "a\tb"],
)
def test_a_line_that_only_looks_like_a_bar_is_kept(folder: Path, line: str) -> None:
    assert follow(folder, [f"{line}\n".encode()], "", is_plain=True) == f"{line}\n".encode()


def test_colours_stay_in_a_pipe_only_if_they_were_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = [b"\x1b[31mred\x1b[0m\n"]
    assert follow(folder, red, "", is_plain=True) == b"red\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert follow(folder, red, "", is_plain=True) == red[0]


def follow(folder: Path, chunks: list[bytes], prefix: str, *, is_plain: bool = False) -> bytes:
    written: list[bytes] = []
    log = folder / "log"
    log.unlink(missing_ok=True)
    tail = LogTail(log, written.append, prefix, is_plain=is_plain)
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
    assert tail._rest == b"\r1999 |########################"


def test_a_line_without_an_end_comes_in_pieces(folder: Path) -> None:
    assert len(follow(folder, [b"x" * LONGEST_LINE_BYTES, b"y" * 10], "[0] ")) > LONGEST_LINE_BYTES


def test_a_log_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    shown: list[bytes] = []
    LogTail(tmp_path, shown.append).pump()
    LogTail(tmp_path / "not there" / "log", shown.append).finish()
    assert shown == []
