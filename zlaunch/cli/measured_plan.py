"""`zlaunch plan --measure`: run the best configurations of a script on this machine."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from zlaunch import console
from zlaunch.cli.option_table import members
from zlaunch.cli.plan import refuse_chosen
from zlaunch.cli.script_job import job_of, read_named_script
from zlaunch.cli.views.measured_plan import (
    MeasureView,
    check_output,
    measured_json,
    measured_lines,
    write_measured,
)
from zlaunch.errors import ExitStatus, Unavailable, WrongUsage
from zlaunch.estimate.calibration import keep
from zlaunch.files import shown
from zlaunch.job.recipes import default_recipe, recipe_named
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.launch.measure.kept import KeptSamples, records_of
from zlaunch.launch.measure.race import Limits, Race
from zlaunch.launch.measure.runner import TrialRunner
from zlaunch.launch.measure.trials import find_trials
from zlaunch.launch.surroundings import refuse_several

_ELSEWHERE: Final = ("nodes", "on", "hostfile", "host_memory", "network")
"""Options for other machines than this one."""
INTERRUPTED: Final = 130


def measured_plan(
    context: Any, name: str | None, asked: Mapping[str, Any], given: Mapping[str, Any]
) -> ExitStatus | int:
    """Run the best configurations of a script, recipe or model; show them, write the fastest."""
    for option in _ELSEWHERE:
        if given[option] is not None:
            flag = f"--{option.replace('_', '-')}"
            raise WrongUsage(f"`{flag}`: `--measure` runs on this machine", f"leave out `{flag}`")
    if (name is None) == (given["module"] is None):
        raise WrongUsage("nothing to measure", "name one script, recipe, model, or module: `-m NAME`")
    refuse_several(os.environ, "zlaunch plan --measure")
    output = given["output"]
    if output is not None:
        check_output(output)
    job = _job(context, name, {**given, "ds_config": None})
    refuse_chosen(job.overrides)
    view, limits = MeasureView(), Limits(**members(Limits, asked))
    trials = find_trials(job, view, given["global_batch"])
    kept = KeptSamples(trials, limits)
    runner = TrialRunner(trials.facts.script, limits.steps, view, view.begin)
    result = Race(trials.listed, limits, runner, kept.read(), kept.keep).run()
    view.done()
    result = replace(
        result,
        passed_over=(*trials.refused, *result.passed_over),
        why_not_predicted=trials.why_not_predicted,
    )
    if given["as_json"]:
        console.data(measured_json(result))
    else:
        console.data(*measured_lines(result, trials.facts))
    if result.measured:
        keep(records_of(result))
        write_measured(result, trials.facts, output)
    if result.is_interrupted:
        return INTERRUPTED
    if not result.measured:
        hint = "see why with `zlaunch train`"
        if runner.num_runs:
            hint = f"`zlaunch runs why {shown(runner.root / 'run-1')}` says more of the first"
        raise Unavailable("no configuration could be measured", hint)
    return ExitStatus.OK


def _job(context: Any, name: str | None, given: Mapping[str, Any]) -> JobSpec:
    """Read the options of the job; a model is trained by the default recipe."""
    words: tuple[str, ...] = ()
    if name is not None and _is_model(name):
        words, name = ("--model", name.removesuffix("/config.json")), default_recipe().stem
    job = job_of(context, read_named_script(name, given), given)
    if job.ds_config is not None:
        raise WrongUsage("`zlaunch plan` writes a ds_config and does not read one", "leave out `--deepspeed`")
    gpus = None
    if given["gpus"] is not None:
        gpus = GpuChoice(count=given["gpus"])
    return replace(job, args=job.args.preceded_by(words), gpus=gpus)


def _is_model(name: str) -> bool:
    """Whether this names a model instead of a script or recipe."""
    path = Path(name)
    if name.endswith(".py") or recipe_named(name) is not None:
        return False
    return not path.is_file() or path.suffix == ".json"
