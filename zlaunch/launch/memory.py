"""Memory checks before a start: whether the job fits, and which strategy to use.

If the sequence length is unknown, a short one is assumed: a job that does not fit then never fits.
"""

from collections.abc import Sequence
from dataclasses import replace

from zlaunch.errors import Finding, Refused, Severity, Unavailable, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.effects import find_remedies, fitting, try_changes
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, Training, training_of
from zlaunch.estimate.request import code_of, smallest_gpu
from zlaunch.estimate.splits import split_by_script
from zlaunch.estimate.strategies import available, compare_strategies
from zlaunch.job.model import ModelConfig, model_flag
from zlaunch.job.script import ConfigInterface, setting_of
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import switched_on
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.requirements import trains_all
from zlaunch.units import memory

SHORT_SEQ_LEN = 128
MOST_HINTS = 3

_ELSE = ("search with `zlaunch plan MODEL`", "use a smaller model, or fewer ranks: `--gpus 1`")
"""Hints if no single change helps: with GPUs, and without."""


def query_for(prepared: Prepared) -> EstimateQuery | None:
    """Describe a job that is about to start; None if its model is unknown."""
    inputs, model = prepared.inputs, prepared.facts.model
    if model is None:
        return None
    hosts = inputs.topology.hosts
    args, _ = inputs.read_args()
    given = inputs.context(args)
    machines = prepared.facts.machines(hosts).values()
    gpu = smallest_gpu(list(machines)) if inputs.machine.gpus else None
    ranks = max(len(host.devices) for host in hosts)
    cluster = Cluster(len(hosts), ranks, gpu, inputs.machine.memory_bytes)
    return EstimateQuery(inputs.job, given, model, _training(prepared, model), cluster)


def _query(option: str, prepared: Prepared) -> EstimateQuery:
    """Describe a job; raise Unavailable where an estimate would be about another one."""
    query = query_for(prepared)
    if query is None:
        makes_it = prepared.inputs.script.interface is ConfigInterface.DEEPSPEED
        leave, name = f"drop `{option}` for this script", "name the model: `-- --model_name_or_path DIR`"
        raise Unavailable(f"`{option}` needs to know the model", leave if makes_it else name)
    if not trains_all(prepared.inputs.script, prepared.inputs.trainer_flags):
        raise Unavailable(
            "cannot estimate this job: the script may train only adapters or nothing, or quantize the model",
            f"drop `{option}`; `zlaunch estimate MODEL --lora RANK` estimates adapters",
        )
    return query


def _training(prepared: Prepared, model: ModelConfig) -> Training:
    inputs = prepared.inputs
    training = training_of(model, inputs.trainer_flags, Options(), SHORT_SEQ_LEN)
    if "auto_map" in model.value and _trusts_code(prepared):
        named = model_flag(inputs.trainer_flags)
        training = replace(training, remote_code=None if named is None else str(code_of(named)))
    partitioned = (
        inputs.script.interface is not ConfigInterface.DEEPSPEED or "zero.Init" in inputs.script.source
    )
    split = training.split or split_by_script(inputs.script)
    return replace(training, partitioned_at_birth=partitioned, split=split)


def _trusts_code(prepared: Prepared) -> bool:
    """Whether the script runs the model's own code, by its arguments or by itself."""
    said = switched_on(prepared.inputs.trainer_flags, "trust_remote_code")
    return prepared.inputs.script.trusts_code if said is None else said


def check_memory(prepared: Prepared, estimator: Estimator) -> Estimate:
    """Rehearse a job; raise Refused if DeepSpeed gives up or the job cannot fit."""
    (estimate,) = estimator.rehearse([_query("--rehearse", prepared)])
    if isinstance(estimate, Rejected):
        raise estimate.error
    if estimate.fit is Fit.NO:
        message = "; ".join(estimate.verdict.reasons)
        hint = _hint(estimate.query, fitting(try_changes(estimate, estimator)))
        hint += "; `--force` starts it anyway"
        raise Refused([Finding("does-not-fit", message, hint, severity=Severity.FAILS_LATER)])
    return estimate


def choose_stage(prepared: Prepared, estimator: Estimator) -> tuple[JobSpec, str]:
    """Give a job the fastest strategy that fits, and say why.

    Raise Unavailable if that cannot be told, Refused if none fits.
    """
    if prepared.inputs.job.offload is not None:
        raise WrongUsage("`--stage auto` chooses the offload too", "drop `--offload`, or choose the stage")
    query = _query("--stage auto", prepared)
    table = compare_strategies(query, estimator, available(query))
    if table.chosen is not None:
        strategy, estimate = table.chosen
        job = replace(estimate.query.job, is_chosen=True)
        return job, f"`{strategy.options}` is the fastest that fits: {_need(estimate)}"
    for _, one in table.rows:
        if isinstance(one, Rejected) and isinstance(one.error, Unavailable):
            raise one.error
    for _, estimate in table.estimates:
        if estimate.fit is Fit.UNKNOWN:
            reasons = "; ".join(estimate.verdict.reasons)
            raise Unavailable(f"cannot tell what fits: {reasons}", "choose a stage, such as `--stage 2`")
    hint = _hint(query, find_remedies(query, available(query), estimator))
    raise Refused([Finding("does-not-fit", "this job does not fit with any stage or offload", hint)])


def _need(estimate: Estimate) -> str:
    host = f"{memory(estimate.need.host)} on each host"
    return f"{memory(estimate.need.process[1])} on each GPU, {host}" if estimate.forecast.on_gpu else host


def _hint(query: EstimateQuery, changes: Sequence[Options]) -> str:
    """Name the changes after which a job fits, as `zlaunch train` takes them."""
    given = query.given
    setting = setting_of(given.interface, given.handover)
    typed = [text for one in changes if (text := one.for_train(setting))][:MOST_HINTS]
    if not typed:
        return _ELSE[query.cluster.gpu is None]
    return f"it fits with {', or with '.join(f'`{text}`' for text in typed)}"
