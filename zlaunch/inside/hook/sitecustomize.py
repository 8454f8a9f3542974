"""Begin to attend the script, take this folder's traces away, and let another sitecustomize follow."""

import contextlib
import importlib
import os
import sys
from pathlib import Path


def _take_away() -> None:
    """Leave PYTHONPATH and `sys.path` as they are without this folder."""
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != here]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path_importer_cache.pop(here, None)


def _follow() -> None:
    """Import the sitecustomize that this one stands before, if there is one."""
    mine = sys.modules.pop("sitecustomize")
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    sys.modules.setdefault("sitecustomize", mine)


_take_away()
if "ZLAUNCH_RANK" in os.environ:
    from zlaunch.inside.attend import begin

    begin(os.environ.pop("ZLAUNCH_RANK"))
_follow()
