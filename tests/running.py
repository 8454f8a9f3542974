"""The whole program, as a person runs it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ZLAUNCH = (sys.executable, "-m", "zlaunch")
CONFIGS = ROOT / "configs"
RECIPE = ROOT / "recipes" / "causal_lm.py"


@dataclass(frozen=True)
class Result:
    """What came of a command."""

    status: int
    out: str
    err: str


def zlaunch(*args: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
    """Run zlaunch to its end."""
    return run(*ZLAUNCH, *args, cwd=cwd, env=env, timeout=timeout)


def run(*argv: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
    """Run any program to its end."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return Result(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def start(*args: object, cwd: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start zlaunch and come back."""
    return subprocess.Popen(
        [*ZLAUNCH, *(str(word) for word in args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def the_run(cwd: Path) -> Path:
    """Find the directory of the only run that was started here."""
    (directory,) = (cwd / "runs").iterdir()
    return directory
