"""Before a start: whether the job fits, and which stage it should have.

A sequence whose length nobody said counts as a short one: what does not fit then fits with none.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from zlaunch.config.resolve.resolve import ResolveContext
from zlaunch.config.resolve.values import Sourced
from zlaunch.errors import Finding, Refused, Severity, Unavailable, WrongUsage
from zlaunch.estimate.changes import for_train, try_changes, words_that_fit
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, Training, TrainingOptions, training_of
from zlaunch.estimate.remedies import remedies
from zlaunch.estimate.request import code_of, smallest_gpu
from zlaunch.estimate.run import estimate_closed_form as closed
from zlaunch.estimate.strategies import apply_strategy, fastest_that_fits, within_reach
from zlaunch.hosts.machine import Machine
from zlaunch.job.model import model_flag
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import flags, is_switched_on, read_arguments
from zlaunch.launch.preflight.requirements import trains_all
from zlaunch.launch.prepare import Prepared
from zlaunch.units import memory

SHORT_SEQ_LEN = 128

_ELSE = ("`zlaunch plan MODEL` looks for what fits", "take a smaller model, or fewer ranks: `--gpus 1`")
"""What to do if no change of the job alone helps: with GPUs, and without."""

Ask = Callable[[Sequence[EstimateQuery], Cluster], Sequence[Estimate | Rejected]]


def query_for(prepared: Prepared) -> tuple[EstimateQuery, Cluster] | None:
    """Ask about a job that is about to start; None without a model that is known."""
    inputs, model = prepared.inputs, prepared.model
    if model is None:
        return None
    hosts = inputs.topology.hosts
    ranks = max(len(host.devices) for host in hosts)
    args, _ = read_arguments(inputs.job.script_args, inputs.script.defaults)
    given = ResolveContext(
        inputs.base,
        args,
        inputs.model,
        inputs.machine,
        inputs.topology.world_size,
        inputs.script.interface,
    )
    gpu = smallest_gpu(_machines(prepared)) if inputs.machine.gpus else None
    site = Cluster(len(hosts), ranks, gpu, inputs.machine.memory_bytes)
    return EstimateQuery(inputs.job, given, model, _training(prepared), ranks), site


def _question(option: str, prepared: Prepared) -> tuple[EstimateQuery, Cluster]:
    """Ask about a job; raise Unavailable where an answer would be about another one."""
    asked = query_for(prepared)
    if asked is None:
        raise _unknown_model(option, prepared)
    if not trains_all(prepared.inputs.script, prepared.inputs.job.script_args):
        raise Unavailable(
            "cannot tell what this job needs: the script may train adapters only, or quantize the model",
            f"leave `{option}` out; `zlaunch estimate MODEL --lora RANK` tells what adapters need",
        )
    return asked


def _unknown_model(option: str, prepared: Prepared) -> Unavailable:
    """Say how a script names its model; a loop of its own makes one itself."""
    makes_it = prepared.inputs.script.interface is ConfigInterface.DEEPSPEED
    return Unavailable(
        f"`{option}` needs a model it can look at",
        f"leave `{option}` out for this script" if makes_it else "name it as `-- --model_name_or_path DIR`",
    )


def _machines(prepared: Prepared) -> list[Machine]:
    names = [host.name for host in prepared.inputs.topology.hosts]
    return list(prepared.hosts.machines(names).values())


def _training(prepared: Prepared) -> Training:
    inputs = prepared.inputs
    assert prepared.model is not None, "the caller has one"
    training = training_of(prepared.model, inputs.job.script_args, TrainingOptions())
    if training.seq_len.source.kind not in (SourceKind.OPTION, SourceKind.ARGUMENT):
        training = replace(
            training,
            seq_len=Sourced(SHORT_SEQ_LEN, Source(SourceKind.ZLAUNCH_DEFAULT, "nobody said; a short one")),
        )
    if "auto_map" in prepared.model.value and _trusts_code(prepared):
        named = model_flag(inputs.job.script_args)
        training = replace(training, remote_code=None if named is None else str(code_of(named)))
    partitioned = (
        inputs.script.interface is not ConfigInterface.DEEPSPEED or "zero.Init" in inputs.script.source
    )
    return replace(training, partitioned_at_birth=partitioned)


def _trusts_code(prepared: Prepared) -> bool:
    """Whether the script runs the model's own code, because it was told to or by itself."""
    inputs = prepared.inputs
    said = dict(flags(inputs.job.script_args))
    if "trust_remote_code" in said:
        return is_switched_on(said["trust_remote_code"] or "true")
    return inputs.script.trusts_code


def check_memory(prepared: Prepared, ask: Ask) -> Estimate:
    """Take two steps without memory; raise Refused if DeepSpeed gives up or the job cannot fit."""
    question, site = _question("--rehearse", prepared)
    (answer,) = ask([question], site)
    if isinstance(answer, Rejected):
        raise answer.error
    if answer.verdict.fit is Fit.NO:
        raise Refused([_misfit(answer, site, ask)])
    return answer


def _misfit(answer: Estimate, site: Cluster, ask: Ask) -> Finding:
    effects = try_changes(answer, lambda questions: ask(questions, site))
    fitting = words_that_fit(effects, in_train=True)
    hint = f"it fits with {fitting}" if fitting else _ELSE[site.gpu is None]
    return Finding(
        "does-not-fit",
        "; ".join(answer.verdict.reasons),
        f"{hint}; `--force` starts it all the same",
        severity=Severity.LATE,
    )


def choose_stage(prepared: Prepared, ask: Ask, estimate: Ask = closed) -> tuple[JobSpec, str]:
    """Put a job on the fastest rung that fits, and say why.

    Raises Unavailable if nobody can tell, Refused if none does.
    """
    if prepared.inputs.job.offload is not None:
        raise WrongUsage("`--stage auto` chooses the offload too", "drop `--offload`, or choose the stage")
    question, site = _question("--stage auto", prepared)
    rungs = within_reach(question)
    answers = ask([apply_strategy(question, rung) for rung in rungs], site)
    chosen = fastest_that_fits(answers)
    if chosen is None:
        if untold := next(
            (one.unknown for one in answers if isinstance(one, Rejected) and one.unknown), None
        ):
            raise untold
        verdicts = [one.verdict for one in answers if isinstance(one, Estimate)]
        if unknown := next((one for one in verdicts if one.fit is Fit.UNKNOWN), None):
            raise Unavailable(f"nobody can tell what fits: {'; '.join(unknown.reasons)}", "give `--stage 2`")
        raise Refused([_nowhere(question, site, ask, estimate)])
    answer = answers[chosen]
    assert isinstance(answer, Estimate), "what fits was answered"
    job = replace(apply_strategy(question, rungs[chosen]).job, is_chosen=True)
    return job, f"`{rungs[chosen].words}` is the fastest that fits: {_filled(answer)}"


def _filled(answer: Estimate) -> str:
    need = answer.need
    if answer.forecast.on_gpu:
        return f"{memory(need.process[1])} of each GPU, {memory(need.host)} of each host"
    return f"{memory(need.host)} of each host"


def _nowhere(question: EstimateQuery, site: Cluster, ask: Ask, estimate: Ask) -> Finding:
    found = remedies(
        question, within_reach(question), lambda some: estimate(some, site), lambda some: ask(some, site)
    )
    typed = [f"`{words}`" for one in found if (words := for_train(one.words))]
    hint = f"it fits with {', or with '.join(typed)}" if typed else _ELSE[site.gpu is None]
    return Finding("does-not-fit", "no stage and no offload makes this job fit", hint)
