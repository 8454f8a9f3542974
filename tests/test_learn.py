"""The book in docs/learn: what it shows is what is printed, and both languages show the same."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.running import ROOT, zlaunch
from tools.draw_learn import pictures

BOOK = ROOT / "docs" / "learn" / "README.md"
LANGUAGES = (BOOK, BOOK.with_suffix(".zh.md"))


def blocks(page: Path) -> list[list[str]]:
    """Find the indented blocks, without the empty lines around them."""
    text = re.sub(r" \\\n +", " ", page.read_text("utf-8"))  # a command of several lines
    found = re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE)
    return [one.strip("\n").splitlines() for one in found if one.strip()]


def examples(page: Path = BOOK) -> list[tuple[str, list[str]]]:
    """Find each command with what it prints; one that is only to be typed prints nothing here."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(page):
        lines: list[str] = []
        for line in (line[4:] for line in block):
            if line.startswith(("$ zlaunch ", "zlaunch ")):
                lines = []
                found.append((line.removeprefix("$ "), lines))
            else:
                lines.append(line.rstrip())
    return found


TOUR = "zlaunch tour"
"""It takes minutes: its page shows what it once measured."""

SHOW = "zlaunch checkpoint show "
"""It shows what a training in the book has saved."""

SHOWN = [
    (command, lines)
    for command, lines in examples()
    if any(lines) and command != TOUR and not command.startswith(SHOW)
]
ESTIMATED = [
    example
    for page in ("README.md", "docs/estimate.md")
    for example in examples(ROOT / page)
    if example[0].startswith("zlaunch estimate ") and any(example[1])
]
TYPED = [command for command, lines in examples() if not any(lines)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """A cache of their own, so that what several examples rehearse is rehearsed once."""
    return {"COLUMNS": "80", "ZLAUNCH_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.job
@pytest.mark.parametrize(
    ("command", "lines"),
    [
        pytest.param(*shown, id=shown[0], marks=pytest.mark.full if number else ())
        for number, shown in enumerate((*SHOWN, *ESTIMATED))
    ],
)
def test_what_the_book_shows_is_what_is_printed(
    command: str, lines: list[str], environment: Mapping[str, str], tmp_path: Path
) -> None:
    result = zlaunch(*shlex.split(command)[1:], cwd=tmp_path, env=environment)
    printed = iter([line.rstrip() for line in result.out.splitlines()])
    missing = [line for line in lines if line.strip() not in ("", "…") and line not in printed]
    assert missing == [], result.out


@pytest.mark.job
@pytest.mark.parametrize("command", TYPED)
def test_what_the_book_tells_to_type_can_be_planned(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    end = words.index("--") if "--" in words else len(words)
    result = zlaunch(*words[:end], "--dry-run", *words[end:], cwd=tmp_path)
    assert result.status == 0, result.err


@pytest.mark.job
@pytest.mark.full
def test_the_checkpoint_in_the_book_is_the_one_that_its_training_saves(tmp_path: Path) -> None:
    ((show, lines),) = [example for example in examples() if example[0].startswith(SHOW)]
    (train,) = [command for command in TYPED if "--save" in command]
    trained = zlaunch(*shlex.split(train)[1:], cwd=tmp_path)
    assert trained.status == 0, trained.err
    printed = zlaunch(*shlex.split(show)[1:], cwd=tmp_path).out.splitlines()
    assert [line for line in lines if line.strip() not in ("", "…") and line not in printed] == []


def test_the_book_shows_the_tour_as_its_own_page_does() -> None:
    (lines,) = [lines for command, lines in examples() if command == TOUR]
    page = iter((ROOT / "docs" / "tour.md").read_text("utf-8").splitlines())
    assert [line for line in lines if line not in ("", "…") and f"    {line}" not in page] == []


@pytest.mark.parametrize("page", LANGUAGES)
def test_the_book_shows_commands_in_80_columns(page: Path) -> None:
    lines = re.findall(r"^ {4}((?:\$ zlaunch | {4}--).*)$", page.read_text("utf-8"), re.MULTILINE)
    assert [line for line in lines if len(line) > 80] == []


def test_both_languages_show_the_same_and_have_the_same_chapters() -> None:
    english, chinese = (blocks(page) for page in LANGUAGES)
    assert chinese == english
    chapters = [re.findall(r"^## (\d+)\.", page.read_text("utf-8"), re.MULTILINE) for page in LANGUAGES]
    assert chapters[0] == chapters[1] == [str(number) for number in range(1, 13)]
    links = [re.findall(r"pictures/(\w+)", page.read_text("utf-8")) for page in LANGUAGES]
    assert links[0] == links[1]


def typed_and_shown(page: Path) -> list[list[str]]:
    """Find the indented blocks without comments, which are in the language of the page."""
    return [[re.sub(" +# .*", "", line) for line in block] for block in blocks(page)]


@pytest.mark.parametrize("page", [*LANGUAGES[1:], ROOT / "README.zh.md", ROOT / "docs" / "train.zh.md"])
def test_a_chinese_page_has_its_comments_in_chinese(page: Path) -> None:
    comments = re.findall(r"^ {4}.* # (.*)$", page.read_text("utf-8"), re.MULTILINE)
    assert [comment for comment in comments if comment.isascii()] == []


@pytest.mark.parametrize("name", ["README.md", "docs/train.md"])
def test_a_page_names_the_same_commands_and_options_in_both_languages(name: str) -> None:
    english, chinese = (ROOT / name), (ROOT / name).with_suffix(".zh.md")
    named = [
        set(re.findall(r"`([^`]+)`", re.sub(r"\s+", " ", page.read_text("utf-8"))))
        for page in (english, chinese)
    ]
    assert named[0] ^ named[1] == set()


@pytest.mark.parametrize("name", ["README.md", "docs/train.md"])
def test_a_page_shows_the_same_in_both_languages(name: str) -> None:
    english, chinese = (ROOT / name), (ROOT / name).with_suffix(".zh.md")
    assert typed_and_shown(chinese) == typed_and_shown(english)
    headings = [re.findall(r"^(#+) ", page.read_text("utf-8"), re.MULTILINE) for page in (english, chinese)]
    assert headings[0] == headings[1]
    tables = [re.findall(r"^\| ", page.read_text("utf-8"), re.MULTILINE) for page in (english, chinese)]
    assert len(tables[0]) == len(tables[1])


def test_the_pictures_are_those_that_the_script_draws() -> None:
    assert [file.name for file, content in pictures() if file.read_text("utf-8") != content] == []
