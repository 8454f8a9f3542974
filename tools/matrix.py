"""Run a core of jobs with several releases of the packages, and write docs/versions.md: `make matrix`.

    python -m tools.matrix [NAME…]

Each row of `ROWS` has an environment and native ops of its own in build/matrix/NAME, which are kept. With
names, only these rows run again. A job that fails is started by its launcher alone, too: what fails there as
well is not zlaunch's.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
SECONDS = 900
"""Most time for a command; native ops are compiled within it."""

OLDEST = (
    *("datasets==3.1.0", "huggingface_hub==0.26.2", "ninja==1.11.1", "nvidia-ml-py==12.535.161"),
    *("psutil==5.9.8", "pydantic==2.10.6", "PyYAML==6.0.1", "typer==0.19.2"),
)
"""The lower bounds of pyproject.toml."""


TORCH = (ROOT / "constraints.txt").read_text().partition("\ntorch==")[2].partition("\n")[0]
"""The release that the test suite runs with."""

TEST_TOOLS = ("hypothesis", "jsonschema", "pytest", "pytest-timeout", "pytest-xdist")


@dataclass(frozen=True)
class Row:
    """Releases that are installed together."""

    deepspeed: str
    transformers: str
    accelerate: str
    others: tuple[str, ...] = ()
    torch: str = TORCH

    @property
    def name(self) -> str:
        """A folder for it."""
        return f"deepspeed-{self.deepspeed}-transformers-{self.transformers}-torch-{self.torch}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed before zlaunch.

        Without `datasets`, pip takes the newest with zlaunch, and replaces an older transformers for it.
        """
        own = (f"{name}=={getattr(self, name)}" for name in ("deepspeed", "transformers", "accelerate"))
        return (*own, "datasets", *self.others)


ROWS = (
    Row("0.15.4", "4.46.3", "1.1.1", OLDEST),
    Row("0.16.9", "4.51.3", "1.6.0"),
    Row("0.17.6", "4.55.4", "1.10.1"),
    Row("0.18.5", "4.57.6", "1.12.0"),
    Row("0.18.9", "5.5.4", "1.13.0"),
    Row("0.19.8", "5.24.0", "1.15.0"),
    Row("0.19.8", "5.24.0", "1.15.0", torch="2.15.0"),
)


@dataclass(frozen=True)
class Result:
    """What a check came to."""

    seconds: float
    error: str = ""
    """The last line of its output, if it failed."""
    bare: str = ""
    """How the launcher alone failed; empty if it did not."""

    @property
    def cell(self) -> str:
        """The result in a table."""
        if not self.error:
            return f"{self.seconds:.0f} s"
        if self.bare:
            return "fails without zlaunch, too"
        return "**fails**"


class Environment:
    """The environment of a row."""

    def __init__(self, row: Row) -> None:
        """Keep it in a folder named like the row."""
        self.row, self.folder = row, FOLDER / row.name
        self.programs = self.folder / "bin"

    def make(self) -> Result:
        """Install the row, then zlaunch; that must leave the row as it is."""
        began = time.monotonic()
        if not self.programs.exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
        torch = f"torch=={self.row.torch}"
        self._pip(torch)  # alone: pip then takes a CPU build that is available
        self._pip(torch, *self.row.requirements)
        before = self._versions()
        self._pip("--editable", ".")
        after = self._versions()
        self._pip(*TEST_TOOLS)
        replaced = [f"{name} {before[name]}" for name in before if after.get(name) != before[name]]
        result = Result(time.monotonic() - began)
        if replaced:
            result = replace(result, error=f"zlaunch replaced {', '.join(replaced)}")
        return result

    def _pip(self, *arguments: str) -> None:
        pip = (str(self.programs / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "install", *arguments], cwd=ROOT, check=True)

    def _versions(self) -> Mapping[str, str]:
        pip = (str(self.programs / "python"), "-m", "pip", "--disable-pip-version-check")
        listed = subprocess.run([*pip, "list", "--format=json"], capture_output=True, check=True).stdout
        return {one["name"]: one["version"] for one in json.loads(listed) if one["name"] != "zlaunch"}

    def run(self, argv: Sequence[str], directory: Path) -> tuple[int, str]:
        """Run a program of the environment; return its exit status and all of its output."""
        environ = {
            **os.environ,
            "PATH": os.pathsep.join([str(self.programs), os.environ["PATH"]]),
            "TORCH_EXTENSIONS_DIR": str(self.folder / "torch_extensions"),
            "OMP_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(
                argv,
                env=environ,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"it took more than {SECONDS} s"
        return done.returncode, done.stdout.decode("utf-8", "replace")


Check = Callable[[Environment, Path], Result]


def job(*arguments: str) -> Check:
    """Train with zlaunch; the loss must fall. If it fails, see how the launcher alone does."""

    def check(environment: Environment, directory: Path) -> Result:
        began = time.monotonic()
        status, output = environment.run(("zlaunch", "train", "--run-dir", "run", *arguments), directory)
        seconds = time.monotonic() - began
        loss = re.search(r"loss (\S+) -> (\S+) at step", output)
        if status == 0 and loss is not None and float(loss[2]) < float(loss[1]):
            return Result(seconds)
        error = "the loss does not fall"
        if status:
            error = f"exit status {status}"
        result = Result(seconds, f"{error}: {_cause(output)}")
        if (directory / "run" / "run.sh").exists():
            bare_status, bare_output = environment.run(("sh", "run/run.sh"), directory)
            if bare_status:
                result = replace(result, bare=_cause(bare_output))
        return result

    return check


def command(*argv: str, says: str = "") -> Check:
    """Run a command; it must succeed and print some text."""

    def check(environment: Environment, directory: Path) -> Result:
        began = time.monotonic()
        status, output = environment.run(argv, directory)
        seconds = time.monotonic() - began
        if status == 0 and says in output:
            return Result(seconds)
        return Result(seconds, f"exit status {status}: {_cause(output)}")

    return check


def _cause(output: str) -> str:
    """Return the last line that names an exception, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(\[rank\d+\]: )?\w*(Error|Exception)\b", line)]
    if not lines:
        return ""
    return re.sub(r"^\[rank\d+\]: ", "", [*lines[-1:], *raised][-1])[:160]


RECIPES, CONFIGS = ROOT / "recipes", sorted(str(file) for file in (ROOT / "configs").glob("zero*.json"))
TRAINED = ("--max_steps", "10", "--logging_steps", "2")
CHECKS: Mapping[str, Check] = {
    "recipe, stage 2": job("--stage", "2", "--gpus", "2", "--", *TRAINED),
    "recipe, stage 3, CPU offload": job("--stage", "3", "--offload", "cpu", "--gpus", "2", "--", *TRAINED),
    "own loop": job("--stage", "2", "--gpus", "2", str(RECIPES / "own_loop.py")),
    "Trainer script": job(
        *("--stage", "2", "--gpus", "2", str(ROOT / "tools" / "trainer_script.py"), "--"),
        *("--output_dir", "out", "--learning_rate", "0.01", *TRAINED),
    ),
    "validate": command("zlaunch", "config", "validate", "--strict", *CONFIGS),
    "resolve": command("zlaunch", "config", "resolve", CONFIGS[-1], "--world-size", "8"),
    "estimate": command(
        *("zlaunch", "estimate", str(RECIPES / "small_llama"), "--stage", "3", "--on", "8xA100-80GB"),
        says="rehearsed",
    ),
    "Trainer arguments": command(
        *("python", "-m", "pytest", "-q", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")),
        str(ROOT / "tests" / "contract" / "test_trainer.py"),
    ),
}


@dataclass(frozen=True)
class WrongRelease:
    """A release that trains something else, and how `zlaunch check` shows it."""

    row: Row
    issue: int
    options: tuple[str, ...]
    """With these, all gradients differ."""
    others: tuple[str, ...]
    """With these, none do."""

    def measure(self) -> tuple[Result, Result]:
        """Check both."""
        environment = Environment(self.row)
        environment.make()
        return self._check(environment, self.options, 65), self._check(environment, self.others, 0)

    def _check(self, environment: Environment, options: tuple[str, ...], wanted: int) -> Result:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            status, output = environment.run(("zlaunch", "check", TIED, *options), Path(directory))
        result = Result(time.monotonic() - began)
        if status != wanted:
            result = replace(result, error=f"exit status {status}, not {wanted}: {_cause(output)}")
        elif status and f"gradient of {ALL}" not in " ".join(output.split()):
            result = replace(result, error="not all gradients differ")
        return result


TIED, ALL = "meta-llama/Llama-3.2-1B", "20 parameters"
_BF16 = ("--precision", "bf16", "--stage")
WRONG = (
    WrongRelease(
        Row("0.18.2", "4.57.6", "1.12.0"),
        7718,
        (*_BF16, "2", "--grad-accum", "3"),
        (*_BF16, "1", "--grad-accum", "3"),
    ),
    WrongRelease(
        Row("0.19.3", "4.57.6", "1.12.0"),
        8224,
        (*_BF16, "2", "--grad-accum", "3"),
        (*_BF16, "3", "--grad-accum", "3"),
    ),
)


def measure(row: Row) -> dict[str, Result]:
    """Make the environment of a row, and run all checks in it."""
    environment = Environment(row)
    results = {"install": environment.make()}
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as directory:
            results[name] = check(environment, Path(directory))
        result = results[name]
        print(f"{row.name}: {name}: {result.cell} {result.error} {result.bare}".rstrip(), flush=True)
    return results


def page(measured: Mapping[str, Mapping[str, Result]]) -> str:
    """Write the page about the results, by the name of the row."""
    return "\n".join(_lines(measured)) + "\n"


def _lines(measured: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    yield HEAD
    names = ("install", *CHECKS)
    yield f"| DeepSpeed | transformers | accelerate | torch | {' | '.join(names)} |"
    yield f"|---|---|---|---|{'--:|' * len(names)}"
    rows = [row for row in ROWS if row.name in measured]
    for row in rows:
        cells = (measured[row.name][name].cell for name in names)
        releases = (row.deepspeed, row.transformers, row.accelerate, row.torch)
        yield f"| {' | '.join((*releases, *cells))} |"
    for row in rows:
        for name, result in measured[row.name].items():
            if result.error:
                yield f"\n- DeepSpeed {row.deepspeed}, torch {row.torch}, {name}: {_sentence(result.error)}"
                bare = ""
                if result.bare:
                    bare = f"  Without zlaunch: {_sentence(result.bare)}"
                yield bare
    yield from _wrong_lines()
    yield TAIL


def _wrong_lines() -> Iterator[str]:
    yield "\n## Releases that train something else\n"
    yield f"`zlaunch check {TIED}` with other options, in environments of their own:\n"
    yield "| DeepSpeed | issue | differs | the same |"
    yield "|---|---|---|---|"
    for wrong in WRONG:
        file = FOLDER / wrong.row.name / "results.json"
        if file.exists():
            results = [Result(**result) for result in json.loads(file.read_text())]
            cells = zip((wrong.options, wrong.others), results, strict=True)
            texts = (f"`{' '.join(options)}`: {result.cell}" for options, result in cells)
            link = f"[{wrong.issue}](https://github.com/deepspeedai/DeepSpeed/issues/{wrong.issue})"
            yield f"| {wrong.row.deepspeed} | {link} | {' | '.join(texts)} |"


def _sentence(text: str) -> str:
    """Return the first sentence, without names of files."""
    return re.sub(r" \[/\S+\]", "", text.partition(". ")[0].rstrip(".")) + "."


def _listed(requirements: Sequence[str]) -> str:
    *first, last = (requirement.replace("==", " ") for requirement in requirements)
    return f"{', '.join(first)} and {last}"


HEAD = f"""# Tested versions

This page is generated by `make matrix`, which runs all of this with the real packages, on a CPU and with two
ranks. All rows have Python 3.11; torch {TORCH} is a build for CPUs, and a newer one the build for CUDA that
pip takes by default. The first row has the oldest supported release of each package, also of
{_listed(OLDEST)}.

With releases outside of this table, `zlaunch train` says that they are untested, and starts. The test suite
of zlaunch runs with the packages of `constraints.txt`; with those of the last row, its fast tests, contract
tests and some jobs were run, too.

- **install**: `pip install` of the row, then of zlaunch, which must not replace any package. Packages that an
  earlier run has installed are kept.
- **recipe**, **own loop**, **Trainer script**: `zlaunch train`; the loss must fall. Times include imports,
  and the compilation of native ops where they were missing.
- **validate**, **resolve**: `zlaunch config` with the files in `configs/`.
- **estimate**: `zlaunch estimate` of a model at stage 3 on 8 GPUs; it must rehearse the job with the
  installed DeepSpeed.
- **Trainer arguments**: contract tests of arguments, defaults and "auto" against the installed transformers.
"""
TAIL = """
## Known limits of older releases

zlaunch changes nothing about these; each job fails without zlaunch, too.

- On a CPU, DeepSpeed 0.15 runs the program `numactl` at stage 3. Install it, for example with
  `apt-get install numactl`. The jobs of the first row ran with it.
- DeepSpeed 0.15 cannot load its own checkpoints with torch 2.6 or newer, which loads only weights by default.
  Use DeepSpeed 0.16, or set `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` if you trust the checkpoint.
- DeepSpeed 0.17 fails at stage 2 if a rank has no parameters, as in models of a few numbers.

[Known defects](known-defects.md) lists what older releases do wrong, such as DeepSpeed 0.18.9 at stage 2 on
more than one rank of a CPU.

## Estimates with older releases

Rehearsals were compared with the memory of real training on two CPU ranks, for a part of the cases in
`tests/estimate/rehearsal`. With the first two rows:

- The peaks of `initialize`, `forward`, `backward` and `step` differ by at most 8 bytes.
- At stage 3, `load` of a model that is created in `zero.Init` takes the size of its embedding more than
  rehearsed.

## Other versions of Python

In the light installation, `zlaunch config`, `zlaunch runs` and the fast tests that need neither torch nor
packages on top of it were run with Python 3.10, 3.12 and 3.13.

With Python 3.13, Debian's torch 2.6, DeepSpeed 0.18.5 and transformers 4.57.6, `zlaunch estimate`, the native
op for ranks on a CPU and the own loop with `--launcher deepspeed` work. torchrun and the recipe do not: that
torch is built without libuv, which torchrun needs, and with MPI, which accelerate then uses.
"""


def main(names: Sequence[str]) -> int:
    """Measure rows, write the page; return 1 if something fails that does not fail without zlaunch."""
    for row in (row for row in ROWS if row.name in names or not names):
        results = {name: asdict(result) for name, result in measure(row).items()}
        (FOLDER / row.name / "results.json").write_text(json.dumps(results, indent=1))
    wrongly: list[Result] = []
    for wrong in (wrong for wrong in WRONG if wrong.row.name in names or not names):
        results_of_checks = wrong.measure()
        wrongly += results_of_checks
        text = json.dumps([asdict(result) for result in results_of_checks], indent=1)
        (FOLDER / wrong.row.name / "results.json").write_text(text)
        print(f"{wrong.row.name}: {[result.cell + result.error for result in results_of_checks]}", flush=True)
    files = {row.name: FOLDER / row.name / "results.json" for row in ROWS}
    measured = {
        name: {check: Result(**result) for check, result in json.loads(file.read_text()).items()}
        for name, file in files.items()
        if file.exists()
    }
    PAGE.write_text(page(measured), "utf-8")
    every = [*wrongly, *chain.from_iterable(by_check.values() for by_check in measured.values())]
    return int(any(result.error and not result.bare for result in every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
