"""The hook in the script's process: it records phases, steps and exceptions, and changes nothing.

The rank program puts the folder `site/` on PYTHONPATH for the script alone. Python imports the
`sitecustomize` in it before the script, and that removes all traces of itself. So `__main__`, `sys.argv`,
import paths and the environment of child processes are the same as without zlaunch. Only the standard
library is imported here.
"""

import os
from collections.abc import Mapping
from pathlib import Path

HOOK = Path(__file__).parent / "site"


def hook_environment(run_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Make the variables by which a script's process finds the hook, which removes them again."""
    return {**_first_on_path(environment), "ZLAUNCH_RANK": str(run_dir)}


def answer_environment(
    file: Path, environment: Mapping[str, str], at_parser: bool, written: Path | None
) -> dict[str, str]:
    """Make the variables by which a program writes its arguments to a file instead of training.

    With `at_parser`, it only reads its command line. What it writes is put into the directory `written`, if
    it may change no files.
    """
    variables = {**_first_on_path(environment), "ZLAUNCH_ANSWER": str(file)}
    if written is not None:
        variables["ZLAUNCH_ANSWER_WRITTEN"] = str(written)
    if at_parser:
        variables["ZLAUNCH_ANSWER_AT"] = "parser"
    return variables


def _first_on_path(environment: Mapping[str, str]) -> dict[str, str]:
    before = environment.get("PYTHONPATH")
    if before is None:
        return {"PYTHONPATH": str(HOOK)}
    path = os.pathsep.join(part for part in (str(HOOK), before) if part)
    return {"PYTHONPATH": path, "ZLAUNCH_PYTHONPATH": before}
