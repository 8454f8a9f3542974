"""The packages that a job's monitors need: those of the ds_config and of `--report_to`."""

import difflib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from zlaunch.checks.requirements import Requirements, Tracker
from zlaunch.checks.result import CheckResult, judged
from zlaunch.errors import Finding
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.job.args import ScriptArgs

SECTIONS: Mapping[str, str] = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Section of the ds_config → the package that rank 0 imports for it (`deepspeed/monitor/utils.py`)."""

REPORTERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "azure_ml": (("azureml",),),
    "clearml": (("clearml",),),
    "codecarbon": (("codecarbon",),),
    "comet_ml": (("comet_ml",),),
    "dagshub": (("dagshub",), ("mlflow",)),
    "dvclive": (("dvclive",),),
    "flyte": (("flytekit",),),
    "kubeflow": (),
    "mlflow": (("mlflow",),),
    "neptune": (("neptune",),),
    "swanlab": (("swanlab",),),
    "tensorboard": (("tensorboard", "tensorboardX"),),
    "trackio": (("trackio",),),
    "wandb": (("wandb",),),
}
"""Name that `--report_to` takes → the packages it needs, any one of each group
(`transformers/integrations/integration_utils.py`)."""

PACKAGES = sorted({*SECTIONS.values(), *chain(*chain(*REPORTERS.values()))})

UNKNOWN_MONITOR = "unknown-monitor"

PROJECTS: Mapping[str, str] = {
    "azureml": "azureml-core",
    "comet_ml": '"comet_ml>=3.41.0"',
    "neptune": '"neptune<2"',
}
"""Package → what to `pip install`, where that is another name or a range of releases."""


def reporters_of(config: Mapping[str, Any], args: ScriptArgs, is_trainer: bool) -> Iterator[Tracker]:
    """List the monitors that the ds_config and, for a Trainer script, its arguments enable."""
    for section, package in SECTIONS.items():
        values = config.get(section)
        if isinstance(values, Mapping) and values.get("enabled") is True:
            key = f"{section}.enabled"
            yield Tracker(key, f"`{key}` is true", (package,), f"`--set {key}=false`")
    for name in args.words_of("report_to") if is_trainer else ():
        for packages in REPORTERS.get(name, ()):
            typed = f"`--report_to {name}`"
            yield Tracker("--report_to", typed, packages, "`-- --report_to none`")


def monitors(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Find monitors whose packages are missing, and names that transformers does not know."""
    findings = [*unknown_reporters(needs.args)]
    for monitor in needs.monitors:
        findings += _lacks_packages(monitor, facts.python.missing)
    for finding in findings:
        yield judged(f"monitor {finding.where}", finding.message, finding)


def unknown_reporters(args: ScriptArgs) -> Iterator[Finding]:
    """Find names that transformers does not know, which it reports only when it makes the Trainer."""
    for name in args.words_of("report_to"):
        if name not in REPORTERS and name not in ("all", "none"):
            meant = difflib.get_close_matches(name, REPORTERS, 1)
            hint = f"choose one of {', '.join(REPORTERS)}, or `none`"
            if meant:
                hint = f"did you mean `{meant[0]}`?"
            yield Finding(UNKNOWN_MONITOR, f"transformers has no integration `{name}`", hint, "--report_to")


def _lacks_packages(monitor: Tracker, missing: frozenset[str]) -> Iterator[Finding]:
    """Find that none of the packages a monitor can use is installed."""
    if not missing.issuperset(monitor.packages):
        return
    names = " or ".join(f"`{package}`" for package in monitor.packages)
    project = PROJECTS.get(monitor.packages[0], monitor.packages[0])
    yield Finding(
        "monitor-missing",
        f"{monitor.said}, but {names} is not installed in the Python of the ranks",
        f"`pip install {project}`, or {monitor.instead}",
        monitor.where,
    )
