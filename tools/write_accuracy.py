"""Write docs/accuracy.md: published measurements of GPU memory beside what zlaunch predicts.

`python -m tools.write_accuracy` first rehearses each run of `tests/published.json` that has no prediction
yet, and records it there; with `--again` all of them. Measurements and settings were recorded before any
prediction was made. `--releases FOLDER` makes an environment there for each run that names its releases, and
rehearses it in that.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from zlaunch.units import signed_percent

ROOT = Path(__file__).parent.parent
FILE, PAGE = ROOT / "tests" / "published.json", ROOT / "docs" / "accuracy.md"
GIB: Final = 2**30
TRAINING = ("forward", "backward", "step", "second step")
PACKAGES = ("zlaunch", "deepspeed", "torch", "transformers", "peft")
GROUPS: Mapping[str, str] = {
    "same": "Same generation",
    "older": "Older",
    "plain": "Without DeepSpeed",
}
GOALS = {"allocated": 1.5, "reserved": 5.0, "process": 4.0}
"""Mean errors to reach for the same generation, in percent."""
EXPLAINED: Final = 10.0
"""Larger errors have a reason, in percent."""
NEGLIGIBLE: Final = 2.0
"""Smaller errors need none."""
By = Literal["predicted", "with_releases"]
BY: tuple[By, ...] = ("predicted", "with_releases")
BEFORE_TRAINING = ("load", "initialize")


@dataclass(frozen=True)
class Figure:
    """One measured number of a run, and what was predicted for it."""

    run: Mapping[str, Any]
    figure: Mapping[str, Any]

    @property
    def quantity(self) -> str:
        """What was measured: allocated, reserved or process; or whether the run fitted: fits, oom."""
        return str(self.figure["quantity"])

    @property
    def measured(self) -> float:
        """GiB."""
        return float(self.figure["gib"])

    def predicted(self, by: By = "predicted") -> float | None:
        """GiB; None if the estimate was refused."""
        prediction = self.run.get(by, {})
        if "phases" not in prediction:
            return None
        if self.quantity not in ("allocated", "reserved"):
            return float(sum(prediction["process"]) / 2)
        name = self.figure.get("phase")
        names = {None: tuple(prediction["phases"]), "training": TRAINING}.get(name, (name,))
        moment = {"peak": 0, "end": 1}[self.figure.get("moment", "peak")]
        return max(float(prediction["phases"][phase][self.quantity][moment]) for phase in names)

    def error(self, by: By = "predicted") -> float | None:
        """Percent of the measured number."""
        predicted = self.predicted(by)
        if predicted is None:
            return None
        return 100 * (predicted / self.measured - 1)

    @property
    def best_error(self) -> float | None:
        """The error with the releases of the run, if they are known, otherwise with those installed."""
        own = self.error("with_releases")
        if own is None:
            return self.error()
        return own

    @property
    def is_verdict(self) -> bool:
        """Whether it says only that the run fitted, or that it ran out of memory."""
        return self.quantity in ("fits", "oom")

    @property
    def kind(self) -> str:
        """Its quantity, and whether it was measured before the first step."""
        if self.figure.get("phase") in BEFORE_TRAINING:
            return f"{self.quantity}, before training"
        return self.quantity

    @property
    def reason(self) -> str:
        """Say why the prediction is off."""
        return str(self.figure.get("why") or self.run.get("why", ""))

    @property
    def words(self) -> str:
        """Name what was measured, and when."""
        phase = self.figure.get("phase")
        if phase is None:
            return self.quantity
        if self.figure.get("moment") == "end":
            return f"{self.quantity}, end of {phase}"
        return f"{self.quantity}, {phase}"


def figures(published: Mapping[str, Any]) -> list[Figure]:
    """List the measured numbers."""
    return [Figure(run, figure) for run in published["runs"] for figure in run["figures"]]


def predict(run: Mapping[str, Any], published: Mapping[str, Any], *options: str) -> dict[str, Any]:
    """Ask `zlaunch estimate`."""
    with TemporaryDirectory() as folder:
        asked = _asked(run, published, Path(folder))
        command = [sys.executable, "-m", "zlaunch", "estimate", *options, *asked]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    try:
        found = json.loads(done.stdout)
        phases, process = found["forecast"]["phases"], found["need"]["process"]
    except (ValueError, KeyError, TypeError):
        return {"refused": " ".join((done.stderr or done.stdout).split())[:400]}
    return {
        "fit": found["fit"],
        "method": found["forecast"]["method"],
        "phases": {phase["name"]: _phase(phase) for phase in phases},
        "process": [round(nbytes / GIB, 2) for nbytes in process],
    }


def _asked(run: Mapping[str, Any], published: Mapping[str, Any], folder: Path) -> list[str]:
    model, options = run["model"], ["--job", "none", "--json"]
    if model in published["models"]:
        model = "./config.json"
        (folder / "config.json").write_text(json.dumps(published["models"][run["model"]]), "utf-8")
    if "ds_config" in run:
        (folder / "ds_config.json").write_text(json.dumps(published["ds_configs"][run["ds_config"]]), "utf-8")
        options += ["--ds-config", "ds_config.json"]
    return [model, *options, *run["options"]]


def _phase(phase: Mapping[str, Any]) -> dict[str, list[float]]:
    pools = {"allocated": "gpu", "reserved": "reserved"}
    moments = (phase["peak"], phase["end"])
    return {name: [round(moment.get(pool, 0) / GIB, 3) for moment in moments] for name, pool in pools.items()}


HEAD = """# Accuracy of memory estimates

This page compares the GPU memory that `zlaunch estimate` predicts with published measurements. It is
generated by `make docs` from `tests/published.json`, which has the quoted words of each source, the
ds_configs and the options. [GPU checks](gpu.md#results) has measurements of this project.

- Measurements and options were recorded before anything was predicted, and no constant of zlaunch was chosen
  to match them. What a source does not say was assumed from the program that it names; the last table has
  every assumption. Changed after the comparison: CA is now read as what is reserved at that point instead of
  the most until then, and one run is excluded, with the reason.
- Allocated is `torch.cuda.max_memory_allocated`, or MA and Max_MA in DeepSpeed's log; reserved is
  `max_memory_reserved`, or CA; a process is what `nvidia-smi` shows, and is compared with the middle of the
  predicted range. Many sources write "GB" or "G" and do not say what they measured; that is read as GiB of a
  process.
{packages}
- zlaunch rehearses the DeepSpeed of the job, and releases differ. Runs that name their releases were
  therefore predicted again with these (`--python`), as a user of these releases would.

Same generation means torch 2.1 and DeepSpeed 0.12 or later. Older runs are apart: their DeepSpeed (0.9 to
0.11) and transformers (before 4.36) cannot be rehearsed, and had other buffers, attention and rotary
embeddings. Runs without DeepSpeed are asked for as stage 0.

{summary}

The error is the mean of the figures' errors without their signs. Lowest and highest are those of the
prediction with the run's releases, if these are known.

For processes the goal is missed, and no single term explains it. Two runs, 11 and 12 % off, do not publish
the length of their sequences; the other nine are 4.6 % off. Five runs used `expandable_segments`, which
zlaunch does not simulate. Simulated once for comparison, the three of ArcticTraining were 1.4, 1.0 and 4.7 %
too low instead of 6.1, 6.1 and 8.7 % too high, but the two of ms-swift 10 and 17 % too low: the mean stays
at 6 %. Nor does a constant explain it, such as the CUDA context: predictions are from 6.4 GiB too low to
11.7 GiB too high, and the constant that fits best, 0.7 GiB less, would leave 5.7 %.

## Did it fit?

Of these runs only this is published. Whether the estimate fits was asked for the GPUs that the run had.

{verdicts}
"""

_HEADER = """| run | measured | GiB | predicted | error | with its releases | error | reason |
|---|---|--:|--:|--:|--:|--:|---|"""
_TAIL = """
## Not asked

Published measurements of runs that an estimate cannot be asked for.

| run | measured | reason |
|---|---|---|"""
_SETTINGS = """
## Settings and sources

| run | versions | settings | assumed | source |
|---|---|---|---|--:|"""


def page(published: Mapping[str, Any]) -> str:
    """Return the page."""
    return "\n".join(_lines(published)) + "\n"


def _lines(published: Mapping[str, Any]) -> Iterator[str]:
    every = [one for one in figures(published) if "excluded" not in one.run]
    measured = [one for one in every if not one.is_verdict]
    sources = list(dict.fromkeys(run["source"] for run in published["runs"]))
    verdicts = "\n".join(_verdicts([one for one in every if one.is_verdict], sources))
    yield HEAD.format(
        packages=_packages(published), summary="\n".join(_summary(measured)), verdicts=verdicts
    ).rstrip()
    for group, title in GROUPS.items():
        yield f"\n## {title}\n\n{_HEADER}"
        yield from (_row(one, sources) for one in measured if one.run["generation"] == group)
    excluded = [one for one in figures(published) if "excluded" in one.run]
    yield f"\n## Excluded\n\nThe source contradicts itself, as the prediction showed.\n\n{_HEADER}"
    yield from (_row(one, sources) for one in excluded)
    yield _TAIL
    for one in published["unaskable"]:
        yield f"| [{one['what']}]({one['source']}) | {one['measured']} | {one['reason']} |"
    yield _SETTINGS
    for run in published["runs"]:
        number = sources.index(run["source"]) + 1
        yield f"| {run['id']} | {run['versions']} | {run['setting']} | {run['assumed']} | {number} |"
    yield ""
    yield from (f"{number}. {source}" for number, source in enumerate(sources, 1))


def _packages(published: Mapping[str, Any]) -> str:
    """Say what the runs were predicted with; those that differ from most of them by name."""
    runs_of: dict[str, list[str]] = {}
    for run in published["runs"]:
        packages = ", ".join(f"{name} {release}" for name, release in run["predicted_with"].items())
        runs_of.setdefault(packages, []).append(run["id"])
    usual = max(runs_of, key=lambda packages: len(runs_of[packages]))
    if len(runs_of) == 1:
        return f"- Every run was predicted with the installed packages: {usual}."
    others = "; ".join(f"{', '.join(ids)} with {used}" for used, ids in runs_of.items() if used != usual)
    return f"- The runs were predicted with the installed packages: {usual}; but {others}."


def _summary(some: Sequence[Figure]) -> Iterator[str]:
    yield "| generation | quantity | figures | error | with their releases | goal | lowest | highest |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for group, title in GROUPS.items():
        for quantity in dict.fromkeys(one.kind for one in some):
            rows = [one for one in some if one.run["generation"] == group and one.kind == quantity]
            errors, best = _known(one.error() for one in rows), _known(one.best_error for one in rows)
            if not errors:
                continue
            goal = ""
            if group == "same" and quantity in GOALS:
                goal = f"{GOALS[quantity]:g} %"
            means = [f"{mean_error(kept):.1f} %" for kept in (errors, best)]
            cells = [title.lower(), quantity, str(len(errors)), *means, goal]
            yield f"| {' | '.join([*cells, signed_percent(min(best), 1), signed_percent(max(best), 1)])} |"


def errors_of(some: Iterable[Figure], group: str, kind: str) -> list[float]:
    """List the errors of one kind, in percent, with the releases of the runs where these are known."""
    return _known(one.best_error for one in some if one.run["generation"] == group and one.kind == kind)


def _known(errors: Iterable[float | None]) -> list[float]:
    return [error for error in errors if error is not None]


def mean_error(errors: Sequence[float]) -> float:
    """Return the mean of their sizes."""
    return sum(map(abs, errors)) / len(errors)


def _verdicts(some: Sequence[Figure], sources: Sequence[str]) -> Iterator[str]:
    yield "| run | published | predicted for the process | verdict | remark |\n|---|---|--:|---|---|"
    for one in some:
        prediction = one.run.get("predicted", {})
        published = {"fits": f"fits in {one.measured:g} GiB", "oom": f"more than {one.measured:g} GiB"}
        needed = ""
        if "process" in prediction:
            needed = "{} to {} GiB".format(*prediction["process"])
        verdict = prediction.get("fit", "refused")
        yield f"| {_name(one, sources)} | {published[one.quantity]} | {needed} | {verdict} | {one.reason} |"


def _row(one: Figure, sources: Sequence[str]) -> str:
    cells, reason = [_name(one, sources), one.words, f"{one.measured:.2f}"], ""
    for by in BY:
        predicted, error = one.predicted(by), one.error(by)
        if predicted is None or error is None:
            cells += ["", ""]
            continue
        shown = signed_percent(error, 1)
        if abs(error) > EXPLAINED:
            shown = f"**{shown}**"
        if abs(error) > NEGLIGIBLE:
            reason = one.reason
        cells += [f"{predicted:.2f}", shown]
    return f"| {' | '.join([*cells, reason])} |"


def _name(one: Figure, sources: Sequence[str]) -> str:
    return f"{one.run['id']} [{sources.index(one.run['source']) + 1}]"


def main(again: bool, releases: Path | None) -> None:
    """Rehearse what has no prediction, and write the page."""
    published = json.loads(FILE.read_text("utf-8"))
    for run in published["runs"]:
        if again or "predicted" not in run:
            run["predicted"] = predict(run, published)
            run["predicted_with"] = {name: version(name) for name in PACKAGES}
        if releases and "releases" in run:
            python = _environment(releases, run["releases"])
            run["with_releases"] = predict(run, published, "--python", str(python))
        FILE.write_text(written(published), "utf-8")
        print(run["id"], [one.best_error for one in figures({"runs": [run]})], flush=True)
    PAGE.write_text(page(published), "utf-8")


def _environment(folder: Path, releases: Sequence[str]) -> Path:
    """Install releases beside the torch that is installed here."""
    python = folder / "-".join(releases).replace("==", "-") / "bin" / "python"
    if not python.exists():
        packages = [f"torch=={version('torch').partition('+')[0]}", *releases, "accelerate", "peft"]
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


def written(published: Mapping[str, Any]) -> str:
    """Write the file with one run, model or config on a line."""
    parts = []
    for name, value in published.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"{_json(key)}: {_json(row)}" for key, row in value.items())
            parts.append(f'"{name}": {{\n{rows}\n}}')
        else:
            rows = ",\n".join(_json(row) for row in value)
            parts.append(f'"{name}": [\n{rows}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--releases", type=Path)
    typed = parser.parse_args()
    main(typed.again, typed.releases)
