"""A fork server as that of the tests that has also run a few commands: their caches are filled in each fork.

`python -m bench.fuzz_server FD` serves the client at the other end of a Unix socket.
"""

import contextlib
import gc
import io
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from tests.fork_server import preload, run_module, serve

COMMANDS = (
    ("config", "validate", "ds.json"),
    ("config", "explain", "stage"),
    ("config", "schema"),
    ("train", "--dry-run", "--no-ask", "train.py"),
)


def warm() -> None:
    """Run commands in this process, to fill the caches of zlaunch."""
    from zlaunch.cli import main

    given, here = sys.argv, Path.cwd()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as after:
        os.chdir(name)
        after.callback(os.chdir, here)
        Path("ds.json").write_text('{"train_batch_size": "auto", "zero_optimisation": {"stage": 2}}')
        Path("train.py").write_text("from transformers import Trainer\n")
        for command in COMMANDS:
            sys.argv = ["zlaunch", *command]
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
                main()
    sys.argv = given
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_client:
        read = preload()
        with contextlib.redirect_stderr(io.StringIO()):
            warm()
        its_client.send(json.dumps(sorted(read)).encode())
        requested = serve(its_client)
    if requested is not None:
        run_module(requested.module)
