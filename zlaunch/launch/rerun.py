"""Repeat a run: read its options from its records, and list what has changed."""

import os
from collections.abc import Iterator
from dataclasses import replace

from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.hosts.rank_environment import inherited, refuse_impossible
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan_record import enough_is_recorded, reach_of, recorded_job
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.rundir_writer import environment_of, file_sha256
from zlaunch.launch.surroundings import refuse_several
from zlaunch.rundir.record import EnvironmentRecord, GitRecord
from zlaunch.rundir.run_files import RunFiles


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between the recorded run and now."""

    what: str
    then: str
    now: str


def script_changes(name: str, then: str | None, now: str | None) -> Iterator[Change]:
    """Compare the hashes of a script."""
    if then is None:
        yield Change(name, "not recorded", "possibly a different one")
    else:
        yield from _change(name, _hash(then), _hash(now))


def _hash(sha256: str | None) -> str | None:
    """Write the beginning of a hash; None if there is none."""
    return f"sha256 {sha256[:12]}" if sha256 else None


def environment_changes(then: EnvironmentRecord, now: EnvironmentRecord) -> Iterator[Change]:
    """Compare the software and the hardware that a run depends on."""
    yield from _git_changes(then.get("git") or {}, now.get("git") or {})
    old, new = _versions(then), _versions(now)
    for name in sorted({*old, *new}):
        yield from _change(name, old.get(name), new.get(name))
    yield from _change("interpreter", then.get("python"), now.get("python"))
    yield from _change("GPUs", *(", ".join(_gpu_names(environment)) for environment in (then, now)))


def _versions(environment: EnvironmentRecord) -> dict[str, str | None]:
    return {**environment.get("packages", {}), "zlaunch": environment.get("zlaunch")}


def _gpu_names(environment: EnvironmentRecord) -> list[str]:
    return [gpu.get("name", "") for gpu in environment.get("machine", {}).get("gpus", [])]


def _git_changes(then: GitRecord, now: GitRecord) -> Iterator[Change]:
    yield from _change("git commit", then.get("commit", "")[:12], now.get("commit", "")[:12])
    if "diff_sha256" in then:
        changed = (_hash(git.get("diff_sha256")) for git in (then, now))
        yield from _change("uncommitted changes", *changed)


def _change(what: str, then: str | None, now: str | None) -> Iterator[Change]:
    if then != now:
        yield Change(what, then or "none", now or "none")


def restore_environment(files: RunFiles) -> list[Change]:
    """Enter the directory a run was started in, and set the variables it inherited as they were.

    Returns the variables that differed; those that were not set then are removed.
    """
    job = files.job
    directory = job.get("working_directory", "")
    with enough_is_recorded(files):
        for name, value in job.get("inherited", {}).items():
            refuse_impossible(name, value)
        try:
            os.chdir(directory)
        except OSError as error:
            raise Unavailable(f"the run was started in `{directory}`: {error.strerror}") from None
    if "inherited" not in job:
        return []
    then, now = job["inherited"], inherited(os.environ)
    differing = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    for name in differing:
        os.environ.pop(name, None)
        os.environ.update({name: then[name]} if name in then else {})
    return [Change(name, then.get(name, "not set"), now.get(name, "not set")) for name in differing]


def what_changed(files: RunFiles, facts: JobFacts) -> list[Change]:
    """Compare what the run depended on with what is here."""
    return [
        *script_changes(facts.job.shown_name, files.job.get("script_sha256"), file_sha256(facts.job.script)),
        *environment_changes(files.environment, environment_of(facts)),
    ]


def prepare_rerun(files: RunFiles, options: LaunchOptions, reporter: PlanReporter) -> JobFacts:
    """Prepare a run again, for a directory beside the old one unless another is given."""
    refuse_several(os.environ, "zlaunch runs rerun")
    with enough_is_recorded(files):
        reach = reach_of(files.job)
    if reach.is_inside_job:
        raise Unavailable(
            f"{files.root.name} ran on the nodes of a job that has ended",
            "start `zlaunch train` in a new one, with the same words: `zlaunch runs show` has them",
        )
    return replace(prepare(recorded_job(files), options, reporter), repeats=files)
