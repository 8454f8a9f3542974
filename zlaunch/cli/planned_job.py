"""`zlaunch init --recipe`: a recipe and a `zlaunch.yaml` with the fastest configuration that fits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from zlaunch import console
from zlaunch.cli.recipes.copy import copy_recipe
from zlaunch.cli.recipes.name import find_recipe
from zlaunch.cli.views.estimate_report import RehearsalLine
from zlaunch.cli.views.job_file_text import Answers, job_file_text, next_lines
from zlaunch.cli.views.plan_report import UNFIT, not_taken, plan_rows, show_nothing
from zlaunch.errors import WrongUsage
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS, Options, offload_text
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.estimate.search import NothingFits, SearchResult, plan
from zlaunch.estimate.strategies import Strategy
from zlaunch.estimate.workload import Lora
from zlaunch.files import write_whole
from zlaunch.frozen import dataclass
from zlaunch.job.model import SEQ_LEN_FLAGS
from zlaunch.job.recipes import Recipe, recipe_names
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec
from zlaunch.units import brief

SAVE: Final = "out"
LORA_FLAG: Final = "lora_rank"
RATES: Final = {False: "2e-5", True: "2e-4"}
"""Whether only adapters are trained → a usual learning rate for a model that is already trained."""


@dataclass(frozen=True)
class PlannedJob:
    """What is to be trained, and where."""

    recipe: str
    model: str
    on: str | None
    """None for the GPUs of this machine."""
    lora: int | None
    seq_len: int | None


def planned_job(asked: PlannedJob, target: Path) -> None:
    """Plan the job, and write its program and `target`; leave with the status of an estimate if none fits."""
    recipe = find_recipe(asked.recipe)
    asked = replace(asked, recipe=recipe.name)
    flags = _arguments(recipe)
    if not _can_plan(recipe):
        able = [f"`{name}`" for name in recipe_names() if _can_plan(find_recipe(name))]
        raise WrongUsage(
            f"`--recipe {recipe.name}`: it does not fine-tune the language model of `--model`",
            f"use {' or '.join(able)}",
        )
    if asked.lora is not None and LORA_FLAG not in flags:
        raise WrongUsage(f"`--lora`: the recipe `{recipe.name}` trains no adapters", "leave it out")
    begin = f"planning for {asked.model}: rehearsing the fastest configurations may take minutes"
    console.say(*console.paragraph(begin))
    query, result = search(asked)
    if isinstance(result, NothingFits):
        show_nothing(result, query)
        raise typer.Exit(result.fit.status)
    length = next(name for name in SEQ_LEN_FLAGS if name in flags)
    answers = answers_of(asked, result, length)
    program = Path(answers.script)
    if not program.exists():  # else it may be a copy with changes
        copy_recipe(recipe, Path())
        console.say(f"wrote {program}")
    write_whole(target, job_file_text(answers))
    console.data(*console.table(list(plan_rows(result)), indent=""))
    console.say(f"wrote {target}", *next_lines(answers))


def _can_plan(recipe: Recipe) -> bool:
    """Whether a recipe trains the causal language model that it is told, with sequences of a known length."""
    flags, script = _arguments(recipe), read_script(recipe.path)
    is_causal = script.takes_trainer_args and script.mentions("AutoModelForCausalLM")
    return is_causal and "model" in flags and not flags.isdisjoint(SEQ_LEN_FLAGS)


def _arguments(recipe: Recipe) -> set[str]:
    return {option.flag.removeprefix("--") for option in recipe.options}


def search(asked: PlannedJob) -> tuple[EstimateQuery, SearchResult | NothingFits]:
    """Find the fastest configuration that fits, as `zlaunch plan` does."""
    lora = None
    if asked.lora is not None:
        lora = Lora(asked.lora)
    options = Options(lora=lora, seq_len=asked.seq_len)
    request = EstimateRequest(asked.model, JobSpec(Path()), options, on=asked.on)
    query = resolve_request(request)
    with RehearsalLine("rehearsing the fastest candidates") as line, Estimator(line) as estimator:
        return query, plan(query, None, estimator)


def answers_of(asked: PlannedJob, result: SearchResult, length: str) -> Answers:
    """Write the choice as a job; `length` is the argument of the recipe for tokens in a sequence."""
    chosen, cluster = result.candidate, result.estimate.query.cluster
    args: list[tuple[str, object]] = [
        (length, result.estimate.query.training.seq_len.value),
        ("per_device_train_batch_size", chosen.micro_batch),
        ("gradient_accumulation_steps", chosen.accumulation),
    ]
    if chosen.checkpointing:
        args.append((CHECKPOINTING_FLAGS[0], True))
    lora = ""
    if asked.lora is not None:
        lora = str(asked.lora)
        args.append((LORA_FLAG, lora))
    args += [("learning_rate", RATES[bool(lora)]), ("save_strategy", "epoch"), ("save_total_limit", 2)]
    estimate = [(name, text) for name, text in plan_rows(result) if name != "method"]
    gpus = ""
    if asked.on is not None:
        gpus = str(cluster.ranks_per_host)
    return Answers(
        script=f"{asked.recipe}.py",
        takes_model=True,
        model=asked.model,
        gpus=gpus,
        planned=asked.on or "",
        memory=stage_and_offload(chosen.strategy),
        save=SAVE,
        lora=lora,
        overrides=chosen.query.job.overrides,
        args=tuple(args),
        remarks=(
            "The fastest that fits, by `zlaunch init`:",
            *console.table(estimate),
            *_considered(result),
            "To try the program on a CPU, with the small model that comes with it:",
            f"  zlaunch train --job none {asked.recipe}.py -- --max_steps 2 --output_dir try",
        ),
    )


def _considered(result: SearchResult) -> Iterator[str]:
    """List what would be preferred to the choice, or is as large, and why it was not taken."""
    rows = []
    for other in not_taken(result):
        if other.fit is None and other.seconds is None:
            why = "fits, too"
        elif other.fit is None:
            why = f"slower: about {brief(other.seconds or 0.0)} a step"
        else:
            why = UNFIT.get(other.fit, "cannot tell whether it fits")
        if other.memory:
            why = f"{other.memory} on each GPU: {why}"
        rows.append((f"`{other.options}`", why))
    if rows:
        yield "Not taken:"
        yield from console.table(rows)


def stage_and_offload(strategy: Strategy) -> str:
    """Write a stage, and an offload after it, as a job file has them."""
    if strategy.options.offload is None:
        return str(strategy.stage)
    return f"{strategy.stage} {offload_text(strategy.offload, strategy.stage)}"
