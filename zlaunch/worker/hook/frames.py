"""Tell the user's own code from that of packages, the standard library and zlaunch."""

import os
from pathlib import Path

_ZLAUNCH = f"{Path(__file__).parents[2]}{os.sep}"
_STANDARD = f"{os.path.dirname(os.__file__)}{os.sep}"  # noqa: PTH120 - as frames name it


def is_the_users(filename: str) -> bool:
    """Whether a file, as a frame names it, is the user's own."""
    packaged = any(f"{os.sep}{name}{os.sep}" in filename for name in ("site-packages", "dist-packages"))
    return not packaged and not filename.startswith(("<", _ZLAUNCH, _STANDARD))
