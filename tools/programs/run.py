"""Run one program in one way: under its own launcher, or under zlaunch."""

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.programs.program import Package, Program, Way

OBSERVER = Path(__file__).parent / "observer.py"
RANKS = 2
LAUNCHERS = {
    "torchrun": f"torchrun --standalone --nproc_per_node {RANKS}",
    "deepspeed": f"deepspeed --num_gpus {RANKS}",
}
MOST_SECONDS = 900
MODULE = {"torchrun": "-m", "deepspeed": "--module"}


@dataclass(frozen=True)
class Places:
    """The folders that a command may name in braces."""

    hub: str
    """URL of the local hub."""
    data: Path
    ds: Path
    """Folder of the ds_configs and YAML files."""
    models: Path
    run: Path


@dataclass
class Result:
    """What came of one run."""

    command: str
    status: int
    seconds: float
    stages: list[int] = field(default_factory=list)
    """ZeRO stages of DeepSpeed's engines on rank 0."""
    world: int = 0
    is_ddp: bool = False
    losses: list[float] = field(default_factory=list)
    """Losses on rank 0, in order."""
    others: list[float] = field(default_factory=list)
    """Losses on rank 1."""
    job: str = ""
    """What zlaunch says about the job before the start."""
    end: str = ""
    """Last line of zlaunch, or of the program."""

    @property
    def ends(self) -> tuple[float, float] | None:
        """Mean loss of the first and of the last quarter."""
        losses = self.losses or self.others
        quarter = max(1, len(losses) // 4)
        if len(losses) < 2:
            return None
        return statistics.mean(losses[:quarter]), statistics.mean(losses[-quarter:])

    @property
    def is_training(self) -> bool:
        """Whether it ended well and the loss fell."""
        return self.status == 0 and self.ends is not None and self.ends[1] < self.ends[0]


def run(
    program: Program, way: Way, *, source: Path, python: Path, places: Places, is_zlaunch: bool
) -> Result:
    """Run a program in a fresh copy of its folder in `source`, with the `python` of its environment."""
    folder = places.run
    seen = set_up(program, source, places)
    text, extra = _bare_command(program, way), {**program.environment, **way.environment}
    if is_zlaunch:
        text, extra = _zlaunch_command(program, way), dict(program.environment)
    words = words_of(text, places)
    environment = environment_of(program, source, python, places.hub) | extra
    environment |= {"PROGRAMS_OBSERVER": str(OBSERVER), "PROGRAMS_OBSERVED": str(seen)}
    began = time.monotonic()
    status, out, err = run_words(words, folder, environment)
    seconds = round(time.monotonic() - began, 1)
    result = Result(" ".join([*(f"{name}={value}" for name, value in extra.items()), text]), status, seconds)
    _read_observations(seen, result)
    lines = [line for line in f"{out}\n{err}".splitlines() if line.strip()]
    if is_zlaunch:
        lines = [line for line in err.splitlines() if line.strip()]
    result.job = job_row(lines)
    result.end = "".join(lines[-1:])
    return result


def set_up(program: Program, source: Path, places: Places) -> Path:
    """Copy the folder of a program; return a folder in it for what is observed."""
    folder = places.run
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(program.source, Package):
        folder.mkdir(parents=True)
    else:
        shutil.copytree((source / program.script).parent, folder)
    for name, target in program.files.items():
        _link(folder / name, Path(target.format(**vars(places))))
    seen = folder / ".seen"
    seen.mkdir()
    return seen


def words_of(text: str, places: Places) -> list[str]:
    """Split a command line, and fill in the places."""
    return [word.format(**vars(places)) for word in shlex.split(text)]


def job_row(lines: list[str]) -> str:
    """Return the row `job` of zlaunch's plan, which may continue in indented lines."""
    start = next((at for at, line in enumerate(lines) if line.startswith("job ")), len(lines))
    continued = itertools.takewhile(lambda line: line.startswith(" "), lines[start + 1 :])
    return " ".join(" ".join([*lines[start : start + 1], *continued]).split()).removeprefix("job ")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(target)


def _bare_command(program: Program, way: Way) -> str:
    target = _target(program, MODULE[way.launcher])
    return " ".join(filter(None, [LAUNCHERS[way.launcher], target, program.arguments, way.bare]))


def _zlaunch_command(program: Program, way: Way) -> str:
    launcher, arguments = f"--launcher {way.launcher}", way.zlaunch
    if way.launcher == "torchrun":
        launcher = ""
    if arguments is None:
        arguments = way.bare
    head = f"zlaunch train --gpus {RANKS}"
    return " ".join(
        filter(
            None, [head, launcher, way.options, _target(program, "-m"), "--", program.arguments, arguments]
        )
    )


def _target(program: Program, module: str) -> str:
    if program.script.startswith("-m "):
        return f"{module} {program.script.removeprefix('-m ')}"
    return program.script.rpartition("/")[2]


def environment_of(program: Program, source: Path, python: Path, hub: str) -> dict[str, str]:
    """Return the variables of a program, for its environment and a local hub."""
    root = python.parent.parent
    ours = ("ZLAUNCH", "PYTHON", "HF_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return inherited | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str((source / path).parent) for path in program.packages),
        "HF_ENDPOINT": hub,
        "HF_HOME": str(root / "huggingface"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TORCH_EXTENSIONS_DIR": str(root / "torch_extensions"),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def run_words(words: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command for at most MOST_SECONDS; return its status, stdout and stderr."""
    program = subprocess.Popen(
        words, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = program.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGTERM)
        time.sleep(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        out, err = program.communicate()
        err += f"\nstill running after {MOST_SECONDS} s"
    (folder / "stdout").write_text(out)
    (folder / "stderr").write_text(err)
    return program.returncode, out, err


def _read_observations(folder: Path, result: Result) -> None:
    observed = [_lines(folder, rank) for rank in range(RANKS)]
    for facts in observed[0]:
        if "stage" in facts:
            result.stages.append(facts["stage"])
            result.world = facts["world"]
        result.is_ddp |= "ddp" in facts
    result.losses, result.others = ([facts["loss"] for facts in rank if "loss" in facts] for rank in observed)


def _lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Read what the last process of a rank recorded; zlaunch may have asked another one before."""
    files = sorted(folder.glob(f"rank-{rank}-*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        return []
    return [json.loads(line) for line in files[-1].read_text().splitlines()]
