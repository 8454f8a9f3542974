"""Run a module of this zlaunch like `python -m`, in any Python: `PYTHON …/worker/start.py MODULE ARGS…`.

zlaunch need not be installed there. Its directory is on the import path only while `zlaunch` itself is
imported: all other packages are those of that Python, and nothing is imported from the working directory.
"""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the directory of this file
sys.path.insert(0, __file__.rsplit("/", 3)[0])
import zlaunch  # noqa: F401 - its modules are found through it from here on

del sys.path[0]
import runpy  # noqa: E402 - not from the directory of this file

runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
