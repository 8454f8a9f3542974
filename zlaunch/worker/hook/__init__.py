"""What runs in the user's own process, beside the script: it watches and writes down, and changes nothing.

`site/` is a folder that the rank program puts on PYTHONPATH for the script alone: Python imports
its `sitecustomize` before the script, which takes every trace of itself away again. So `__main__`,
`sys.argv`, import paths and the environment of programs that the script starts are what they are
without zlaunch. Only the standard library is imported here.
"""

import os
from collections.abc import Mapping
from pathlib import Path

HOOK = Path(__file__).parent / "site"


def hook_environment(run_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Write the variables by which a script's process finds the hook; the hook removes them again."""
    before = environment.get("PYTHONPATH")
    kept = {} if before is None else {"ZLAUNCH_PYTHONPATH": before}
    paths = [str(HOOK), *filter(None, [before])]
    return {"PYTHONPATH": os.pathsep.join(paths), "ZLAUNCH_RANK": str(run_dir), **kept}
