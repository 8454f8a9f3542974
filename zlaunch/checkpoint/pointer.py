"""Files that stand for others: what git has in their place until they are downloaded."""

from collections.abc import Iterator
from pathlib import Path

from zlaunch.files import open_regular

_HEAD_BYTES = 400

_MOST_BYTES = 1024
"""A pointer is shorter."""

_LFS = b"version https://git-lfs.github.com/spec/"
_ANNEX = (b"/annex/objects/", b"../.git/annex/objects/")


def pointers_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Find the pointers in a directory, and what to say of each."""
    try:
        files = sorted(file for file in folder.iterdir() if file.stat().st_size <= _MOST_BYTES)
    except OSError:
        return
    for file in files:
        if text := pointer_in(file):
            yield file, text


def pointer_in(file: Path) -> str | None:
    """Say that a file is a pointer of Git LFS or git-annex, and what downloads it; None for any other."""
    try:
        with open_regular(file) as opened:
            head = opened.read(_HEAD_BYTES)
    except OSError:
        return None
    if head.startswith(_LFS):
        return "it is a Git LFS pointer, not the file itself; `git lfs pull` downloads it"
    if head.startswith(_ANNEX):
        return "it is a git-annex pointer, not the file itself; `git annex get` downloads it"
    return None
