"""The ds_config at hand, the one that was named or that train would use here, and what it needs of a host."""

import os
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zlaunch.checks.disks import HERE, TEMPORARY
from zlaunch.checks.requirements import ANY_JOB, RUN_BYTES, ConfigAtHand, DiskUse, Requirements
from zlaunch.config.find_configs import find_configs
from zlaunch.config.resolve.compose import compose, to_json
from zlaunch.config.resolve.resolve import resolve_values
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.native_ops import needed_ops
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Refused, Severity, WrongUsage
from zlaunch.files import shown
from zlaunch.frozen import dataclass
from zlaunch.job.file_kinds import read_ds_config
from zlaunch.job.spec import JobSpec
from zlaunch.job.stack import SoftwareStack

_OPTIMIZER = "adamw_torch"
"""Of the Trainer, if the ds_config names none."""


@dataclass(frozen=True)
class AtHand:
    """What a job here would read, and need."""

    needs: Requirements
    ops: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Accelerator → names of native ops."""


def find_at_hand(
    ds_config: Path | None,
    job: JobSpec | None,
    job_file: Path | None,
    stack: SoftwareStack = SoftwareStack(),  # noqa: B008 - frozen
) -> AtHand:
    """Find the ds_config: a named one, that of `zlaunch.yaml`, or the only one of this directory.

    The options of `zlaunch.yaml` count as in `train`; `stack` is what would read the ds_config.
    Raises InputMissing if a named file cannot be read.
    """
    named, decides = ds_config, job is not None and _decides(job)
    if named is None and job is not None:
        named = job.ds_config
    if named is None and not decides:
        here = find_configs(Path())
        if len(here) != 1:
            return AtHand(_any_job())
        named = here[0]
    if not decides:
        job_file = None
    config, document = _config_at_hand(named, job_file), None
    try:
        if named is not None:
            document = read_ds_config(Path(named))
        context = Context(packages=stack.versions, release=stack.deepspeed)
        written = compose(job or _NO_JOB, document)
        if document is None or decides:
            document = parse(to_json(written.config()), config.name)
        checked = validate_document(document, context)
        findings = tuple(finding for finding in checked if finding.is_refused)
        warnings = tuple(finding for finding in checked if finding.severity is Severity.WARNING)
        config = replace(config, warnings=warnings)
        if findings:  # nothing can be filled into it
            return with_mistakes(replace(config, findings=findings))
        value = resolve_values(written, context).values.config()
    except Refused as error:
        return with_mistakes(replace(config, findings=tuple(error.findings)))
    except WrongUsage as error:
        finding = Finding("bad-option", error.message, error.hint)
        return with_mistakes(replace(config, findings=(finding,)))
    ops, nvme = _ops_and_nvme(value)
    needs = replace(_any_job(), config=config)
    if nvme:
        directories = {**needs.directories, "NVMe offload": Path(nvme[0])}
        needs = replace(needs, directories=directories, locked_bytes=None)
    return AtHand(needs, ops)


def _config_at_hand(ds_config: Path | None, job_file: Path | None) -> ConfigAtHand:
    """Name the files that a ds_config comes from, and what shows its mistakes."""
    name = " and ".join(shown(file) for file in (ds_config, job_file) if file is not None)
    if job_file is None:
        return ConfigAtHand(name)
    return ConfigAtHand(name, shown_by="zlaunch train --dry-run")


def with_mistakes(config: ConfigAtHand) -> AtHand:
    """What is examined if the ds_config cannot be read."""
    return AtHand(replace(_any_job(), config=config))


def _decides(job: JobSpec) -> bool:
    """Whether a job says more about its ds_config than which file it is."""
    return (job.stage, job.offload, job.overrides) != (None, None, ())


_NO_JOB = JobSpec(Path("train.py"))


def _ops_and_nvme(value: dict[str, Any]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The ops on each accelerator, and the directories of NVMe offload; none if it is broken."""
    try:
        config = DsConfig.model_validate(value)
    except ValidationError:
        return {}, []
    ops = {
        accelerator: tuple(op.name for op in needed_ops(config, accelerator, _OPTIMIZER))
        for accelerator in ("cpu", "cuda")
    }
    offloads = config.zero_optimization.offloads.values()
    return ops, [
        str(offload.nvme_path) for offload in offloads if offload.device == "nvme" and offload.nvme_path
    ]


def _any_job() -> Requirements:
    """What every job writes to."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = os.environ.get("HF_HOME") or home / "huggingface"
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the default
    directories = {HERE: Path.cwd(), "model cache": Path(hub), TEMPORARY: Path(temporary)}
    run = DiskUse(Path.cwd(), RUN_BYTES, "the run directory", "`--run-dir DIR`")
    return replace(ANY_JOB, directories=directories, writes=(run,))
