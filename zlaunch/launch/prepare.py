"""Job → plan: look at the files, the machine and the hosts it names, then decide.

Nothing is written and nothing is started here. Every file that is missing and every directory that
cannot be written comes out now.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from zlaunch import console
from zlaunch.config.resolve.compose import OFFLOADS
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import InputMissing, Refused, Unavailable, WrongUsage
from zlaunch.estimate.forecast import Forecast
from zlaunch.files import nearest
from zlaunch.hosts.machine import Machine, weakest
from zlaunch.hosts.placement import assign_ranks, most_slots, refuse_contradictions
from zlaunch.hosts.ports import free_port
from zlaunch.hosts.probe import probe_machine
from zlaunch.hosts.ssh import HostSurveys, survey_hosts
from zlaunch.hosts.survey import SurveyRequest
from zlaunch.hosts.topology import Host, read_hostfile, select, too_many_slots
from zlaunch.job.argument_checks import check_config_reaches_script, check_script_args
from zlaunch.job.hub import HUB_ID, fetch_model
from zlaunch.job.model import ModelConfig, model_flag, read_model
from zlaunch.job.model_checks import wrong_sizes
from zlaunch.job.script import Script, read_script
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import take_ds_config
from zlaunch.launch import rundir_writer
from zlaunch.launch.debugger import PACKAGE, check_debugger
from zlaunch.launch.plan import LaunchPlan, PlanInputs, listener, make_plan
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.rundir.record import FIRST, Lineage


@dataclass(frozen=True)
class Prepared:
    """A job that was looked into, and the directory that was asked for."""

    inputs: PlanInputs
    run_dir: Path | None
    hosts: HostSurveys
    model: ModelConfig | None = None
    """The model the script will load, if that is known."""
    beside: Path = RUNS
    """Where its run directory is made, if none was asked for."""
    decide: Callable[[PlanInputs], LaunchPlan] = make_plan

    def plan(self) -> LaunchPlan:
        """Decide everything, for the next free run directory."""
        plan = self.decide(self.inputs)
        _refuse_idle_nvme(self.inputs.job, plan)
        return plan


def default_recipe() -> Path:
    """Find the training program that comes with zlaunch."""
    return (Path(__file__).parents[1] / "recipes" / "causal_lm.py").resolve()


def ds_config_of(argv: Sequence[str], chosen: Path | None) -> tuple[tuple[str, ...], Path | None]:
    """Take a ds_config that the script's command line names, as it would be under another launcher."""
    rest, named = take_ds_config(argv)
    if named is not None and chosen is not None:
        raise WrongUsage(
            f"the script's arguments name the ds_config `{named}` beside `--ds-config {chosen}`", "keep one"
        )
    return rest, Path(named) if named is not None else chosen


def prepare(job: JobSpec, run_dir: Path | None, beside: Path = RUNS) -> Prepared:
    """Look at all that the job names; raise the first thing that is missing."""
    refuse_contradictions(job)
    script = read_script(job.script)
    check_script_args(script, job.script_args)
    base = None if job.ds_config is None else read(job.ds_config)
    layout = next(rundir_writer.candidates(run_dir, job.name, beside))
    named, machine, hosts = _hosts(
        job, probe_machine(os.environ), partial(_inquiry, job, script, base, layout)
    )
    check_config_reaches_script(script, machine.accelerator)
    topology = assign_ranks(job, machine, named)
    if job.debug is not None:
        listening = listener(job.debug, topology)
        check_debugger(listening, hosts.others.get(listening.host))
    if job.nvme_dir is not None:
        if not job.nvme_dir.is_dir():
            raise Unavailable(
                f"`--nvme {job.nvme_dir}`: there is no such directory", "make it on the drive first"
            )
        rundir_writer.check_writable(job.nvme_dir, "--nvme")
    rundir_writer.check_writable(run_dir or layout.root, "--run-dir")
    if run_dir is not None:
        rundir_writer.check_unused(run_dir)
    model = _model(job, script)
    if model is not None and (wrong := list(wrong_sizes(model))):
        raise Refused(wrong)
    shape = None if model is None else model.shape
    first = hosts.others.get(topology.hosts[0].name)
    port = free_port() if first is None else first.port
    inputs = PlanInputs(job, script, base, shape, machine, topology, port, layout, dict(os.environ))
    return Prepared(inputs, run_dir, hosts, model, beside)


def reserve(
    prepared: Prepared,
    asked: Sequence[str],
    look: Callable[[LaunchPlan], None] = lambda _: None,
    lineage: Lineage = FIRST,
    forecast: Forecast | None = None,
) -> LaunchPlan:
    """Write the run directory; if another run takes the name first, plan for the next one.

    `look` sees the plan before anything is written, and raises what speaks against it. A directory
    that cannot be written whole is taken back: nothing ran in it.
    """
    for layout in rundir_writer.candidates(prepared.run_dir, prepared.inputs.job.name, prepared.beside):
        plan = replace(prepared, inputs=replace(prepared.inputs, layout=layout)).plan()
        look(plan)
        try:
            rundir_writer.claim(plan)
            rundir_writer.write_run_files(plan, prepared.inputs, asked, lineage)
            if forecast is not None:
                rundir_writer.write_forecast(layout, forecast)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(plan, error) from None
        return plan
    taken = os.path.relpath(prepared.run_dir or prepared.beside)
    raise Unavailable(f"another run took the run directory `{taken}`", "name another with `--run-dir DIR`")


def _unwritable(plan: LaunchPlan, error: OSError) -> Unavailable:
    """Take back a run directory that cannot be written, and say which."""
    rundir_writer.release(plan)
    directory = os.path.relpath(plan.layout.root)
    return Unavailable(
        f"the run directory `{directory}`: {error.strerror}", "name another with `--run-dir DIR`"
    )


def _inquiry(job: JobSpec, script: Script, base: Document | None, layout: RunDir) -> SurveyRequest:
    """Say what other hosts are asked: what ranks will read and write there, and listen on."""
    own = {} if base is None else base.value.get(ZERO)
    sections = [own.get(name) for name in OFFLOADS] if isinstance(own, Mapping) else []
    swaps = [one.get("nvme_path") for one in sections if isinstance(one, Mapping)]
    swaps += [job.nvme_dir, *(value for key, value in job.overrides if key.endswith(".nvme_path"))]
    named = [script.path, script.output_dir(job.script_args), *swaps]
    return SurveyRequest(
        run=nearest(layout.root),
        paths=tuple(Path(path).absolute() for path in named if isinstance(path, str | Path)),
        packages=() if job.debug is None else (PACKAGE,),
        debug_port=None if job.debug is None else job.debug.port,
    )


def _hosts(
    job: JobSpec, here: Machine, inquire: Callable[[], SurveyRequest]
) -> tuple[list[Host] | None, Machine, HostSurveys]:
    """Read the hosts of a job and say what each has at least; without a hostfile, what this machine has."""
    if job.hostfile is None:
        return None, here, HostSurveys(here)
    lines = read_hostfile(job.hostfile)
    chosen = {host.name for host in select([line.host for line in lines], job.include, job.exclude)}
    names = [line.host.name for line in lines if line.host.name in chosen]
    hosts = survey_hosts(names, here, inquire())
    machines = hosts.machines(names)
    most = {name: most_slots(len(machine.gpus), machine.num_cores) for name, machine in machines.items()}
    if findings := too_many_slots(lines, most):
        raise Refused(findings)
    return [line.host for line in lines], weakest(list(machines.values())), hosts


def _model(job: JobSpec, script: Script) -> ModelConfig | None:
    """Find the model the script will load: its config.json, local or from the hub."""
    name = model_flag(job.script_args)
    if name is None:
        return read_model(default_recipe().parent / "small_llama") if job.script == default_recipe() else None
    if Path(name).exists():
        return read_model(Path(name))
    if not script.mentions("from_pretrained"):
        return None
    if not HUB_ID.fullmatch(name):
        raise InputMissing(f"there is no model directory `{name}`")
    try:
        return fetch_model(name)
    except Unavailable as error:
        told = f"{error.message}; the Trainer fills in what depends on the model"
        for line in console.table([("model    ", told)], indent=""):  # as wide as `left open`, which follows
            console.say(line)
        return None


def _refuse_idle_nvme(job: JobSpec, plan: LaunchPlan) -> None:
    if job.nvme_dir is not None and not plan.swap_dirs:
        raise WrongUsage(
            "`--nvme` names a directory, but nothing is offloaded to NVMe", "add `--offload nvme`"
        )
