"""Plan a job: decide everything it will do."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.config.client_optimizer import check_client_optimizer
from zlaunch.config.resolve.autos import TOTAL, ResolvedAutos
from zlaunch.config.resolve.compose import OFFLOADS, as_written
from zlaunch.config.resolve.job import ResolvedConfig, resolve_config
from zlaunch.config.resolve.trainer_agreement import fsdp_conflict, script_arguments
from zlaunch.config.resolve.trainer_optimizer import missing_package
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.config.rules.rule import Subject
from zlaunch.config.script_traps import script_traps, settings_of
from zlaunch.dsconfig.keys.auto_keys import DUMMIES, FILLED
from zlaunch.dsconfig.native_ops import NativeOp, needed_ops
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import dotted, located
from zlaunch.errors import Finding, Severity, Unavailable, refuse_fatal
from zlaunch.hosts.machine import op_cache
from zlaunch.hosts.rank_environment import Variable, accelerate_variables, asked_variables, job_environment
from zlaunch.job.recipes import recipe_of
from zlaunch.job.script import DS_CONFIG_VARIABLE, FSDP, ConfigInterface, Handover, Script
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import TrainerArgs, absent_arguments
from zlaunch.job.trainer_releases import is_before
from zlaunch.job.unused_arguments import unused_settings
from zlaunch.launch.backends import launcher_of
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.plan import LaunchPlan, swap_name
from zlaunch.launch.time_limit import shields_ranks, time_limit
from zlaunch.process import process_started
from zlaunch.resume.save_plan import plan_saves
from zlaunch.rundir.layout import RunDir
from zlaunch.units import whole

if TYPE_CHECKING:  # a job that resumes nothing needs none of it
    from zlaunch.resume.resumed_data import DataPosition


def make_plan(facts: JobFacts) -> LaunchPlan:
    """Plan a job, or repeat the plan of an earlier run; raise Refused with all findings if it cannot work."""
    if facts.repeats is None:
        plan = _plan(facts)
    else:
        from zlaunch.launch.plan_record import moved_plan  # only a rerun has a recorded plan

        plan = moved_plan(facts.repeats, facts)
    position, preempt = _position(plan), facts.job.run_options.preempt
    return replace(
        plan,
        data_position=position,
        saves=plan_saves(facts.script, facts.job.args, position),
        limit=time_limit(preempt, facts.environ, process_started),
        shielded=shields_ranks(preempt, facts.environ),
    )


def _plan(facts: JobFacts) -> LaunchPlan:
    job, script, topology = facts.job, facts.script, facts.topology
    args, findings = facts.read_args()
    asked = asked_variables(job.env, facts.environ, job.places)
    fsdp = [*_fsdp(job, script)] or [*_fsdp_without_gpu(facts, asked)]
    refuse_fatal(fsdp)
    findings += [
        *_absent(facts),
        *_no_config(facts),
        *_no_optimizer(facts),
        *_no_dummy(facts),
        *_optimizer(facts, args),
    ]
    config = resolve_config(job, facts.context(args), findings)
    in_script = [*_script_traps(facts, config)]
    refuse_fatal([*_untrained_evaluation(facts, config), *_client_optimizer(facts, config), *in_script])
    config = replace(config, values=config.values.placed(job.places))
    resolved = _leave_total(_in_own_swap_dirs(config.values, facts.layout), config, facts)
    words, handed = _handed_over(facts, config)
    whys = _whys(facts, config)
    variables = {**_op_cache(facts), **handed}
    if facts.resumption is not None:
        resumed = facts.resumption.words(facts.layout)
        words, whys = (*resumed, *words), {**whys, **dict.fromkeys(resumed[:1], "`--resume`")}
        variables |= facts.resumption.variables(facts.layout)
    written = resolved.values
    if script.reported is not None:
        written = _left_to_program(written, config)
    return LaunchPlan(
        facts=facts,
        topology=topology,
        accelerator=facts.machine.accelerator,
        launcher=launcher_of(job.launcher, script, topology.reach),
        values=resolved.values,
        ds_config=written,
        left=resolved.left,
        args=job.args.followed_by(words, whys),
        environment={
            **facts.deepspeed_env,
            **job_environment(facts.machine, topology, facts.environ, variables, facts.python),
            **asked,
        },
        ops=_ops(facts, config),
        precision=config.precision,
        warnings=(
            *(*fsdp, *_without_effect(job, script), *_unused_settings(facts, config)),
            *(*_unused_methods(facts, config), *in_script, *config.warnings),
        ),
    )


def _position(plan: LaunchPlan) -> "DataPosition | None":
    """Where a resumed training continues in its data; None if it starts at step 0."""
    facts = plan.facts
    if facts.resumption is None:
        return None
    from zlaunch.resume.resumed_data import data_position  # only a checkpoint needs what reads one

    ignores = bool(facts.trainer_flags.is_on("ignore_data_skip"))
    return data_position(facts.resumption, facts.script.interface, whole(plan.values[TOTAL]), ignores)


def _ops(facts: JobFacts, config: ResolvedConfig) -> tuple[NativeOp, ...]:
    if facts.script.interface is ConfigInterface.NONE:
        return ()
    optimizer = facts.stack.optimizer_on_host(str(config.agreement.args["optim"].value))
    return needed_ops(config.config, facts.machine.accelerator, optimizer)


def _op_cache(facts: JobFacts) -> dict[str, Variable]:
    is_elsewhere = facts.surroundings.imagined is not None
    if is_elsewhere or facts.here.op_cache is None or facts.script.interface is ConfigInterface.NONE:
        return {}
    why = "native ops of these packages; other environments have other directories"
    return {op_cache.VARIABLE: Variable(str(facts.here.op_cache.folder), why)}


def _handed_over(facts: JobFacts, config: ResolvedConfig) -> tuple[tuple[str, ...], dict[str, Variable]]:
    """List the arguments and the variables by which the ds_config reaches the script."""
    script, file = facts.script, facts.layout.ds_config
    typed = _as_typed(facts)
    why = "the script reads it"
    if not script.mentions(DS_CONFIG_VARIABLE):
        why = f'the script has no flag for it; read it with `config=os.environ["{DS_CONFIG_VARIABLE}"]`'
    variable = {DS_CONFIG_VARIABLE: Variable(str(file), why)}
    match script.handover:
        case Handover.ARGUMENTS:
            return script_arguments(config.agreement, file, script.config_flags), {}
        case Handover.ACCELERATE:
            variables = accelerate_variables(facts.layout, facts.job.precision)
            if not script.is_sure:
                variables |= variable
            return typed, variables
        case Handover.VARIABLE:
            return typed, variable
    return typed, {}


def _whys(facts: JobFacts, config: ResolvedConfig) -> dict[str, str]:
    """Say of each flag that zlaunch adds what wants it."""
    flags = (*(facts.script.config_flags or ()), *facts.job.config_flags)
    whys = dict.fromkeys(flags, "the ds_config of this plan")
    for name, _ in config.agreement.added:
        whys[f"--{name}"] = str(config.agreement.args[name].source.placed(facts.job.places, name))
    return whys


def _as_typed(facts: JobFacts) -> tuple[str, ...]:
    """Return the flags by which the user named the ds_config, if they may be the script's own."""
    flags = [flag for flag in facts.job.config_flags if facts.script.may_define(flag)]
    if not flags:
        return ()
    if facts.script.handover is Handover.NOT:
        return (*flags, str(facts.job.ds_config))
    return (*flags, str(facts.layout.ds_config))


def _left_to_program(values: Values, config: ResolvedConfig) -> Values:
    """Put back each "auto" that the Trainer fills in itself: the program may still change its arguments."""
    for path in config.written.autos():
        if values.has(path) and path in FILLED:
            values = values.put(path, AUTO, values.leaves[path].source)
    return values


def _in_own_swap_dirs(values: Values, layout: RunDir) -> Values:
    """Give each run its own directory on NVMe."""
    for path in [(ZERO, name, "nvme_path") for name in OFFLOADS]:
        if isinstance(directory := values[path], str) and directory != "auto":
            given = values.leaves[path].source
            source = replace(given, text=f"{given}, with a directory for this run")
            values = values.put(path, str(Path(directory) / swap_name(layout)), source)
    return values


def _leave_total(values: Values, config: ResolvedConfig, facts: JobFacts) -> ResolvedAutos:
    """Drop the global batch if DeepSpeed may compare it with the batch of one rank."""
    if not values.has(TOTAL) or facts.topology.world_size == 1:
        return ResolvedAutos(values, config.left)
    why = f"DeepSpeed computes {values[TOTAL]} itself; "
    if _trainer_counts_one_rank(values, facts):
        why += "on a CPU it refuses this number if it is written"
    elif _own_loop_may_count_one_rank(values, config, facts):
        why += "`zero.Init` refuses this number if it runs before `init_distributed`"
    else:
        return ResolvedAutos(values, config.left)
    return ResolvedAutos(values.without(TOTAL), {**config.left, dotted(TOTAL): why})


def _trainer_counts_one_rank(values: Values, facts: JobFacts) -> bool:
    """On a CPU, TrainingArguments initialize only torch's communication, and `zero.Init` sees one rank."""
    return (
        facts.machine.accelerator == "cpu"
        and facts.script.takes_trainer_args
        and values[(ZERO, "stage")] == 3
        and not facts.script.mentions("init_distributed")
    )


def _own_loop_may_count_one_rank(values: Values, config: ResolvedConfig, facts: JobFacts) -> bool:
    """`zero.Init` reads the file first and connects the ranks afterwards; a number of the user stays."""
    script = facts.script
    reads_early = values[(ZERO, "stage")] == 3 or "zero.Init" in script.source
    is_own = script.interface is ConfigInterface.DEEPSPEED and script.handover is not Handover.NOT
    return (
        is_own and reads_early and config.written[TOTAL] == AUTO and not script.mentions("train_batch_size")
    )


def _absent(facts: JobFacts) -> list[Finding]:
    """Find arguments that the installed Trainer does not have, unless the script defines them itself."""
    if not facts.script.takes_trainer_args or facts.script.reported is not None:
        return []
    absent = absent_arguments(facts.job.args, facts.stack.trainer)
    return [finding for finding in absent if not facts.script.mentions(finding.where.removeprefix("--"))]


def _no_config(facts: JobFacts) -> Iterator[Finding]:
    """Find an engine without a ds_config, which fails when it is created."""
    place = facts.script.wants_config
    if place is not None and facts.script.interface is ConfigInterface.DEEPSPEED:
        message = "this call gets no ds_config, without which DeepSpeed creates no engine"
        hint = f'pass `config=os.environ["{DS_CONFIG_VARIABLE}"]` to it'
        yield Finding("no-ds-config", message, hint, severity=Severity.FAILS_LATER, place=place)


def _no_optimizer(facts: JobFacts) -> list[Finding]:
    """Find an engine without an optimizer: it fails when it is created, or in its first step."""
    place = facts.script.wants_optimizer
    is_own = facts.script.interface is ConfigInterface.DEEPSPEED
    if place is None or _has_optimizer_section(facts) or not is_own:
        return []
    message = "neither this call nor the ds_config defines an optimizer, so the engine cannot train"
    hint = (
        "pass `optimizer=` to it, or add `--set optimizer.type=AdamW --set optimizer.params.lr=1e-4`, "
        "DeepSpeed's own Adam, which is compiled before the start"
    )
    return [Finding("no-optimizer", message, hint, severity=Severity.FAILS_LATER, place=place)]


def _has_optimizer_section(facts: JobFacts) -> bool:
    is_set = any(key.partition(".")[0] == "optimizer" for key, _ in facts.job.overrides)
    return is_set or (facts.ds_config is not None and facts.ds_config.value.get("optimizer") is not None)


def _client_optimizer(facts: JobFacts, config: ResolvedConfig) -> Iterator[Finding]:
    """Find an optimizer of the script that DeepSpeed refuses beside this ds_config."""
    own = facts.script.own_optimizer
    if own is None or facts.script.interface is not ConfigInterface.DEEPSPEED:
        return
    recipe = recipe_of(facts.script.path)
    for finding in check_client_optimizer(own.name, own.place, config.config):
        if recipe is None:
            yield finding
        else:
            copied = f"`zlaunch recipes copy {recipe.name}` copies the recipe; in the copy, {finding.hint}"
            yield replace(finding, hint=copied)


def _optimizer(facts: JobFacts, args: TrainerArgs) -> Iterator[Finding]:
    """Find an optimizer that the Trainer cannot create, unless the script has one of its own."""
    script = facts.script
    is_trainer = script.interface is ConfigInterface.TRAINER and script.is_sure
    is_own = script.mentions("create_optimizer") or script.mentions("optimizers") or script.has_other_modules
    if is_trainer and not is_own and not _has_optimizer_section(facts):
        yield from missing_package(args, facts.python, Severity.FAILS_LATER)


def _untrained_evaluation(facts: JobFacts, config: ResolvedConfig) -> Iterator[Finding]:
    """Find an evaluation before any training, which the Trainer refuses below stage 3."""
    script, typed, stage = facts.script, facts.trainer_flags, config.values[(ZERO, "stage")]
    is_trainer = script.interface is ConfigInterface.TRAINER and script.is_sure
    if not is_trainer or script.handover is Handover.NOT or typed.is_on("do_train"):
        return
    if typed.words[:1] and typed.words[0].endswith((".json", ".yaml", ".yml")):
        return  # which may have arguments
    strategy = typed.value("eval_strategy") or typed.value("evaluation_strategy")
    on = {"", *(name for name in ("do_eval", "do_predict") if typed.is_on(name))}
    if strategy not in (None, "no"):
        on.add("do_eval")
    for evaluation in script.evaluations:
        if evaluation.switch in on and stage in (0, 1, 2):
            yield Finding(
                "inference-needs-stage-3",
                f"`{evaluation.method}` ({script.path.name}:{evaluation.line}) is called before any "
                f"training, which the Trainer refuses at stage {stage}",
                "`--stage 3`; or add `--do_train`, or evaluate without DeepSpeed",
                where="zero_optimization.stage",
                severity=Severity.FAILS_LATER,
            )
            return


def _script_traps(facts: JobFacts, config: ResolvedConfig) -> Iterator[Finding]:
    """Find what DeepSpeed does not do as the script expects, under the ds_config of the plan."""
    args = config.agreement.args
    yield from script_traps(facts.script, settings_of(Subject(config.config, facts.context(args).context)))


def _no_dummy(facts: JobFacts) -> Iterator[Finding]:
    """Find a section whose "auto" nothing fills in, since the script certainly prepares no dummy for it."""
    script, base = facts.script, facts.ds_config
    is_sure = script.interface is ConfigInterface.ACCELERATE and script.is_sure
    if base is None or not is_sure or script.has_other_modules:
        return
    for section, dummy in DUMMIES.items():
        is_open = any(path[0] == section and path in FILLED for path in as_written(base).autos())
        if is_open and not script.mentions(dummy):
            yield Finding(
                "no-dummy",
                f'accelerate fills in its "auto" from a `{dummy}` alone, which {script.path.name} does not '
                "prepare: a ValueError",
                f"prepare `accelerate.utils.{dummy}`, or delete the section",
                section,
                Severity.FAILS_LATER,
            )


_METHODS = {"optimizer": "create_optimizer", "scheduler": "create_scheduler"}


def _unused_methods(facts: JobFacts, config: ResolvedConfig) -> Iterator[Finding]:
    """Find methods of the script's own Trainer that are not called beside a section for the same."""
    if facts.script.interface is not ConfigInterface.TRAINER:
        return
    for section, method in _METHODS.items():
        defined = re.search(rf"^[ \t]+def {method}\(", facts.script.source, re.MULTILINE)
        if defined is None or not any(path[0] == section for path in config.values.leaves):
            continue
        line = facts.script.source.count("\n", 0, defined.end()) + 1
        finding = Finding(
            "method-without-effect",
            f"`{method}` ({facts.script.path.name}:{line}) is not called: "
            f"`{section}` of the ds_config takes its place",
            f"delete the section, and the Trainer calls `{method}`",
            section,
            Severity.IGNORED,
        )
        yield located(finding, facts.ds_config)


def _fsdp(job: JobSpec, script: Script) -> Iterator[Finding]:
    """Find FSDP on the command line of a Trainer beside a ds_config, or what asks for ZeRO."""
    if script.without_deepspeed != FSDP or job.args.fsdp is None:
        return
    if job.ds_config is not None:
        severity = Severity.FAILS_LATER if script.is_sure else Severity.IGNORED
        yield from fsdp_conflict(job.args, severity)
        return
    zero = [option for option in job.config_options if option in ("--stage", "--offload", "--nvme")]
    if zero and script.is_sure:
        yield Finding(
            "fsdp-and-deepspeed",
            f"`{zero[0]}` asks for ZeRO and `{job.args.fsdp}` for FSDP: the Trainer uses only one of them",
            hint=f"leave out `{job.args.fsdp}` to train with DeepSpeed, or `{zero[0]}` to train with FSDP",
            where="--fsdp",
        )


def _fsdp_without_gpu(facts: JobFacts, asked: Mapping[str, Variable]) -> Iterator[Finding]:
    """Find FSDP on the command line of a Trainer that has no GPU, where accelerate has DDP at most."""
    script, argument = facts.script, facts.job.args.fsdp
    if script.without_deepspeed != FSDP or argument is None or facts.job.args.value("fsdp_config"):
        return
    if facts.machine.accelerator != "cpu" or facts.machine.gpus:
        return
    hint = f"leave out `{argument}` to train with DeepSpeed"
    asks_for_cpu = facts.trainer_flags.is_on("use_cpu") or "ACCELERATE_USE_CPU" in {*facts.environ, *asked}
    is_certain = script.is_sure and "Trainer(" in script.source and not asks_for_cpu
    if not is_certain or is_before(facts.stack.versions.get("accelerate"), "1.13"):
        message = "accelerate uses FSDP on GPUs only: on this CPU, ranks fail, or train with DDP"
        yield Finding("fsdp-without-gpu", message, hint, where="--fsdp", severity=Severity.IGNORED)
        return
    message = "the Trainer refuses FSDP on this machine, which has no GPU"
    yield Finding("fsdp-without-gpu", message, hint, where="--fsdp", severity=Severity.FAILS_LATER)


def _unused_settings(facts: JobFacts, config: ResolvedConfig) -> Iterator[Finding]:
    """Find what the script gives accelerate in vain, because the ds_config of the job decides."""
    if facts.script.interface is not ConfigInterface.ACCELERATE:
        return
    written = {path: leaf.value for path, leaf in config.written.leaves.items()}
    clipping = config.values[("gradient_clipping",)]
    for finding in unused_settings(facts.script.settings, written, clipping):
        yield located(finding, facts.ds_config)


def _without_effect(job: JobSpec, script: Script) -> Iterator[Finding]:
    """Find options about a ds_config that the script will not read."""
    options = ", ".join(f"`{name}`" for name in job.config_options)
    if not options or script.handover is not Handover.NOT:
        return
    have = "has" if len(job.config_options) == 1 else "have"
    effect, own_config = f"{options} {have} no effect", script.own_config
    if own_config is not None:
        message = f"the script passes its own ds_config to DeepSpeed ({own_config.where}), so {effect}"
        hint = "remove the ds_config there, or leave out these options"
        yield Finding("own-config", message, hint, severity=Severity.IGNORED, place=own_config.place)
        return
    instead, hint = _instead_of_deepspeed(job, script)
    yield Finding("no-deepspeed", f"{instead}, so {effect}", hint, severity=Severity.IGNORED)


def refuse_without_deepspeed(job: JobSpec, script: Script, verb: str) -> None:
    """Raise Unavailable for a script that certainly has no engine to estimate, or to check."""
    if script.interface is ConfigInterface.NONE and script.is_sure:
        instead, hint = _instead_of_deepspeed(job, script)
        raise Unavailable(f"{instead}, so there is no ZeRO job to {verb}", hint)


def _instead_of_deepspeed(job: JobSpec, script: Script) -> tuple[str, str]:
    """Say what a script trains with, and how to train it with DeepSpeed."""
    instead = "does not use DeepSpeed"
    if script.without_deepspeed:
        instead = f"trains with {script.without_deepspeed}"
    hint = "use the Trainer, Accelerator or `deepspeed.initialize`"
    if script.without_deepspeed == FSDP:
        hint = "remove FSDP from the script"
        if job.args.fsdp:
            hint = f"leave out `{job.args.fsdp}` to train with DeepSpeed"
    return f"{script.path.name} {instead}", hint
