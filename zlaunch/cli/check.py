"""`zlaunch check`: whether a configuration trains the same as plain torch."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from zlaunch import console
from zlaunch.cli import options
from zlaunch.cli.check_script import check_named_script
from zlaunch.cli.estimate_options import EstimateOptions, is_program, request_of
from zlaunch.cli.option_table import with_options
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.check import lines_of, rows_of_model
from zlaunch.cli.views.check_matrix import lines_of as matrix_lines_of
from zlaunch.cli.views.check_matrix import name_of
from zlaunch.cli.views.dump import to_json
from zlaunch.config.rules.known_defects import known_defects
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.dsconfig.text.document import located
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.request import resolve_request
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.job.args import ds_config_of
from zlaunch.job.spec import STAGES
from zlaunch.launch.op_build import NotBuilt, environment_with
from zlaunch.parity.check import TrialProgram
from zlaunch.parity.matrix import CheckedCell, Pinned, cells, check_cell, planned, status_of, without_ops
from zlaunch.parity.script import STEPS
from zlaunch.parity.trial import RANKS, Trial, TrialOptions, trial_of
from zlaunch.process import Stopped, heed_signals, signals_as_exceptions

_OF_ANOTHER_COMMAND = (
    *("gpus", "nodes", "on", "hostfile", "host_memory", "network", "stage", "global_batch"),
    *("images", "module", "trust_remote_code", "output", "tries_levers", "plot"),
)


@with_options(EstimateOptions.without(*_OF_ANOTHER_COMMAND), ())
def check(
    trainer: typer.Context,
    model: options.ModelOrScript = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="Check a module that trains, like `python -m`."),
    ] = None,
    stage: Annotated[
        Literal["0", "1", "2", "3"] | None,
        typer.Option(help="ZeRO stage (default: from --ds-config, else 2)."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Steps to train.")] = STEPS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of weights and data.")] = 0,
    save: Annotated[
        bool,
        typer.Option("--save", help="Also resume from a checkpoint, on 2 ranks and on 1, and export it."),
    ] = False,
    matrix: Annotated[
        bool,
        typer.Option("--matrix", help="Check all stages, offloads and optimizers that are not set."),
    ] = False,
    **given: Any,
) -> None:
    """Check that a configuration trains the same as plain torch.

    Trains a small model of the same architecture for a few steps: on two real ranks of DeepSpeed on
    this machine's CPU, and with plain torch. A training script (`.py`) or module (`-m`) is run as it is,
    with the arguments after `--`, and ended after these steps. Compares losses, gradients and updates of
    each parameter with what rounding explains. Exits with 0 if they are the same, 65 if they differ, 69
    if that cannot be told here.
    """
    if (model is None) == (module is None):
        wrong = f"`{model}` and `-m {module}`: only one of them can be checked"
        if model is None:
            wrong = "nothing to check"
        raise WrongUsage(wrong, "name a model, a script, or a module: `-m NAME`")
    if model is None or is_program(model):
        of_models = {"--matrix": matrix, "--save": save, "--seed": seed, "--seq-len": given["seq_len"]}
        of_models["--micro-batch"] = given["micro_batch"]
        for option, value in of_models.items():
            if value:
                raise WrongUsage(
                    f"`{option}` is about the small model of a check, not a script", "leave it out"
                )
        raise typer.Exit(
            check_named_script(trainer, model, {**given, "module": module, "stage": stage}, steps)
        )
    typed, _ = trainer_args(trainer.args, given["python"])
    args, ds_config = ds_config_of(typed, given["ds_config"])
    request = request_of(model, args, ds_config, {**given, "stage": stage, "hostfile": None, "gpus": RANKS})
    query = resolve_request(request)
    console.say(*query.given.stack.untested())
    asked = TrialOptions(steps, seed, given["micro_batch"], given["seq_len"], save)
    if matrix:
        status = _check_matrix(query, asked, _pinned(stage, query, given), given)
    else:
        status = _check_one(query, asked, given)
    raise typer.Exit(status)


def _check_one(query: EstimateQuery, asked: TrialOptions, given: Mapping[str, Any]) -> ExitStatus:
    trial = trial_of(query, asked)
    view = console.LineReporter(in_pipes=False)
    environment = _environment_of_trial(trial.ops, given["python"], view)
    view.busy(f"training a small {query.model.name} on two ranks, and with plain torch", "")
    try:
        with TrialProgram(environment, given["python"]) as program:
            checked = program.check(trial)
    finally:
        view.clear()
    if given["as_json"]:
        console.data(to_json(checked))
    else:
        console.data(*lines_of(checked, rows_of_model(checked, query)))
    defects = known_defects(query.resolve().values.config(), query.given.context)
    console.say_findings(located(defect, query.given.base) for defect in defects)
    return checked.verdict.answer.status


def _pinned(stage: str | None, query: EstimateQuery, given: Mapping[str, Any]) -> Pinned:
    overrides = dict(query.job.overrides)
    return Pinned(
        STAGES.get(stage or ""),
        given["offload"],
        given["optimizer"],
        given["precision"],
        given["grad_accum"],
        overrides.get("gradient_clipping"),
    )


def _check_matrix(
    query: EstimateQuery, asked: TrialOptions, pinned: Pinned, given: Mapping[str, Any]
) -> ExitStatus:
    view, python = console.LineReporter(in_pipes=False), given["python"]
    wanted = cells(query, pinned)
    described = list(planned(wanted, query, asked, pinned))
    trials = [trial for _, trial in described if isinstance(trial, Trial)]
    try:
        environment = _environment_of_trial(
            sorted({op for trial in trials for op in trial.ops}), python, view
        )
    except NotBuilt as error:
        environment = dict(os.environ)
        described = [(cell, without_ops(cell, trial, error.message)) for cell, trial in described]
    done: list[CheckedCell] = []
    stopped = None
    try:
        with signals_as_exceptions(), TrialProgram(environment, python) as program:
            for number, (cell, trial) in enumerate(described, start=1):
                view.busy(f"{number} of {len(described)}: {name_of(cell)}", "")
                if isinstance(trial, Trial):
                    done.append(check_cell(cell, trial, program))
                else:
                    done.append(trial)
    except Stopped as stop:
        stopped = stop.number
    finally:
        view.clear()
    heed_signals()
    if given["as_json"]:
        console.data(to_json(done))
    else:
        unchecked = dict.fromkeys(note for trial in trials for note in trial.unchecked)
        if query.job.nvme_dir is None:
            unchecked["offload to NVMe: add `--nvme DIR`"] = None
        console.data(*matrix_lines_of(done, len(described), unchecked))
    if stopped is not None:
        raise typer.Exit(128 + stopped)
    return status_of(done)


def _environment_of_trial(
    ops: Sequence[str], named: Path | None, view: console.LineReporter
) -> dict[str, str]:
    """Compile what trials need of the CPU, as `train` does before it starts ranks."""
    if not ops:
        return dict(os.environ)
    python = inspect_python(named)
    machine = probe_machine({**os.environ, "DS_ACCELERATOR": "cpu"}, python)
    with signals_as_exceptions(), TemporaryDirectory(prefix="zlaunch-check-") as folder:
        return environment_with([OPS[name] for name in ops], python, machine, Path(folder), view)
