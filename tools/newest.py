"""Show what of the newest releases is not yet in the tables of zlaunch: `make newest`.

    python -m tools.newest [--python PYTHON]

The tables are tested against the packages in constraints.txt. So this describes these packages and the newest
releases on PyPI with `tools.described`, and lists what differs: new, removed and changed keys, arguments,
flags and pins, each with the table it belongs to. The newest releases are installed into build/newest, and
updated there at each start; with --python, those of another interpreter are described. Exits with 1 if
something differs.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.described import PACKAGES, spelled
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, TORCHRUN, syntax_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "newest"

TABLES: Mapping[str, str] = {
    "versions": "constraints.txt, zlaunch/job/stack.py, tools/matrix.py, pyproject.toml, Makefile",
    "pins": "constraints.txt",
    "keys of a ds_config": "`make releases`; zlaunch/dsconfig/schema/",
    "arguments of the Trainer": "zlaunch/job/trainer_releases.py",
    "values of --optim": "zlaunch/job/, zlaunch/estimate/memory/",
    "schedules": "zlaunch/config/resolve/lr_schedule.py",
    "optimizers of DeepSpeed": "zlaunch/dsconfig/schema/optimizer.py, zlaunch/config/rules/optimizer.py",
    "native ops": "zlaunch/dsconfig/native_ops.py",
    "arguments of deepspeed.initialize": "zlaunch/worker/hook/",
    "flags of torchrun": "zlaunch/config/translate/launchers.json",
    "flags of deepspeed": "zlaunch/config/translate/launchers.json",
    "flags of accelerate launch": "zlaunch/config/translate/launchers.json",
}
"""Section of a description → where zlaunch knows it."""

LAUNCHERS: Mapping[str, str] = {
    "flags of torchrun": TORCHRUN,
    "flags of deepspeed": DEEPSPEED,
    "flags of accelerate launch": ACCELERATE,
}
"""Their table may know a flag before constraints.txt has its release."""

Described = Mapping[str, Mapping[str, Any]]


def differences(tested: Described, newest: Described) -> Iterator[str]:
    """List what differs, below the name of each section and its table."""
    for section, table in TABLES.items():
        lines = list(_section_lines(section, tested[section], newest[section]))
        if lines:
            yield f"{section}: {table}"
            yield from lines
            yield ""


def _section_lines(section: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    known = set(_known_flags(section))
    for name in sorted({*before, *now} - known):
        if name not in before:
            yield f"  + {name} {_text(now[name])}".rstrip()
        elif name not in now:
            yield f"  - {name}"
        elif before[name] != now[name]:
            yield from _changed(name, before[name], now[name])


def _known_flags(section: str) -> Iterator[str]:
    if section in LAUNCHERS:
        for flag in syntax_of(LAUNCHERS[section]).flags:
            yield from map(spelled, flag.names)


def _changed(name: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, list):
        yield from (f"  - {name}: {line}" for line in before if line not in now)
        yield from (f"  + {name}: {line}" for line in now if line not in before)
    else:
        yield f"  ~ {name}: {_text(before)} -> {_text(now)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def described_by(python: Path) -> Described:
    """Describe the packages of an interpreter."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    with TemporaryDirectory() as folder:
        file = Path(folder, "described.json")
        argv = [str(python), "-m", "tools.described", str(file)]
        done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{python} cannot describe its packages:\n{done.stderr}")
        found: Described = json.loads(file.read_text("utf-8"))
    return found


def installed_newest() -> Path:
    """Install the newest releases, or update them; return their interpreter."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--upgrade")
    subprocess.run([*pip, "setuptools", "torch"], check=True)  # DeepSpeed's setup.py imports torch
    subprocess.run([*pip, *PACKAGES, "pydantic"], check=True)
    return python


def main() -> int:
    """Describe, compare, and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, help="interpreter with the newest releases")
    python = parser.parse_args().python or installed_newest()
    lines = list(differences(described_by(Path(sys.executable)), described_by(python)))
    sys.stdout.write("\n".join(lines or ["nothing differs: the tables have the newest releases"]) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
