"""The environment of the ranks: how it differs from that of zlaunch, and why."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from zlaunch.errors import WrongUsage
from zlaunch.files import is_safe_word
from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.topology import Topology
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.resources import Machine
from zlaunch.rundir.layout import RunDir
from zlaunch.secrets import HIDDEN, is_secret
from zlaunch.units import plural

FORWARDED = (
    *("CUDA_", "DS_", "GLOO_", "HF_", "MLFLOW_", "NCCL_", "OMP_", "PYTHON", "TORCH_", "TRANSFORMERS_"),
    *("UCX_", "WANDB_"),
)
"""Prefixes of variables that other hosts get too."""

EXPORTED = ("MLFLOW", "MV2", "NCCL", "PYTHON", "UCX")
"""Prefixes of variables that DeepSpeed's runner exports (`deepspeed/launcher/runner.py`)."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of the ranks, and the reason for it."""

    value: str
    why: str
    prepended: str | None = None
    """What was put before the old value, if nothing else changed."""
    is_secret: bool = False
    """Whether its value is only in the private record of the run."""

    def shown(self, name: str) -> str:
        """Write the value for a shell; `$PATH` stands for the old value."""
        if self.is_secret:
            return HIDDEN
        if self.prepended is None:
            return shlex.quote(self.value)
        return f"{shlex.quote(self.prepended)}{os.pathsep}${name}"


def job_environment(
    machine: Machine,
    topology: Topology,
    environ: Mapping[str, str],
    own: Mapping[str, Variable],
    python: Interpreter,
) -> dict[str, Variable]:
    """Variables for the ranks; what the user has set is not changed.

    `own` are variables of this job, such as those that name the ds_config for scripts that read them.
    """
    wanted = {
        **dict(_program_path(python, environ)),
        **_threads(machine, topology),
        **_devices(machine, topology, environ),
        **_quiet(),
        **own,
    }
    forced = {"PATH", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR"}
    chosen = {name: variable for name, variable in wanted.items() if name in forced or name not in environ}
    if not topology.spans_hosts:
        return chosen
    why = "forwarded to every host"
    return {**{name: Variable(value, why) for name, value in forwarded(environ).items()}, **chosen}


def asked_variables(
    words: Sequence[str], environ: Mapping[str, str], places: Mapping[str, str]
) -> dict[str, Variable]:
    """Read `--env NAME=VALUE`, or `--env NAME` for the value here; raise WrongUsage if there is none.

    `places` are those of a JobSpec.
    """
    variables: dict[str, Variable] = {}
    for word in words:
        name, is_given, value = word.partition("=")
        asked, option, source = f"`--env {word}`", "--env ", "`--env`"
        if (place := places.get(f"env.{name}")) is not None:
            asked, option, source = f"{place}: `env: {word}`", "", f"`env.{name}` in {place}"
        if not is_name(name):
            raise WrongUsage(
                f"{asked} does not name a variable", f"write `{option}NAME` or `{option}NAME=VALUE`"
            )
        if not is_given and name not in environ:
            hint = f"write `{option}{name}=VALUE`"
            if is_secret(name):
                hint = f"type `export {name}=…` first"
            raise WrongUsage(f"{asked}: {name} is not set here", hint)
        if not is_given:
            value = environ[name]
        variables[name] = Variable(value, source, is_secret=is_secret(name, value))
    return variables


def is_name(text: str) -> bool:
    """Whether a shell takes a text for the name of a variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


def refuse_impossible(name: str, value: str) -> None:
    """Raise ValueError for what no process can have in its environment."""
    if not name or "=" in name or "\0" in name + value:
        raise ValueError(f"{name!r} is no variable")


def may_export(name: str, value: str) -> bool:
    """Whether DeepSpeed's runner may have a variable: it exports some to other hosts, and logs their values.

    It puts some values in double quotes without escaping what is in them.
    """
    return not name.startswith(EXPORTED) or (is_safe_word(value) and not is_secret(name, value))


def _program_path(python: Interpreter, environ: Mapping[str, str]) -> Iterator[tuple[str, Variable]]:
    if missing := python.not_on_path(environ):
        programs, path = os.pathsep.join(missing), environ.get("PATH", os.defpath)
        why = "programs of the ranks' Python, such as ninja"
        yield "PATH", Variable(f"{programs}{os.pathsep}{path}", why, programs)


def _threads(machine: Machine, topology: Topology) -> dict[str, Variable]:
    """Torchrun gives a rank one thread, too few for an optimizer on the CPU; deepspeed gives it all."""
    if machine.num_cores == 0:  # unknown
        return {}
    ranks = max(len(host.devices) for host in topology.hosts)
    threads = max(1, machine.num_cores // ranks)
    why = f"{plural(machine.num_cores, 'core')} for {plural(ranks, 'rank')}"
    return {"OMP_NUM_THREADS": Variable(str(threads), why)}


def _devices(machine: Machine, topology: Topology, environ: Mapping[str, str]) -> dict[str, Variable]:
    if not machine.gpus:
        return {"DS_ACCELERATOR": Variable("cpu", machine.why_cpu)}
    order = {"CUDA_DEVICE_ORDER": Variable("PCI_BUS_ID", "device numbers are those of nvidia-smi")}
    if topology.spans_hosts:
        return order
    chosen = ",".join(str(slot.device) for slot in topology.slots())
    if chosen == environ.get("CUDA_VISIBLE_DEVICES"):
        return order
    return {**order, "CUDA_VISIBLE_DEVICES": Variable(chosen, "the devices of this job")}


_NOISE = ("FutureWarning:torch.distributed.c10d_logger", "UserWarning:_distutils_hack")
"""Of torch 2.13 at every collective of a step, and of setuptools after DeepSpeed looked for a library."""


def _quiet() -> dict[str, Variable]:
    filters = ",".join(f"ignore::{kind}" for kind in _NOISE)
    return {"PYTHONWARNINGS": Variable(filters, "hides warnings of torch and setuptools about DeepSpeed")}


def accelerate_variables(layout: RunDir, precision: str | None) -> dict[str, Variable]:
    """Variables that name the ds_config for accelerate and the Trainer; without a precision, it is theirs."""
    why = "accelerate and the Trainer read the ds_config from these variables"
    names = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(layout.ds_config)}
    if precision is not None:
        names["ACCELERATE_MIXED_PRECISION"] = precision.replace("fp32", "no")
    return {name: Variable(value, why) for name, value in names.items()}


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of this machine that the ranks on other hosts get."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(FORWARDED) and not is_secret(name, value) and name != "CUDA_VISIBLE_DEVICES"
    }


INHERITED = (*FORWARDED, "LD_")
"""Prefixes of variables of zlaunch itself that change what a job does."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that a rerun must restore; secrets are never among them."""
    given = environ.items()
    return {name: value for name, value in given if name.startswith(INHERITED) and not is_secret(name, value)}
