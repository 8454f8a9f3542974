"""Measure the time until the first line of a script runs, under zlaunch and under the plain launcher.

    python -m bench.launch_overhead [ROUNDS]

Each round starts the same script under both with two ranks, and measures from the start of the command to
the first line on rank 0. zlaunch is compiled to bytecode first, as after an installation.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """import time
first = time.time()
import os
if os.environ["RANK"] == "0":
    open("first", "w").write(str(first))
"""
BIN = Path(sys.executable).parent
PACKAGE = Path(__file__).parent.parent / "zlaunch"
BARE = {
    "torchrun": ["--standalone", "--nproc-per-node=2", "script.py"],
    "deepspeed": ["--num_gpus=2", "--no_local_rank", "script.py"],
}


def seconds(argv: list[str], folder: Path) -> float:
    """Return the time from the start of a command to the first line of the script."""
    began = time.time()
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    return float((folder / "first").read_text()) - began


def main(rounds: int) -> None:
    """Print the medians for each launcher, and of the differences within a round."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", PACKAGE], check=True)
    print("| launcher | bare, s | zlaunch, s | difference, s |\n|---|---|---|---|")
    for launcher, arguments in BARE.items():
        pairs = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "script.py").write_text(SCRIPT)
                bare = seconds([str(BIN / launcher), *arguments], folder)
                ours = seconds([str(BIN / "zlaunch"), "train", "script.py", "--launcher", launcher], folder)
                pairs.append((bare, ours))
        middle = [statistics.median(column) for column in zip(*pairs, strict=True)]
        difference = statistics.median(ours - bare for bare, ours in pairs)
        print(f"| {launcher} | {middle[0]:.2f} | {middle[1]:.2f} | {difference:+.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
