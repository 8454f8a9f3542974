"""The ds_config at hand, the one that was named or that train would use here, and what it needs of a host."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zlaunch.config.find_configs import find_configs
from zlaunch.config.native_ops import needed_ops
from zlaunch.config.resolve.resolve import resolve_file
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.doctor.checks import JobNeeds
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.errors import FATAL, Refused
from zlaunch.files import shown

_OPTIMIZER = "adamw_torch"
"""Of the Trainer, if the ds_config names none."""


@dataclass(frozen=True)
class AtHand:
    """What a job here would read, and need."""

    subject: JobNeeds
    ops: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Accelerator → names of native ops."""
    paths: dict[str, str] = field(default_factory=dict)
    """Name → a directory that it writes to."""


def find_at_hand(ds_config: Path | None, from_job_file: str | None, over_network: bool) -> AtHand:
    """Find the ds_config: a named one, that of `zlaunch.yaml`, or the only one of this directory.

    Raises InputMissing if a named one cannot be read.
    """
    named = ds_config or (None if from_job_file is None else Path(from_job_file))
    if named is None:
        found = find_configs(Path())
        named = found[0] if len(found) == 1 else None
    paths = {"this directory": str(Path.cwd()), **_caches()}
    if named is None:
        return AtHand(JobNeeds(over_network=over_network), paths=paths)
    name = shown(named)
    try:
        document = read(named)
        context = Context(world_size=None)
        findings = tuple(one for one in validate_document(document, context) if one.severity in FATAL)
        value = resolve_file(document, context).values.config()
    except Refused as error:
        return AtHand(JobNeeds(name, tuple(error.findings), over_network=over_network), paths=paths)
    ops, nvme = _needs(value)
    paths |= {"NVMe offload": nvme[0]} if nvme else {}
    return AtHand(JobNeeds(name, findings, bool(nvme), over_network), ops, paths)


def _needs(value: dict[str, Any]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
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
    return ops, [str(one.nvme_path) for one in offloads if one.device == "nvme" and one.nvme_path]


def _caches() -> dict[str, str]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = os.environ.get("HF_HOME") or str(home / "huggingface")
    return {"model cache": hub, "temporary files": os.environ.get("TMPDIR") or "/tmp"}  # noqa: S108 - the default
