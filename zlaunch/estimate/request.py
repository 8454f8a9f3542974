"""The words of an estimate → its question: the model, the hosts and GPUs it is about, all looked up."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from zlaunch.config.resolve.resolve import ResolveContext
from zlaunch.config.resolve.values import AUTO
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema_errors import OWN_NAMES
from zlaunch.errors import FATAL, InputMissing, Refused, Severity, WrongUsage
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.query import EstimateQuery, TrainingOptions, training_of
from zlaunch.hosts import gpu_catalog
from zlaunch.hosts.machine import Gpu, Machine, weakest
from zlaunch.hosts.probe import model_types, probe_machine, trainer_optimizers
from zlaunch.hosts.ssh import survey_hosts
from zlaunch.hosts.topology import read_hostfile
from zlaunch.job.hub import HUB_ID, fetch_code, fetch_model
from zlaunch.job.model import ModelConfig, read_model
from zlaunch.job.model_checks import check_model
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import Argument, read_arguments, removed_arguments

RANKS_IF_NOBODY_KNOWS = 8
"""GPUs as they are rented: one host of eight."""


@dataclass(frozen=True)
class EstimateRequest:
    """What was asked, in the user's words; None for what was not said."""

    model: str
    job: JobSpec
    options: TrainingOptions
    arguments: tuple[tuple[str, int | str, str], ...] = ()
    """Arguments of the Trainer that options set: name, value, option."""
    gpus: int | None = None
    nodes: int | None = None
    on: str | None = None
    optimizer: str | None = None
    trusts_code: bool = False


def resolve_request(words: EstimateRequest) -> tuple[EstimateQuery, Cluster]:
    """Look up all that the words name; raise the first thing missing, or what is wrong with the model."""
    model = find_model(words.model)
    site, machine = find_cluster(words)
    job, named = _with_optimizer(words)
    args, findings = read_arguments(job.script_args)
    for name, value, option in (*words.arguments, *named):
        args = args.over(name, Argument(value, Source(SourceKind.OPTION, option), given=True))
    training = training_of(model, job.script_args, words.options)
    if words.trusts_code and "auto_map" in model.value:
        training = replace(training, remote_code=str(code_of(words.model)))
    of_model = check_model(model, model_types(), training.seq_len.value, words.trusts_code)
    findings += [*removed_arguments(job.script_args), *of_model]
    if any(one.severity is Severity.ERROR for one in of_model):  # nothing more can be said about its job
        raise Refused([one for one in findings if one.severity in FATAL])
    base = None if job.ds_config is None else read(job.ds_config)
    given = ResolveContext(base, args, model.shape, machine, site.world_size, ConfigInterface.TRAINER)
    question = EstimateQuery(
        job,
        given,
        model,
        training,
        site.ranks_per_host,
        findings=tuple(one for one in findings if one.severity in FATAL),
        remarks=tuple(one for one in findings if one.severity not in FATAL),
    )
    return question, site


def _with_optimizer(words: EstimateRequest) -> tuple[JobSpec, tuple[tuple[str, str, str], ...]]:
    """Take an optimizer by DeepSpeed's name or by the Trainer's, as its owner would be told of it."""
    if words.optimizer is None:
        return words.job, ()
    name = words.optimizer.lower()
    own = {one.lower(): one for one in OWN_NAMES["optimizer", "type"]}
    if name in own:
        section = ("optimizer", {"type": own[name], "params": {"lr": AUTO}})
        return replace(words.job, overrides=(section, *words.job.overrides)), ()
    known = trainer_optimizers()
    if name not in known:
        meant = get_close_matches(name, [*own, *known], 1)
        hint = f"did you mean `{meant[0]}`?" if meant else f"DeepSpeed's are {', '.join(own)}"
        raise WrongUsage(f"neither DeepSpeed nor the Trainer has an optimizer `{words.optimizer}`", hint)
    return words.job, (("optim", name, "`--optimizer`"),)


def find_model(name: str) -> ModelConfig:
    """Read a model from a directory, from a config.json, or from the hub."""
    if Path(name).exists():
        return read_model(Path(name))
    if not HUB_ID.fullmatch(name) or name.endswith(".json"):
        raise InputMissing(
            f"there is no model `{name}`", "name a directory, a config.json, or a model on the hub"
        )
    return fetch_model(name)


def code_of(name: str) -> Path:
    """Name the directory with a model's own code; from the hub it is fetched."""
    path = Path(name)
    if path.exists():
        return path if path.is_dir() else path.parent
    return fetch_code(name)


def find_cluster(words: EstimateRequest) -> tuple[Cluster, Machine]:
    """Say where the job would run, and describe a host of it as a plan would see it."""
    slots = _slots(words)
    num_hosts, asked = len(slots) or words.nodes or 1, max(slots.values(), default=words.gpus)
    if words.on is not None:
        count, gpu = gpu_catalog.parse_gpus(words.on)
        if count is not None and asked is not None and asked > count:
            raise WrongUsage(
                f"`--on {words.on}` has fewer than the {asked} GPUs of a host", "keep one of them"
            )
        ranks = asked or count or 1
        return Cluster(num_hosts, ranks, gpu), _machine_with(gpu.name, gpu.has_bf16, ranks)
    machines = [probe_machine(os.environ)]
    if slots:
        names = list(slots)
        machines = list(survey_hosts(names, machines[0]).machines(names).values())
    here = weakest(machines)
    ranks = asked or len(here.gpus) or RANKS_IF_NOBODY_KNOWS
    if not here.gpus:
        return Cluster(num_hosts, ranks), _machine_with("a GPU since Ampere", True, ranks)
    return Cluster(num_hosts, ranks, smallest_gpu(machines), here.memory_bytes), here


def _slots(words: EstimateRequest) -> Mapping[str, int]:
    """Read how many slots each host of the hostfile has; nothing without a hostfile."""
    if words.job.hostfile is None:
        return {}
    if words.gpus is not None or words.nodes is not None:
        raise WrongUsage("`--hostfile` says how many hosts and GPUs there are", "drop `--gpus` and `--nodes`")
    return {line.host.name: len(line.host.devices) for line in read_hostfile(words.job.hostfile)}


def smallest_gpu(machines: Sequence[Machine]) -> gpu_catalog.GpuModel:
    """Find the smallest GPU of all hosts, which need not be the oldest."""
    return known_gpu([gpu for machine in machines for gpu in machine.gpus])


def known_gpu(gpus: Sequence[Gpu]) -> gpu_catalog.GpuModel:
    """Find the smallest GPU in the table; one that is not in it has its memory, and no known speed."""
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    found = gpu_catalog.gpu_from_nvml(smallest.name)
    if found is not None:
        return found
    bf16 = smallest.compute_capability >= (8, 0)
    return gpu_catalog.GpuModel(
        smallest.name, smallest.memory_bytes, 0, 0, 0, bf16, 0, 0, 0, (smallest.name,)
    )


def _machine_with(name: str, has_bf16: bool, count: int) -> Machine:
    """Describe a machine that is not here, as far as a ds_config depends on it."""
    capability = (8, 0) if has_bf16 else (7, 0)
    return Machine("", 1, 0, tuple(Gpu(index, name, "", 0, capability) for index in range(count)))
