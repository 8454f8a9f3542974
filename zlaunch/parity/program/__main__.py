"""`python -m zlaunch.parity.program`: reads trials from stdin, and writes the `Comparison` of each to stdout.

Each is a line of JSON. The packages are imported once: that takes longer than a trial.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.trial import Trial


def main() -> None:
    """Train and compare."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the packages go to stderr
    import_packages()
    from zlaunch.parity.program.trial_run import compare  # which imports torch

    for line in sys.stdin:
        trial: Trial = adapter_of(Trial).validate_python(json.loads(line))
        with tempfile.TemporaryDirectory() as directory:
            result = compare(trial, Path(directory))
        print(json.dumps(result), file=out, flush=True)
    os._exit(0)  # a regular exit would take half a second to unload torch


if __name__ == "__main__":
    main()
