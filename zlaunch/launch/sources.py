"""The files that a job names: its script, ds_config and hostfile. No program and no host is asked."""

import json
from dataclasses import replace
from pathlib import Path

from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import WrongUsage, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.placement import choose_slots, uncounted_hosts
from zlaunch.hosts.cluster.topology import HostLine, Topology, read_hosts
from zlaunch.job.file_kinds import read_ds_config
from zlaunch.job.launching_source import starts_ranks_itself
from zlaunch.job.script import FSDP, ConfigInterface, Handover, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.source import Source
from zlaunch.job.spec import JobSpec
from zlaunch.launch.argument_checks import check_script_args
from zlaunch.resume.save_plan import save_arguments


@dataclass(frozen=True)
class Sources:
    """A job, and the files that it names."""

    job: JobSpec
    """With the arguments by which its script is told where to save."""
    script: Script
    ds_config: Document | None
    hostfile: tuple[HostLine, ...]
    hosts: Topology | None
    """The slots that the job uses on several hosts; None on this one alone, and until they are counted."""


def read_sources(job: JobSpec) -> Sources:
    """Read the files a job names, and check the arguments of its script.

    Raises InputMissing or Refused for a file that cannot be read, WrongUsage for slots that no host has, for
    arguments that the script certainly does not define, and for a script that starts ranks itself.
    """
    script = _for_command_line(read_script(job.script), job)
    if script.launcher is not None:
        raise WrongUsage(*starts_ranks_itself(job.shown_name, script.launcher))
    is_its_own = script.handover is Handover.NOT and bool(job.config_flags)
    ds_config: Document | None = None
    if job.ds_config is not None and not is_its_own:
        ds_config = read_ds_config(job.ds_config)
    lines: tuple[HostLine, ...] = ()
    topology: Topology | None = None
    if job.names_hosts:
        lines = read_hosts(job.hostfile, job.hosts)
        if not uncounted_hosts(lines):
            topology = choose_slots(lines, job.devices)
    if job.save is not None:
        words = save_arguments(job.save, job.args, script)
        source = str(Source.option("--save").placed(job.places, ""))
        job = replace(job, save=None, args=job.args.preceded_by(words, dict.fromkeys(words, source)))
    check_script_args(script, job.args)
    return Sources(job, script, ds_config, lines, topology)


def _for_command_line(script: Script, job: JobSpec) -> Script:
    """Return the script as it trains with this command line.

    With FSDP, the Trainer excludes DeepSpeed. A ds_config that the parser of the script names is its own if
    the job says nothing about it.
    """
    if script.interface is ConfigInterface.TRAINER and job.args.fsdp:
        return replace(script, interface=ConfigInterface.NONE, without_deepspeed=FSDP)
    default, is_open = script.default_config, job.ds_config is None and not job.config_options
    if default is not None and is_open and Path(str(default.value)).is_file():
        return replace(script, own_config=default)
    return script


def planned_config(script: Script, ds_config: Document | None) -> Document | None:
    """Return the user's ds_config, or that of the script; None if it cannot be read, which is up to it."""
    brought = script.own_config
    if brought is None:
        return ds_config
    try:
        if isinstance(brought.value, str):
            return read(Path(brought.value))
        if brought.value is None:
            return None
        return parse(json.dumps(brought.value, indent=2, default=str), brought.where)
    except ZlaunchError:
        return None
