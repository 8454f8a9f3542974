"""Turn the options of an estimate into a query: find the model, the hosts and their GPUs."""

import os
import re
from collections.abc import Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from zlaunch.config.resolve.job import ResolveContext
from zlaunch.config.resolve.trainer_agreement import fsdp_conflict
from zlaunch.config.resolve.values import AUTO, Sourced
from zlaunch.dsconfig.schema_errors import OWN_NAMES
from zlaunch.errors import FATAL, InputMissing, Refused, Severity, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.query import EstimateQuery, Training, training_of
from zlaunch.estimate.workload import Images
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.answers import ask_machines
from zlaunch.hosts.cluster.topology import Host, read_hostfile
from zlaunch.hosts.machine import gpu_catalog
from zlaunch.hosts.machine.interpreter import (
    ESTIMATING,
    Interpreter,
    check_packages,
    inspect_python,
    stack_of,
)
from zlaunch.hosts.machine.measured_speeds import measured_speeds
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.hosts.machine.resources import Gpu, Machine, weakest
from zlaunch.hosts.machine.transformers_source import model_types, trainer_optimizers
from zlaunch.job.file_kinds import read_ds_config, similar_scripts
from zlaunch.job.hub import fetch_code, fetch_model
from zlaunch.job.model import HUB_ID, SEQ_LEN_FLAGS, ModelConfig, read_model
from zlaunch.job.model_checks import check_model
from zlaunch.job.recipes import read_recipe, recipe_named, recipe_path
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import Argument, absent_arguments, read_arguments

DEFAULT_RANKS = 8
"""Ranks per host without GPUs and without `--on`, the usual number of GPUs of a server."""


@dataclass(frozen=True)
class EstimateRequest:
    """The options of an estimate as given; None for those left out."""

    model: str
    job: JobSpec
    options: Options = field(default_factory=Options)
    gpus: int | None = None
    nodes: int | None = None
    on: str | None = None
    host_memory: int | None = None
    """Bytes of each host."""
    network: float | None = None
    """Gb/s from a host to the others."""
    optimizer: str | None = None
    freeze: str | None = None
    images: Images | None = None
    trust_remote_code: bool = False


def resolve_request(request: EstimateRequest) -> EstimateQuery:
    """Find everything a request names; raise if something is missing, or the model cannot work."""
    python = inspect_python(request.job.python)
    check_packages(python, ESTIMATING)
    model = find_model(request.model)
    cluster, machine = find_cluster(request, python)
    job, optimizer = _with_optimizer(request, python)
    stack = stack_of(python)
    args, findings = read_arguments(job.args, release=stack.trainer)
    if optimizer is not None:
        args = args.over("optim", Argument(optimizer, Source.option("--optimizer"), given=True))
    training = _as_recipe(request.model, training_of(model, job.args, request.options))
    if request.freeze is not None:
        training = replace(training, frozen=_pattern(request.freeze))
    if request.images is not None:
        training = replace(training, images=request.images)
    if request.trust_remote_code and "auto_map" in model.value:
        training = replace(training, remote_code=str(code_of(request.model)))
    of_model = check_model(model, model_types(python), training.seq_len.value, request.trust_remote_code)
    findings += [*absent_arguments(job.args, stack.trainer), *fsdp_conflict(job.args), *of_model]
    fatal = tuple(finding for finding in findings if finding.severity in FATAL)
    remarks = tuple(finding for finding in findings if finding.severity not in FATAL)
    if any(finding.severity is Severity.ERROR for finding in of_model):
        raise Refused(fatal)  # its job cannot be checked any further
    base = None
    if job.ds_config is not None:
        base = read_ds_config(job.ds_config)
    given = ResolveContext(base, args, model, machine, cluster.world_size, stack=stack)
    query = EstimateQuery(
        job,
        given,
        model,
        training,
        cluster,
        findings=fatal,
        remarks=remarks,
    )
    return query.with_options(request.options)


def _as_recipe(name: str, training: Training) -> Training:
    """Count the sequences that a recipe trains on, unless something else says how long they are."""
    path = recipe_named(name)
    if path is None or not training.assumes_length:
        return training
    for option in read_recipe(path).options:
        flag = option.flag.lstrip("-")
        if flag in SEQ_LEN_FLAGS and option.default is not None and option.default.isdecimal():
            length = Sourced(int(option.default), Source(SourceKind.SCRIPT, f"the recipe's own `--{flag}`"))
            return replace(training, seq_len=length, assumes_length=False)
    return training


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        hint = "write `--freeze REGEX`, such as `--freeze '^model[.]visual[.]'`"
        raise WrongUsage(f"`--freeze {text}` is no regular expression: {error}", hint) from None
    return text


def _with_optimizer(request: EstimateRequest, python: Interpreter) -> tuple[JobSpec, str | None]:
    """Pass on an optimizer: to the ds_config by DeepSpeed's name, or to the Trainer by its own."""
    if request.optimizer is None:
        return request.job, None
    name = request.optimizer.lower()
    deepspeeds = {known.lower(): known for known in OWN_NAMES["optimizer", "type"]}
    if name in deepspeeds:
        section = ("optimizer", {"type": deepspeeds[name], "params": {"lr": AUTO}})
        return replace(request.job, overrides=(section, *request.job.overrides)), None
    trainers = trainer_optimizers(python)
    if name not in trainers:
        hint = f"DeepSpeed's are {', '.join(deepspeeds)}"
        if similar := get_close_matches(name, [*deepspeeds, *trainers], 1):
            hint = f"did you mean `{similar[0]}`?"
        raise WrongUsage(f"neither DeepSpeed nor the Trainer has an optimizer `{request.optimizer}`", hint)
    return request.job, name


def find_model(name: str) -> ModelConfig:
    """Read a model from a directory, a config.json, a recipe, or the hub."""
    if name.endswith(".py") and not Path(name).exists():
        raise InputMissing(f"there is neither a script nor a model `{name}`", similar_scripts(Path(name)))
    if name.endswith(".py") or makes_its_model(name):
        raise WrongUsage(
            f"`{name}` is a training script, not a model",
            f"`zlaunch estimate {name}` rehearses it; or name its model",
        )
    if Path(name).exists():
        return read_model(Path(name))
    if (recipe := recipe_path(name)) is not None:
        return read_model(read_recipe(recipe).folders[0])
    if not re.fullmatch(HUB_ID, name) or name.endswith(".json"):
        raise InputMissing(
            f"model `{name}` not found", "name a directory, a config.json, or a model on the Hub"
        )
    return fetch_model(name)


def makes_its_model(name: str) -> bool:
    """Whether this names a recipe that has no config.json: its script makes the model."""
    recipe = recipe_named(name)
    return recipe is not None and not read_recipe(recipe).folders


def code_of(name: str) -> Path:
    """Return the directory with a model's own code; fetch it from the hub."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists():
        return path.parent
    return fetch_code(name)


def find_cluster(request: EstimateRequest, python: Interpreter) -> tuple[Cluster, Machine]:
    """Return where the job would run, and one of its hosts as a plan would see it."""
    cluster, machine = _found_cluster(request, python)
    if request.host_memory is not None:
        cluster = replace(cluster, host_bytes=request.host_memory)
    if request.network is not None:
        cluster = replace(cluster, network=request.network * 1e9 / 8)
    return cluster, machine


def _found_cluster(request: EstimateRequest, python: Interpreter) -> tuple[Cluster, Machine]:
    hosts = _hosts_of_hostfile(request)
    named = len(hosts) or request.nodes
    gpus = max((len(host.devices) for host in hosts), default=request.gpus)
    if request.on is not None:
        there, count, gpu = gpu_catalog.parse_hosts_of_gpus(request.on)
        if there is not None and named not in (None, there):
            raise WrongUsage(f"`--on {request.on}` has {there} hosts, and not {named}", "keep one of them")
        if count is not None and gpus is not None and gpus > count:
            raise WrongUsage(
                f"`--on {request.on}` has fewer than the {gpus} GPUs of a host", "keep one of them"
            )
        ranks = gpus or count or 1
        return Cluster(there or named or 1, ranks, gpu), _machine_with(gpu.name, gpu.has_bf16, ranks)
    machines = [probe_machine(os.environ, python)]
    if hosts:
        machines = [*ask_machines(hosts, machines[0], request.job.python).values()]
    here = weakest(machines)
    ranks = gpus or len(here.gpus) or DEFAULT_RANKS
    if not here.gpus:
        return Cluster(named or 1, ranks), _machine_with("a GPU since Ampere", True, ranks)
    measured = measured_speeds([host.name for host in hosts], here, request.job.nvme_dir)
    return Cluster(named or 1, ranks, smallest_gpu(machines), here.memory_bytes, measured=measured), here


def _hosts_of_hostfile(request: EstimateRequest) -> tuple[Host, ...]:
    if request.job.hostfile is None:
        return ()
    if request.gpus is not None or request.nodes is not None:
        raise WrongUsage("`--hostfile` sets the number of hosts and GPUs", "drop `--gpus` and `--nodes`")
    hosts = tuple(line.host for line in read_hostfile(request.job.hostfile))
    if uncounted := [host.name for host in hosts if not host.devices]:
        raise WrongUsage(
            f"the hostfile does not say how many slots `{uncounted[0]}` has",
            f"write `{uncounted[0]} slots=N`",
        )
    return hosts


def smallest_gpu(machines: Sequence[Machine]) -> gpu_catalog.GpuModel:
    """Find the GPU with the least memory on all hosts; one not in the catalog has no known speed."""
    gpus = chain.from_iterable(machine.gpus for machine in machines)
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    name, capability = smallest.name, smallest.compute_capability
    unknown = gpu_catalog.GpuModel(name, smallest.memory_bytes, 0, 0, 0, 0, 0, 0, (name,), capability)
    return gpu_catalog.gpu_from_nvml(name) or unknown


def _machine_with(name: str, has_bf16: bool, count: int) -> Machine:
    """Describe a machine that is not here, as far as a ds_config depends on it."""
    capability = (7, 0)
    if has_bf16:
        capability = (8, 0)
    return Machine("", 1, 0, tuple(Gpu(index, name, "", 0, capability) for index in range(count)))
