"""Control groups that limit memory, of whichever version this machine has."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.abilities import need_root, unable

_ROOT = Path("/sys/fs/cgroup")
_IS_V2 = (_ROOT / "cgroup.controllers").exists()
_LIMIT = "memory.max" if _IS_V2 else "memory.limit_in_bytes"


@contextlib.contextmanager
def memory_groups(*limits: int) -> Iterator[list[Path]]:
    """Make a control group for each limit in bytes, each within the one before; those of root alone."""
    need_root("make a control group")
    above = _ROOT if _IS_V2 else _ROOT / "memory"
    groups: list[Path] = []
    try:
        for limit in limits:
            if _IS_V2:
                (above / "cgroup.subtree_control").write_text("+memory")
            above = above / f"zlaunch-{uuid.uuid4().hex}"
            above.mkdir()
            groups.append(above)
            (above / _LIMIT).write_text(str(limit))
    except OSError as error:
        _remove(groups)
        unable(f"no control group of memory can be made here: {error}")
    try:
        yield groups
    finally:
        _remove(groups)


def _remove(groups: list[Path]) -> None:
    """Remove the innermost first, once what ran in it has ended."""
    deadline = time.monotonic() + 10
    for group in reversed(groups):
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
