import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import ROOT, ZLAUNCH
from zlaunch import console
from zlaunch.console import command_lines, finding_lines, notes, paragraph, show_error, table
from zlaunch.errors import Finding, Place, Severity, Unavailable


def first_line(finding: Finding) -> str:
    return finding_lines(finding, sys.stdout)[0]


PLACE = Place("ds.json", 3, 5)
words = st.text("abc ", max_size=12)
sentences = st.lists(words, max_size=30).map(" ".join)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_finding_begins_with_its_place_its_severity_its_key_and_its_code() -> None:
    finding = Finding("a-code", "it is wrong", where="bf16", severity=Severity.FAILS_LATER, place=PLACE)
    assert first_line(finding) == "ds.json:3:5: fails later: bf16 [a-code]"


def test_a_command_is_not_broken_so_that_it_can_be_copied() -> None:
    command = f"`zlaunch train --resume out/checkpoint-5 {' '.join(['--stage 3'] * 9)}`"
    assert paragraph(f"some words before {command} goes on") == ["some words before", command, "goes on"]
    assert table([("a", f"words {command}")]) == ["  a  words", f"     {command}"]
    option = "`--set zero_optimization.reduce_bucket_size=1000`"
    assert paragraph(f"an option, too, has its value in its own line: {option}")[1] == option


@pytest.mark.parametrize(
    "command",
    [
        "`/opt/python/bin/python -m pip install huggingface_hub transformers accelerate`",
        "`./train.sh --learning_rate 2e-5 --num_train_epochs 3 --output_dir somewhere`",
        "`MASTER_ADDR=node1 zlaunch train train.py --stage 3 --offload cpu --dry-run`",
        "`python -c 'import json, sys, yaml; json.dump(1, sys.stdout, indent=2)' > a.json`",
    ],
)
def test_a_command_is_whole_whatever_it_begins_with(command: str) -> None:
    assert paragraph(f"type {command}, and look") == ["type", f"{command},", "and look"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_command_of_many_words_is_as_wide_as_a_terminal_and_can_be_copied(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", *(f"--option={number}" for number in range(20)), "a b", "x" * 70]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    lines = command_lines(command)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == command
    assert (len(lines[0]) <= 60) == is_terminal


def test_a_finding_without_a_place_begins_with_its_severity() -> None:
    assert first_line(Finding("a-code", "it is wrong", where="bf16")) == "error: bf16 [a-code]"


def test_what_is_meant_in_a_line_is_marked_below_it() -> None:
    finding = Finding("c", "wrong", place=Place("ds.json", 3, 5, '    "stage": 9,', 10))
    line, mark = finding_lines(finding, sys.stdout)[1:3]
    assert line[mark.index("^") : mark.rindex("^") + 1] == '"stage": 9'


def test_of_a_long_line_the_part_that_is_meant_is_shown() -> None:
    finding = Finding("c", "wrong", place=Place("ds.json", 1, 500, "x" * 499 + "key" + "x" * 99, 3))
    line, mark = finding_lines(finding, sys.stdout)[1:3]
    assert line[mark.index("^") : mark.rindex("^") + 1] == "key"


@given(sentences, sentences)
def test_no_line_of_a_finding_is_wider_than_the_terminal(message: str, hint: str) -> None:
    finding = Finding("c", message, hint, place=Place("d", 1, 1, "y" * 200, 200))
    assert max(map(len, finding_lines(finding, sys.stdout))) <= 60


def test_the_columns_of_a_table_are_aligned() -> None:
    assert table([("a", "one"), ("long", "two")]) == ["  a     one", "  long  two"]


def test_the_last_column_of_a_table_is_cut_to_the_width() -> None:
    lines = table([("a", "word " * 30)])
    assert max(map(len, lines)) <= 60


def test_the_rest_of_a_cut_cell_stands_below_its_start() -> None:
    first, second, *_ = table([("a", "word " * 30)])
    assert first.index("word") == second.index("word")


def test_an_empty_cell_leaves_no_spaces_behind() -> None:
    assert table([("a", "")], indent="") == ["a"]


def test_a_word_that_is_too_long_is_left_whole() -> None:
    path = "/a" * 60
    assert table([("a", path)])[-1].endswith(path)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_a_table_loses_no_letter(rows: list[tuple[str, str]]) -> None:
    letters = "".join("".join(row) for row in rows).replace(" ", "")
    assert "".join(table(rows)).replace(" ", "") == letters


def test_a_note_stands_beside_its_item() -> None:
    assert notes([("a = 1", "why"), ("b", "because")]) == ["  a = 1  why", "  b      because"]


def test_a_note_stands_below_an_item_that_is_too_long() -> None:
    item = "x" * 40
    assert notes([(item, "why")]) == [f"  {item}", " " * 32 + "why"]


def test_an_item_without_a_note_stands_alone() -> None:
    assert notes([("section", "")]) == ["  section"]


def test_a_long_note_is_cut_to_the_width() -> None:
    assert max(map(len, notes([("a", "word " * 30)]))) <= 60


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_notes_lose_no_letter(rows: list[tuple[str, str]]) -> None:
    letters = sorted("".join("".join(row) for row in rows).replace(" ", ""))
    assert sorted("".join(notes(rows)).replace(" ", "")) == letters


@pytest.mark.parametrize("said", ["say('x'); say('y')", "job_output(b'x'); job_output(b'y')"])
@pytest.mark.parametrize("where", ["/dev/full", None])
def test_a_job_outlives_what_it_is_shown_on(said: str, where: str | None) -> None:
    """A full disk, or a reader that has gone: neither an exception, nor another exit status."""
    reader, pipe = os.pipe()
    os.close(reader)
    shown = pipe if where is None else os.open(where, os.O_WRONLY)
    program = f"from zlaunch.console import *; {said}; raise SystemExit(7)"
    done = subprocess.run([sys.executable, "-c", program], stdout=shown, stderr=shown, check=False, cwd=ROOT)
    os.close(shown)
    assert done.returncode == 7


LONG = "the run directory `/data/a-path/with-many/hyphens-in-it/and-more` has no room for all of it"


def shown_on(screen: int) -> Iterator[str]:
    """Read all that was written to a terminal that has been closed: then a read fails."""
    parts = []
    with contextlib.suppress(OSError):
        while part := os.read(screen, 4096):
            parts.append(part)
    yield b"".join(parts).decode()  # a read may end within a character
    os.close(screen)


def test_an_error_is_cut_into_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = os.openpty()
    with open(its, "w") as terminal:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stderr", terminal)
        show_error(Unavailable(LONG, "first\n  second"))
    assert "".join(shown_on(ours)).splitlines() == [
        "error: the run directory",
        "       `/data/a-path/with-many/hyphens-in-it/and-more` has",
        "       no room for all of it",
        "hint: first",
        "        second",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runs/\033[2J\033]0;title\a", r"runs/\x1b[2J\x1b]0;title\x07"),
        ("runs/\033[31mred", r"runs/\x1b[31mred"),
        ("a\u202eb\u2028c\udc80d\x9be", r"a\u202eb\u2028c\udc80d\x9be"),
        ("日本\u3000語 ü\t1\n2", "日本\u3000語 ü\t1\n2"),
        ("\033[31merror\033[0m: \033[2K", "\033[31merror\033[0m: \\x1b[2K"),
    ],
)
@pytest.mark.parametrize("show", [console.say, console.data])
def test_a_terminal_does_not_obey_what_stands_in_a_name(
    text: str, shown: str, show: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, its = os.openpty()
    with os.fdopen(its, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        show(text)
    assert "".join(shown_on(ours)).replace("\r\n", "\n") == f"{shown}\n"


def drawn(screen: int, columns: list[int]) -> str:
    """Show a line of 90 letters on a terminal that has these columns, one after the other."""
    ours, its = os.openpty()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(its, "w", encoding="utf-8") as terminal:
        patch.setattr(sys, "stderr", terminal)
        line = console.ProgressLine()
        for count in columns:
            patch.setenv("COLUMNS", str(count))
            line.show("x" * screen)
    return "".join(shown_on(ours)).replace("\r\n", "\n")


def test_a_line_that_a_narrower_terminal_has_wrapped_leaves_nothing_behind() -> None:
    assert drawn(90, [100, 40]) == "\r\033[K" + "x" * 90 + "\033[2A\r\033[J" + "x" * 39
    assert drawn(90, [40, 100]) == "\r\033[K" + "x" * 39 + "\r\033[K" + "x" * 90


@pytest.mark.parametrize(("columns", "shown"), [(40, "\033[36mstep 5\033[0m of 9"), (9, "step 5 o")])
def test_colours_take_no_room_in_a_line(columns: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = os.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))
    with os.fdopen(its, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        console.ProgressLine().show("\033[36mstep 5\033[0m of 9")
    assert "".join(shown_on(ours)).endswith(f"\033[K{shown}")


def test_a_terminal_that_wraps_no_line_keeps_what_stands_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STY", "1.pts-0")
    assert "A" not in drawn(90, [100, 40])


def test_a_result_has_room_in_a_pipe_and_on_a_terminal_that_is_high_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LINES", "24")
    assert console.has_room(["a"] * 99)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert [console.has_room(["a"] * count) for count in (23, 24)] == [True, False]


def test_a_pipe_gets_a_result_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.data("a\033[2Jb")
    assert capsys.readouterr().out == "a\033[2Jb\n"


def test_an_error_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(Unavailable(LONG))
    assert capsys.readouterr().err == f"error: {LONG}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_good_as_one_that_nobody_reads(closed: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"train_batch_size": 8}')
    command = f"{shlex.join([*ZLAUNCH, 'config', 'validate', 'c.json'])} {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
