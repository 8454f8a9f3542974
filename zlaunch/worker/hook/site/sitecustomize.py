"""Install the hook, remove the traces of this folder, and import the next sitecustomize."""

import contextlib
import importlib
import os
import sys


def _leave_path() -> None:
    """Make `sys.path` what it is without this folder."""
    here = os.path.dirname(__file__)  # noqa: PTH120 - as it stands in `sys.path`
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)


def _leave_environment() -> None:
    """Make PYTHONPATH what it is without this folder."""
    os.environ.pop("PYTHONPATH", None)
    if (before := os.environ.pop("ZLAUNCH_PYTHONPATH", None)) is not None:
        os.environ["PYTHONPATH"] = before


def _find_zlaunch() -> None:
    """Import `zlaunch`, which need not be installed here; its modules are found through it from here on."""
    root = __file__.rsplit("/", 5)[0]
    sys.path.insert(0, root)
    try:
        import zlaunch  # noqa: F401
    finally:
        del sys.path[0]
    if root not in sys.path:
        sys.path_importer_cache.pop(root, None)


_leave_path()
debug = os.environ.pop("ZLAUNCH_DEBUG", None)
if (file := os.environ.get("ZLAUNCH_ANSWER")) is not None:
    # The environment stays: a process that the program starts may be the one that trains.
    try:
        _find_zlaunch()
        from zlaunch.worker.hook.answer import install as install_answer

        install_answer(file)
    except Exception:  # noqa: BLE001 - the program would train
        import traceback

        traceback.print_exc()
        os._exit(os.EX_SOFTWARE)
else:
    with contextlib.suppress(Exception):
        _find_zlaunch()
        _leave_environment()
        from zlaunch.worker.hook.attach import install

        install(os.environ.pop("ZLAUNCH_RANK"), is_debugged=debug is not None)
if debug is not None:
    from zlaunch.worker.hook.debug import await_editor

    await_editor(debug)

# Python meets the outcome of this import, as if this module were not there: where there is no other
# sitecustomize, it expects exactly the exception that is raised here.
del sys.modules["sitecustomize"]
importlib.import_module("sitecustomize")
