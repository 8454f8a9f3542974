"""Reproduce known defects on this machine's CPU: `python -m tools.known_defects [NAME…]`.

Each defect with a case in `tools/defect_cases` runs with the last release that has it, and with the first one
without. Releases are installed below build/defects, without the packages that they need, which are those of
this environment, and without native ops. Prints what shows, and compares it with `reproduced` in the table.
"""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.defect_cases import CASES, RANKS
from zlaunch.dsconfig.known_defects import Defect, defects, numbers

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "defects"
CASE = ROOT / "tools" / "defect_cases.py"
SECONDS = 900
GRACE = 30


@functools.cache
def released(package: str) -> list[str]:
    """List all releases of a package, oldest first."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package)
    out = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    line = next(line for line in out.splitlines() if line.startswith("Available versions:"))
    return sorted(line.partition(":")[2].replace(" ", "").split(","), key=numbers)


def installed(package: str, version: str) -> Path:
    """Install a release into a folder of its own, unless it is there."""
    folder = FOLDER / f"{package}-{version}"
    if not (folder / package).is_dir():
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        options = ("--no-deps", "--no-build-isolation", "--target", str(folder), f"{package}=={version}")
        environ = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        subprocess.run([*pip, *options], env=environ, check=True)
    return folder


class Answer(NamedTuple):
    """What a case came to with a release."""

    shows: bool
    how: str


def shown(names: Sequence[str], folder: Path) -> dict[str, Answer]:
    """Run cases with a release, all on the same number of ranks. A defect shows if it does on one rank."""
    ranks, processes = RANKS[names[0]], []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+") as out:
        for number in range(ranks):
            environ = {
                **os.environ,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(ranks),
                "LOCAL_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "DS_ACCELERATOR": "cpu",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "TORCH_EXTENSIONS_DIR": str(FOLDER / "torch_extensions"),
                "PYTHONPATH": str(folder),
                "TORCH_COMPILE_DISABLE": "1",  # Muon is compiled otherwise
            }
            argv = [sys.executable, str(CASE), *names]
            processes.append(subprocess.Popen(argv, env=environ, stdout=out, stderr=subprocess.STDOUT))
        try:
            processes[0].wait(SECONDS)
            for process in processes[1:]:
                process.wait(GRACE)
        except subprocess.TimeoutExpired:
            print(f"not all ranks have ended within {SECONDS} s")
        for process in processes:
            process.kill()
            process.wait()
        out.seek(0)
        text = out.read()
    answers = dict.fromkeys(names, Answer(False, f"no answer: {text.strip()[-300:]}"))
    for line in text.splitlines():
        if line.startswith('{"name"'):
            answer = json.loads(line)
            if not answers[answer["name"]].shows:
                answers[answer["name"]] = Answer(answer["shows"], answer["how"])
    return answers


def releases_of(defect: Defect) -> list[str]:
    """The last release that has a defect, and the first one without."""
    affected = [release for release in released(defect.package) if defect.affects(release)]
    return [affected[-1], *filter(None, [defect.fixed])]


def main(names: Sequence[str]) -> int:
    """Reproduce defects, all of a release at once; return 1 if the table says something else of one."""
    chosen = [defect for defect in defects() if defect.name in (names or CASES)]
    runs: dict[tuple[str, str, int], list[str]] = {}
    for defect in chosen:
        for release in releases_of(defect):
            runs.setdefault((defect.package, release, RANKS[defect.name]), []).append(defect.name)
    answers: dict[tuple[str, str], Answer] = {}
    for (package, release, _), together in runs.items():
        for name, answer in shown(together, installed(package, release)).items():
            answers[name, release] = answer
            print(f"{package} {release}: {name}: {answer.shows}: {answer.how}", flush=True)
    wrong = []
    for defect in chosen:
        last, *fixed = [answers[defect.name, release].shows for release in releases_of(defect)]
        if (last and not any(fixed)) != defect.is_reproduced:
            wrong.append(f"{defect.name}: `reproduced` in known_defects.json says otherwise")
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
