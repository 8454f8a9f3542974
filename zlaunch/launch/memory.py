"""Memory checks before a start: whether the job fits, and which strategy to use.

If nothing says how long the sequences are, the check counts short ones: a job that does not fit then never
fits, and none is said to fit. A strategy is then chosen for sequences of the usual length, and the plan says
so.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from zlaunch.config.resolve.values import Sourced
from zlaunch.console import shell_line
from zlaunch.errors import Finding, Refused, Severity, Unavailable, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.effects import find_remedies, fitting, try_changes
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Cluster, Fit, check_fit
from zlaunch.estimate.query import (
    USUAL_SEQ_LEN,
    Estimate,
    EstimateQuery,
    Rejected,
    Training,
    training_of,
)
from zlaunch.estimate.request import code_of, smallest_gpu
from zlaunch.estimate.splits import split_by_script
from zlaunch.estimate.strategies import Strategy, available, compare_strategies, job_with
from zlaunch.estimate.uncounted import Effect, Uncounted, in_script
from zlaunch.hosts.agent.python_of_host import python_here
from zlaunch.hosts.machine.measured_speeds import measured_speeds
from zlaunch.job.model import MODEL_FLAGS, model_flag
from zlaunch.job.script import RESUME, ConfigInterface, setting_of
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import refuse_without_deepspeed
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.rehearsed_program import estimate_of, rehearse_job, why_not
from zlaunch.launch.reporter import PlanReporter
from zlaunch.units import memory

SHORT_SEQ_LEN = 128
MOST_HINTS = 3

_ELSE = ("search with `zlaunch plan MODEL`", "use a smaller model, or fewer ranks: `--gpus 1`")
"""Hints if no single change helps: with GPUs, and without."""


def with_memory(
    facts: JobFacts, options: LaunchOptions, reporter: PlanReporter, *, must_fit: bool
) -> JobFacts:
    """Choose a stage if that is asked for, and estimate the memory.

    Where somebody asks for either, the program itself is rehearsed if it can be. Raises Refused for a job
    that cannot fit.
    """
    program: Estimate | None = None
    asks = options.auto_stage or options.rehearse
    doubt = _by_model_because(facts, options.seq_len)
    if asks and doubt is None:
        if options.seq_len is not None:
            reporter.note(
                f"`--seq-len {options.seq_len}` has no effect: the script is rehearsed with its own batches"
            )
        refuse_without_deepspeed(facts.job, facts.script, "estimate")
        try:
            facts, program = _rehearsed(facts, reporter, chooses=options.auto_stage)
        except ProgramNotRehearsed as error:
            doubt = str(error)
            reporter.note(f"{doubt}; its model is estimated instead")
    if program is None:
        return _with_memory_of_model(facts, options, reporter, must_fit=must_fit, doubt=doubt)
    reporter.warn(program.remarks)
    return replace(facts, estimate=program)


class ProgramNotRehearsed(Exception):
    """Why a program cannot be rehearsed."""


def _by_model_because(facts: JobFacts, seq_len: int | None) -> str | None:
    """Say why a job is estimated by its model, without a rehearsal of its program; None: it is rehearsed."""
    if seq_len is not None and facts.model is not None:
        return f"`--seq-len {seq_len}` is about the model"
    if facts.job.resume is not None or facts.trainer_flags.value(RESUME):
        return f"{facts.job.shown_name} resumes, and a rehearsal reads no checkpoint"
    return None


def _rehearsed(facts: JobFacts, reporter: PlanReporter, *, chooses: bool) -> tuple[JobFacts, Estimate]:
    """Rehearse a program, with the first strategy that fits if one is to be chosen.

    Raise ProgramNotRehearsed for one that cannot be, Refused if it cannot fit.
    """
    if not chooses:
        estimate = _of_program(facts, reporter)
        if estimate.fit is Fit.NO:
            raise _does_not_fit(estimate, _hint_by_model(facts))
        return facts, estimate
    found = first_that_fits(facts, lambda tried: _of_program(tried, reporter))
    if found is None:
        message = "this job does not fit with any stage or offload"
        raise Refused([Finding("does-not-fit", message, _hint_by_model(facts))])
    job, why, estimate = found
    reporter.note(why, "stage")
    return replace(facts, job=job), estimate


def first_that_fits(
    facts: JobFacts, rehearse: Callable[[JobFacts], Estimate]
) -> tuple[JobSpec, str, Estimate] | None:
    """Rehearse a program with one strategy after another; return the first that fits, and why it is chosen.

    A strategy that DeepSpeed does not accept with this ds_config is passed over. Raise Unavailable if that
    cannot be told.
    """
    refuse_offload(facts.job)
    for strategy in available(facts.job):
        job = job_with(facts.job, strategy, has_base=facts.ds_config is not None)
        try:
            estimate = rehearse(replace(facts, job=job))
        except Refused:
            continue
        counted = _fit_of_counted(estimate)
        if counted is Fit.YES:
            return replace(job, is_chosen=True), _why(strategy, estimate), estimate
        if counted is Fit.UNKNOWN:
            reasons = "; ".join(estimate.verdict.reasons)
            raise Unavailable(f"cannot tell what fits: {reasons}", "choose a stage, such as `--stage 2`")
    return None


def _of_program(facts: JobFacts, reporter: PlanReporter) -> Estimate:
    cluster = _cluster(facts)
    try:
        plan, result = rehearse_job(facts, cluster, reporter)
    except Unavailable as error:
        raise ProgramNotRehearsed(error.message) from None
    if result.forecast is None:
        raise ProgramNotRehearsed(why_not(facts, result))
    return estimate_of(plan, cluster, result, result.forecast)


def _fit_of_counted(estimate: Estimate) -> Fit:
    """Whether what is counted fits, and all that is not counted is what lines decide by values."""
    training = estimate.query.training
    others = [one for one in training.uncounted if not one.is_undecided]
    return check_fit(estimate.forecast, estimate.query.cluster, others).fit


def _why(strategy: Strategy, estimate: Estimate) -> str:
    said = f"`{strategy.options}` is the first that fits: {_need(estimate)}"
    if estimate.fit is Fit.UNKNOWN:
        doubts = "; ".join(str(one) for one in estimate.query.training.uncounted)
        said = f"`{strategy.options}` is the first of which what is counted fits: {_need(estimate)}; {doubts}"
    return said


def _does_not_fit(estimate: Estimate, hint: str) -> Refused:
    message = "; ".join(estimate.verdict.reasons)
    hint += "; `--force` starts it anyway"
    return Refused([Finding("does-not-fit", message, hint, severity=Severity.FAILS_LATER)])


def _hint_by_model(facts: JobFacts) -> str:
    """Name changes after which the model of a job fits."""
    without = _ELSE[not facts.machine.gpus]
    try:
        query = _query("--rehearse", facts, None, SHORT_SEQ_LEN)
    except Unavailable:
        return without
    with Estimator(python=python_here(facts.hostfile, facts.job.python)) as estimator:
        (estimate,) = estimator.rehearse([query])
        if isinstance(estimate, Rejected):
            return without
        return _remedies_hint(query, fitting(try_changes(estimate, estimator)))


def _with_memory_of_model(
    facts: JobFacts, options: LaunchOptions, reporter: PlanReporter, *, must_fit: bool, doubt: str | None
) -> JobFacts:
    """Choose a stage and estimate the memory by what is known of the model, in one rehearsal process."""
    with Estimator(python=python_here(facts.hostfile, facts.job.python)) as estimator:
        if options.auto_stage:
            job, why = choose_stage(facts, estimator, options.seq_len)
            reporter.note(why, "stage")
            facts = replace(facts, job=job)
        if not must_fit:
            return facts
        try:
            estimate = check_memory(facts, estimator, options.seq_len)
        except Unavailable as error:
            if options.rehearse:
                if doubt is None:
                    raise
                raise Unavailable(f"{error.message}, and {doubt}", error.hint) from None
            reporter.note(error.message)  # the job may well work: it starts
            return facts
    reporter.warn(estimate.remarks)
    return replace(facts, estimate=estimate)


def _cluster(facts: JobFacts) -> Cluster:
    hosts = facts.topology.hosts
    gpu = smallest_gpu(list(facts.machines.values())) if facts.machine.gpus else None
    ranks = max(len(host.devices) for host in hosts)
    measured = measured_speeds([host.name for host in hosts], facts.machine, facts.job.nvme_dir)
    return Cluster(len(hosts), ranks, gpu, facts.machine.memory_bytes, measured=measured)


def query_for(
    facts: JobFacts, seq_len: int | None = None, usual_seq_len: int = SHORT_SEQ_LEN
) -> EstimateQuery | None:
    """Describe a job that is about to start; None if its model is unknown.

    `usual_seq_len` is the sequence length where neither `seq_len` nor the script says it.
    """
    model = facts.model
    if model is None:
        return None
    args, _ = facts.read_args()
    training = training_of(model, facts.trainer_flags, Options(seq_len=seq_len), usual_seq_len)
    return EstimateQuery(
        facts.job, facts.context(args), model, _with_script(training, facts), _cluster(facts)
    )


def _query(option: str, facts: JobFacts, seq_len: int | None, usual_seq_len: int) -> EstimateQuery:
    """Describe a job; raise Unavailable where an estimate would be about another one."""
    refuse_without_deepspeed(facts.job, facts.script, "estimate")
    query = query_for(facts, seq_len, usual_seq_len)
    if query is None:
        raise Unavailable(f"`{option}` needs to know the model", _how_to_name_it(option, facts))
    if less := [one for one in query.training.uncounted if Effect.LESS in one.effect]:
        raise Unavailable(
            f"cannot estimate this job: {less[0].setting} {less[0].does}",
            f"drop `{option}`; `zlaunch estimate MODEL --lora RANK` estimates adapters",
        )
    return query


def _how_to_name_it(option: str, facts: JobFacts) -> str:
    """Name the argument by which a script may load a model; there is none if it builds its own."""
    script = facts.script
    makes_it = script.interface is ConfigInterface.DEEPSPEED
    flags = [name for name in MODEL_FLAGS if name in script.loads]
    flags += [name for name in sorted(MODEL_FLAGS, key=len, reverse=True) if script.may_define(f"--{name}")]
    if flags and not makes_it:
        return f"name the model: `-- --{flags[0]} DIR`"
    if option == "--rehearse":
        return f"drop `{option}`; `zlaunch estimate DIR` estimates a model by its config.json"
    if facts.job.module is not None:
        return "write `--stage 2 --rehearse`, which checks the memory of this stage"
    estimate = f"zlaunch estimate {shlex.quote(str(script.path))} --stage 2"
    if facts.job.args.words:
        estimate += f" -- {shell_line(facts.job.args.words)}"
    return f"write `--stage 2`; `{estimate}` says how much memory that takes"


def _with_script(training: Training, facts: JobFacts) -> Training:
    """Add what the script itself says about the training."""
    if training.assumes_length and facts.script.seq_len is not None:
        length = Sourced(facts.script.seq_len, Source(SourceKind.SCRIPT, "the script's own argument"))
        training = replace(training, seq_len=length, assumes_length=False)
    if facts.model is not None and "auto_map" in facts.model.value and _trusts_code(facts):
        named = model_flag(facts.trainer_flags)
        training = replace(training, remote_code=None if named is None else str(code_of(named)))
    partitioned = (
        facts.script.interface is not ConfigInterface.DEEPSPEED or "zero.Init" in facts.script.source
    )
    split = training.split or split_by_script(facts.script)
    uncounted = (*training.uncounted, *in_script(facts.script))
    return replace(training, partitioned_at_birth=partitioned, split=split, uncounted=uncounted)


def _trusts_code(facts: JobFacts) -> bool:
    """Whether the script runs the model's own code, by its arguments or by itself."""
    typed = facts.trainer_flags.is_on("trust_remote_code")
    return facts.script.trusts_code if typed is None else typed


def check_memory(facts: JobFacts, estimator: Estimator, seq_len: int | None = None) -> Estimate:
    """Rehearse a job; raise Refused if DeepSpeed gives up or the job cannot fit."""
    query = _query("--rehearse", facts, seq_len, SHORT_SEQ_LEN)
    (estimate,) = estimator.rehearse([query])
    if isinstance(estimate, Rejected):
        raise estimate.error
    if estimate.fit is Fit.NO:
        hint = _remedies_hint(estimate.query, fitting(try_changes(estimate, estimator)))
        raise _does_not_fit(estimate, hint)
    if not query.training.assumes_length:
        return estimate
    longer = Uncounted("sequences", f"of more than {query.training.seq_len.value} tokens", Effect.MORE)
    training = replace(query.training, uncounted=(*query.training.uncounted, longer))
    return replace(estimate, query=replace(query, training=training))


def refuse_offload(job: JobSpec) -> None:
    """Raise WrongUsage for an offload beside `--stage auto`."""
    if job.offload is not None:
        raise WrongUsage("`--stage auto` chooses the offload too", "drop `--offload`, or choose the stage")


def choose_stage(facts: JobFacts, estimator: Estimator, seq_len: int | None = None) -> tuple[JobSpec, str]:
    """Give a job the fastest strategy that fits, and say why.

    Raise Unavailable if that cannot be told, Refused if none fits.
    """
    refuse_offload(facts.job)
    query = _query("--stage auto", facts, seq_len, USUAL_SEQ_LEN)
    table = compare_strategies(query, estimator, available(query.job))
    if table.chosen is not None:
        strategy, estimate = table.chosen
        job = replace(estimate.query.job, is_chosen=True)
        fits = " ".join(filter(None, ("fits", query.training.assumed_length)))
        return job, f"`{strategy.options}` is the fastest that {fits}: {_need(estimate)}"
    for _, outcome in table.rows:
        if isinstance(outcome, Rejected) and isinstance(outcome.error, Unavailable):
            raise outcome.error
    for _, estimate in table.estimates:
        if estimate.fit is Fit.UNKNOWN:
            reasons = "; ".join(estimate.verdict.reasons)
            raise Unavailable(f"cannot tell what fits: {reasons}", "choose a stage, such as `--stage 2`")
    hint = _remedies_hint(query, find_remedies(query, available(query.job), estimator))
    raise Refused([Finding("does-not-fit", "this job does not fit with any stage or offload", hint)])


def _need(estimate: Estimate) -> str:
    host = f"{memory(estimate.need.host)} on each host"
    if not estimate.forecast.on_gpu:
        return host
    return f"a process takes {memory(estimate.need.process[1])} on its GPU, and all of them {host}"


def _remedies_hint(query: EstimateQuery, changes: Sequence[Options]) -> str:
    """Name the changes after which a job fits, as `zlaunch train` takes them."""
    given = query.given
    setting = setting_of(given.interface, given.handover)
    typed = [text for change in changes if (text := change.for_train(setting))][:MOST_HINTS]
    if not typed:
        return _ELSE[query.cluster.gpu is None]
    fits = "may fit" if query.training.assumes_length else "fits"
    return f"it {fits} with {', or with '.join(f'`{text}`' for text in typed)}"
