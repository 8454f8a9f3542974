"""Gather what the programs need: environments, sources and inputs. What is there already is kept."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.programs.program import Repository
from tools.programs.table import PROGRAMS

REPOSITORY = Path(__file__).parent.parent.parent
EVALUATE = Repository("huggingface/evaluate", "a7dd338386a4fae9a1767e05eb9ef9479513d9e8")
METRICS = ("accuracy", "glue", "sacrebleu")

_BASE = ("deepspeed==0.19.8", "ninja", "psutil", "pydantic", "PyYAML", "typer")
_HELLO_DEEPSPEED = ("fire", "loguru", "pytz", "sh", "tensorboard")
_METRICS = ("evaluate==0.4.6", "sacrebleu", "scikit-learn")
_NEWEST = (*_BASE, "accelerate==1.15.0", "datasets==5.2.0", "transformers==5.23.0")
ENVIRONMENTS = {
    "main": (
        *_NEWEST,
        *_METRICS,
        "lightning==2.6.6",
        "peft==0.21.2",
        "sentencepiece",
        "tiktoken",
        "trl==1.16.0",
    ),
    "older": (*_BASE, *_HELLO_DEEPSPEED, "accelerate==1.12.0", "datasets==4.0.0", "transformers==4.57.6"),
    "speech": (
        *_BASE,
        "accelerate==1.12.0",
        "datasets==3.6.0",
        "evaluate==0.4.6",
        "librosa==0.11.0",
        "scikit-learn",
        "soundfile",
        "transformers==4.57.6",
    ),
    "swift": (*_BASE, "ms-swift==4.6.0"),
    "vision": (*_NEWEST, *_METRICS, "pillow", "requests", "timm==1.0.31"),
}
"""Packages of each environment, besides torch and zlaunch."""

WITHOUT_DEPENDENCIES = {"vision": ("torchvision==0.15.2",)}
"""Its Python code runs under each torch; newer wheels need CUDA's libraries."""

HOOK = """import os; programs_observer = os.environ.get("PROGRAMS_OBSERVER"); programs_observer and \
exec(compile(open(programs_observer).read(), programs_observer, "exec"), {"__name__": "programs_observer"})
"""


def gather(work: Path) -> None:
    """Make everything in a folder; the folder `$MIRRORS` has git repositories, else GitHub has."""
    mirrors = None
    if os.environ.get("MIRRORS"):
        mirrors = Path(os.environ["MIRRORS"])
    for name, packages in ENVIRONMENTS.items():
        _make_environment(work / f"venv-{name}", packages, WITHOUT_DEPENDENCIES.get(name, ()))
    for repository in {program.source for program in PROGRAMS if isinstance(program.source, Repository)}:
        _extract(repository, _folders(repository), work, mirrors)
    _make_inputs(work, "inputs", mirrors)
    _make_inputs(work, "inputs-even", mirrors, "--even")


def _make_inputs(work: Path, name: str, mirrors: Path | None, *options: str) -> None:
    spaces = work / name / "hub/spaces"
    if spaces.exists():
        return
    python = work / "venv-vision/bin/python"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu"}
    _call([python, "-m", "tools.programs.inputs", work / name, *options], environment)
    _extract(EVALUATE, [f"metrics/{metric}" for metric in METRICS], work, mirrors)
    spaces.mkdir(parents=True)
    (spaces / "evaluate-metric").symlink_to(work / "checkouts/evaluate/metrics")


def _make_environment(folder: Path, packages: Sequence[str], without_dependencies: Sequence[str]) -> None:
    done = folder / "installed"
    if done.exists():
        return
    pins = (REPOSITORY / "constraints.txt").read_text().split()
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    _call([sys.executable, "-m", "venv", folder])
    options = ("--quiet", "--disable-pip-version-check", "--prefer-binary")
    pip: list[str | Path] = [folder / "bin/python", "-m", "pip", "install", *options]
    _call([*pip, torch])  # first and exact: pip then prefers a CPU build that is already available
    _call([*pip, torch, *packages])
    _call([*pip, "--no-deps", *without_dependencies, "--editable", REPOSITORY])
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "programs_observer.pth").write_text(HOOK)
    done.touch()


def _folders(repository: Repository) -> Iterator[str]:
    for program in PROGRAMS:
        if program.source == repository:
            yield program.script.rpartition("/")[0] or "."
            yield from program.packages


def _extract(repository: Repository, folders: Iterable[str], work: Path, mirrors: Path | None) -> None:
    """Extract folders of a repository into `checkouts`."""
    into = work / "checkouts" / repository.folder
    if into.exists():
        return
    git = _mirror(repository, mirrors) if mirrors else _fetch(repository, work / "git" / repository.folder)
    archive = ["git", "--git-dir", git, "archive", repository.commit, *sorted(set(folders))]
    found = subprocess.run([str(word) for word in archive], stdout=subprocess.PIPE, check=True).stdout
    into.mkdir(parents=True)
    subprocess.run(["tar", "--extract", "--directory", into], input=found, check=True)


def _mirror(repository: Repository, mirrors: Path) -> Path:
    """Return the git directory that has the commit."""
    for head in [*mirrors.glob("*/HEAD"), *mirrors.glob("*/*/HEAD")]:
        command = ["git", "--git-dir", str(head.parent), "cat-file", "-e", f"{repository.commit}^{{commit}}"]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return head.parent
    raise SystemExit(f"{mirrors} has no repository with {repository}")


def _fetch(repository: Repository, git: Path) -> Path:
    url = f"https://github.com/{repository.name}"
    _call(["git", "init", "--quiet", "--bare", git])
    _call(["git", "--git-dir", git, "fetch", "--quiet", "--depth", "1", url, repository.commit])
    return git


def _call(words: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in words], env=environment, check=True)
