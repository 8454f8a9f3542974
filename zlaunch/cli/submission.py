"""The options of `zlaunch train --submit`: check them, and leave them out of the words for the nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from zlaunch.cli.train_options import SubmitOptions
from zlaunch.errors import WrongUsage
from zlaunch.job.spec import JobSpec
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.schedulers import schedulers
from zlaunch.secrets import assigned_secrets, is_secret, secret_arguments

_OF_HOSTS = ("hosts", "include", "exclude", "no_ssh", "node_rank", "offline")
"""Options for hosts that no scheduler chooses."""

_OF_ALL = frozenset(field.name for field in fields(SubmitOptions))
_NOT_ON_NODES = _OF_ALL | {"check", "dry_run", "full", "run_dir", "as_json", "on"}
"""Options for the machine that submits, beside those that only one scheduler has."""


def _of_one_scheduler() -> Iterator[str]:
    for scheduler in schedulers().values():
        yield from scheduler.options


def _owners(name: str) -> list[str]:
    return [scheduler for scheduler, module in schedulers().items() if name in module.options]


def check_options(given: Mapping[str, Any], job: JobSpec) -> None:
    """Raise WrongUsage for a typed option that does not apply to the scheduler, or shows a secret.

    In zlaunch.yaml it is ignored.
    """
    scheduler = given["submit"]
    if scheduler is None:
        for name in _typed(given, job):
            flag, (first, *_) = _flag(name, given[name]), [*_owners(name), "slurm"]
            hint = f"write `--submit {first}`, or leave `{flag}` out"
            raise WrongUsage(f"`{flag}` has no effect without `--submit`", hint)
        return
    for name in _OF_HOSTS:
        if given[name] not in (None, False) and name not in job.places:
            raise WrongUsage(
                f"`{_flag(name, given[name])}` has no effect with `--submit {scheduler}`",
                "leave it out: a scheduler chooses the hosts",
            )
    for name in assigned_secrets(job.env):
        raise WrongUsage(
            f"`--env {name}=…` would write a secret into what is submitted",
            f"set {name} in the environment of the nodes, and write `--env {name}`",
        )
    for name in _typed(given, job):
        if name not in _OF_ALL and scheduler not in _owners(name):
            raise WrongUsage(
                f"`{_flag(name, given[name])}` has no effect with `--submit {scheduler}`", "leave it out"
            )


def _typed(given: Mapping[str, Any], job: JobSpec) -> Iterator[str]:
    for name in [*_OF_ALL - {"submit"}, *_of_one_scheduler()]:
        is_given = given[name] not in (None, [], ()) and (name, given[name]) != ("detach", False)
        if is_given and name not in job.places:
            yield name


def _flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if value is False:
        return f"--no-{flag}"
    return f"--{flag}"


def note_secrets(job: JobSpec, what: str, reporter: PlanReporter) -> None:
    """Say which argument of the script may be a secret that others will see, or that is not shown."""
    for shown in secret_arguments(job.args.words)[:1]:
        reporter.note(f"`{shown}` {what}; a variable and `--env NAME` keep it secret")


def note_shared_secrets(job: JobSpec, reporter: PlanReporter) -> None:
    """Say which secrets others can read in a run directory that is shared."""
    variables = (word.partition("=") for word in job.env)
    named = [f"--env {name}" for name, _, value in variables if is_secret(name, value)]
    if secrets := [*secret_arguments(job.args.words), *named]:
        listed = ", ".join(f"`{secret}`" for secret in secrets)
        reporter.note(f"`--share`: whoever may read the run directory finds {listed} in it")


def split_words(argv: Sequence[str], command: Any, submit: str) -> tuple[list[str], list[str]]:
    """Split a command line of `train` at `--`, and leave out what does not concern the nodes."""
    left_out = {*_NOT_ON_NODES, *_of_one_scheduler()}
    if schedulers()[submit].has_time_limit:
        left_out.add("time_limit")
    words = argv[argv.index("train") + 1 :]
    cut = [*words, "--"].index("--")
    options: dict[str, Any] = {}
    for option in command.params:
        options |= dict.fromkeys((*option.opts, *option.secondary_opts), option)
    kept: list[str] = []
    place = 0
    while place < cut:
        name, has_value, _ = words[place].partition("=")
        option, length = None, 1
        if name.startswith("-"):
            option = options.get(name) or options.get(name.replace("_", "-"))
        if option is not None and not option.is_flag and not has_value:
            length = 2
        if option is None or option.name not in left_out:
            kept += words[place : min(place + length, cut)]
        place += length
    return kept, list(words[cut + 1 :])
