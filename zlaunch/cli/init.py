"""`zlaunch init`: ask at most five questions, and write a `zlaunch.yaml`."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.job_command import NAMES, find_job_file
from zlaunch.cli.planned_job import PlannedJob, planned_job
from zlaunch.cli.project import Project, look_around, script_of
from zlaunch.cli.views.job_file_text import Answers, job_file_text, next_lines
from zlaunch.errors import InputMissing, Unavailable, WrongUsage, ZlaunchError
from zlaunch.files import write_whole
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine import gpu_catalog
from zlaunch.job.model_of_script import model_argument
from zlaunch.job.recipes import read_recipe, recipe_named, recipe_names, similar_recipe
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import STAGES, parse_gpus, parse_offload

RECIPE = "causal_lm"
"""The program of a project that has no script yet."""
MOST_SHOWN = 5


@dataclass(frozen=True)
class _Program:
    takes_model: bool
    is_recipe: bool
    saves: bool
    """Whether zlaunch can tell it where to save."""
    has_config: bool = False
    """Whether it passes a ds_config of its own to DeepSpeed, so that a stage or another one is ignored."""


def init(
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing and take all defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a zlaunch.yaml.")] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Copy this recipe, and write the fastest job for --model that fits on --on."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --recipe: a directory, or a name on the Hub.")
    ] = None,
    on: options.On = None,
    lora: Annotated[
        int | None, typer.Option(min=1, metavar="RANK", help="With --recipe: train LoRA adapters only.")
    ] = None,
    seq_len: options.SeqLen = None,
) -> None:
    """Write a zlaunch.yaml for this directory.

    Looks for training scripts, ds_configs and GPUs, and asks at most five questions.

    With --recipe and --model, asks nothing: it plans the job as `zlaunch plan` does, copies the recipe,
    and writes what fits, with the estimate as a comment.
    """
    target = find_job_file() or Path(NAMES[0])
    if recipe is not None:
        if model is None:
            raise WrongUsage("`--recipe` needs a model to plan for", "add `--model NAME`")
        if target.exists() and not force:
            raise _is_there(target)
        planned_job(PlannedJob(recipe, model, on, lora, seq_len), target)
        return
    for name, value in (("model", model), ("on", on), ("lora", lora), ("seq-len", seq_len)):
        if value is not None:
            raise WrongUsage(f"`--{name}` has no effect without `--recipe`", f"add `--recipe {RECIPE}`")
    asks = not yes
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage(
            "`zlaunch init` asks questions, and stdin is not a terminal",
            "`zlaunch init --yes` takes all defaults",
        )
    if target.exists() and not force and not (asks and typer.confirm(f"Overwrite {target}?", err=True)):
        raise _is_there(target)
    project = look_around(Path())
    console.say(*_found(project))
    try:
        answers = _answers(project, _ask if asks else _take)
    except typer.Abort:  # Ctrl-C, or the end of the input
        console.say("", "nothing was written")
        raise typer.Exit(128 + signal.SIGINT) from None
    write_whole(target, job_file_text(answers))
    console.say(f"wrote {target}", *next_lines(answers))


def _is_there(target: Path) -> Unavailable:
    return Unavailable(f"there is a {target} already", "`--force` overwrites it")


def _found(project: Project) -> Iterator[str]:
    scripts = (
        ", ".join(map(str, project.scripts[:MOST_SHOWN])) or f"none; recipe `{RECIPE}` is one to begin with"
    )
    yield from console.table(
        [
            ("scripts", scripts),
            ("ds_configs", ", ".join(map(str, project.ds_configs[:MOST_SHOWN])) or "none"),
            ("GPUs", str(project.num_gpus) if project.num_gpus else "none; ranks run on the CPU"),
        ],
        indent="",
    )


def _take(question: str, default: str, check: Callable[[str], object]) -> str:
    check(default)
    return default


def _ask(question: str, default: str, check: Callable[[str], object]) -> str:
    while True:
        answer = str(typer.prompt(question, default=default, show_default=bool(default), err=True)).strip()
        try:
            check(answer)
        except ZlaunchError as error:
            console.show_error(error)
        else:
            return answer


def _answers(project: Project, ask: Callable[[str, str, Callable[[str], object]], str]) -> Answers:
    script = ask("Training script or recipe", str(next(iter(project.scripts), RECIPE)), _check_script)
    program = _inspect(script)
    model = ""
    if program.takes_model:
        instead = "the recipe's own" if program.is_recipe else "as the script says"
        model = ask(f"Model: directory or Hub name (empty: {instead})", "", str)
    gpus = ask("GPUs (empty: all of the machine), or planned ones such as 8xH100-80GB", "", _check_gpus)
    planned = gpus if _is_planned(gpus) else ""
    memory = ""
    if not program.has_config:
        stage = "auto" if project.num_gpus or planned else "2"
        memory = ask(
            "ZeRO stage 0-3 or auto, or with offload (3 cpu), or a ds_config",
            str(next(iter(project.ds_configs), stage)),
            _check_memory,
        )
    save = ask("Directory for the model and its checkpoints", "out", _check_save) if program.saves else ""
    return Answers(
        script=script,
        takes_model=program.takes_model,
        model=model,
        gpus="" if planned else gpus,
        planned=planned,
        memory=memory,
        has_gpus=bool(project.num_gpus or planned),
        save=save,
    )


def _inspect(script: str) -> _Program:
    path = recipe_named(script)
    if path is not None:
        read: Script | None = read_script(path)
        saves = read_recipe(path).trainer_defaults is not None
    else:
        read = script_of(Path(script))
        is_trainer = read is not None and read.interface is ConfigInterface.TRAINER
        saves = is_trainer or (read is not None and bool(read.save_flag))
    if read is None:
        return _Program(takes_model=False, is_recipe=False, saves=False)
    return _Program(
        takes_model=bool(model_argument(read)),
        is_recipe=path is not None,
        saves=saves,
        has_config=read.own_config is not None,
    )


def _check_script(text: str) -> None:
    if recipe_named(text) is None and not Path(text).is_file():
        meant = similar_recipe(text)
        hint = f"did you mean `{meant}`?" if meant else f"the recipes are {', '.join(recipe_names())}"
        raise InputMissing(f"there is no script and no recipe `{text}`", hint)


def _is_planned(text: str) -> bool:
    words = text.removesuffix(",").split(",")
    return bool(text) and not all(word.strip().isdecimal() for word in words)


def _check_gpus(text: str) -> None:
    if _is_planned(text):
        gpu_catalog.parse_hosts_of_gpus(text)
    elif text:
        parse_gpus(text)


def _check_memory(text: str) -> None:
    stage, _, offload = text.partition(" ")
    if Path(text).is_file():
        return
    if stage not in (*STAGES, "auto"):
        raise WrongUsage(
            f"`{text}` is neither a stage nor a file",
            "write `auto`, `2`, `3 cpu`, or the name of a ds_config",
        )
    if offload:
        parse_offload(offload.strip())


def _check_save(text: str) -> None:
    if Path(text).is_file():
        raise WrongUsage(f"`{text}` is a file", "name a directory")
