"""What is said about names that have moved, held against the installed packages."""

import importlib.util
from pydoc import locate

from tests.each import each
from zlaunch.job.moved_imports import MOVED

INSTALLED = [new for new in dict.fromkeys(MOVED.values()) if importlib.util.find_spec(new.partition(".")[0])]


@each("new", INSTALLED)
def test_a_name_is_where_it_is_said_to_be(new: str) -> None:
    assert locate(new) is not None


@each("old", [old for old in MOVED if importlib.util.find_spec(old.partition(".")[0])])
def test_a_name_is_no_longer_where_it_was(old: str) -> None:
    assert locate(old) is None
