"""A run that is repeated: the same plan in another directory, and what is no longer as it was."""

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import facts_of, on_machine
from tests.making import CPU_MACHINE, PYTHON, SHAPE, TWO_GPUS, local, over_ssh, script
from tests.resume.resuming import LOOP, resumption
from zlaunch import secrets
from zlaunch.cli.views.launch_plan import plan_lines
from zlaunch.errors import Place, Unavailable
from zlaunch.hosts.cluster.placement import assign_ranks, choose_slots
from zlaunch.hosts.cluster.topology import Host, HostLine
from zlaunch.hosts.rank_environment import inherited
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.job.spec import JobSpec, Offload, RestartPolicy, RunOptions
from zlaunch.launch import rundir_writer
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.plan_record import moved_plan, recorded_job
from zlaunch.launch.rerun import environment_changes, restore_environment, script_changes
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import EnvironmentRecord, GitRecord, JobRecord, Lineage
from zlaunch.rundir.run_files import RunFiles

ARGS = ("--text", "two  words", "--output_dir", "out")


def inputs(folder: Path, **asked: Any) -> JobFacts:
    return facts_of(
        job=JobSpec(script=Path("train.py"), args=ScriptArgs.of(ARGS), **asked),
        script=script(),
        ds_config=None,
        model=SHAPE,
        machine=TWO_GPUS,
        topology=local(0, 1),
        layout=RunDir(folder / "20260101-120000-train"),
        environ={"PATH": "/usr/bin"},
        python=PYTHON,
    )


def recorded(given: JobFacts) -> LaunchPlan:
    plan = make_plan(given)
    rundir_writer.claim(plan)
    rundir_writer.write_run_files(plan, ["zlaunch", "train", "train.py"])
    return plan


def repeated(plan: LaunchPlan, given: JobFacts) -> LaunchPlan:
    """Plan again from the record alone, and record that too."""
    found = RunFiles(plan.layout.root)
    again = make_plan(replace(given, repeats=found, layout=RunDir(plan.layout.root.parent / "second")))
    rundir_writer.claim(again)
    rundir_writer.write_run_files(again, ["zlaunch", "train", "train.py"], Lineage(repeats="first"))
    return again


def test_only_the_user_reads_the_fingerprints_of_a_shared_run(tmp_path: Path) -> None:
    plan = make_plan(inputs(tmp_path))
    rundir_writer.claim(plan)
    with mock.patch.object(secrets, "_KNOWN", secrets._Known()):
        secrets.remember({"HF_TOKEN": "aB3dE5gH7jK9m"})
        rundir_writer.write_run_files(plan, ["zlaunch"], is_shared=True)
    assert stat.S_IMODE(plan.layout.secrets.stat().st_mode) == 0o600


def cases(folder: Path) -> dict[str, JobFacts]:
    plain = inputs(folder)
    hosts = over_ssh(Host("w0", (0, 1)), Host("w1", (3,)))
    return {
        "torchrun": plain,
        "deepspeed": inputs(folder, launcher="deepspeed"),
        "cpu": on_machine(inputs(folder, stage=3), CPU_MACHINE),
        "ssh": replace(plain, topology=hosts, environ={"PATH": "/usr/bin", "NCCL_DEBUG": "INFO"}),
        "nvme": inputs(folder, stage=3, offload=Offload("nvme", "cpu"), nvme_dir=folder),
        "accelerate": replace(plain, script=script(interface=ConfigInterface.ACCELERATE)),
        "own loop": replace(plain, script=script(interface=ConfigInterface.DEEPSPEED)),
        "no model": replace(inputs(folder, stage=3), model=None),
    }


CASES = list(cases(Path("/")))


@pytest.mark.parametrize("case", CASES)
def test_a_plan_made_from_a_record_is_the_plan_but_for_its_directory(case: str, tmp_path: Path) -> None:
    given = cases(tmp_path)[case]
    plan = recorded(given)
    again = repeated(plan, given)
    first = make_plan(replace(given, layout=again.layout))
    for name in (
        "topology",
        "accelerator",
        "launcher",
        "left",
        "script",
        "argv",
        "watched_argv",
        "precision",
        "ops",
    ):
        assert getattr(again, name) == getattr(first, name), name
    assert {name: one.value for name, one in again.environment.items()} == {
        name: one.value for name, one in first.environment.items()
    }
    assert (again.values.config(), again.values.sources()) == (first.values.config(), first.values.sources())
    assert again.swap_dirs == first.swap_dirs


@pytest.mark.parametrize("case", CASES)
def test_the_files_of_a_repetition_differ_by_what_names_the_directory_alone(
    case: str, tmp_path: Path
) -> None:
    given = cases(tmp_path)[case]
    plan = recorded(given)
    again = repeated(plan, given)
    for old in sorted(plan.layout.root.iterdir()):
        if old.is_dir() or old == plan.layout.secrets:  # which has a salt of its own
            continue
        texts = [file.read_text() for file in (old, again.layout.root / old.name)]
        for text_of, own in zip((0, 1), (plan, again), strict=True):
            for swap in own.swap_dirs:
                texts[text_of] = texts[text_of].replace(str(swap), "SWAP")
            texts[text_of] = texts[text_of].replace(str(own.layout.root), "ROOT")
        if old.name == "job.json":
            jobs = [json.loads(text) for text in texts]
            assert jobs[1].pop("repeats") == "first"
            assert jobs[0].pop("repeats") is None
            for job in jobs:
                del job["started"]
            assert jobs[0] == jobs[1]
        else:
            assert texts[0] == texts[1], old.name


@pytest.mark.parametrize("case", CASES)
def test_what_is_asked_for_again_makes_the_plan_that_was_made_first(case: str, tmp_path: Path) -> None:
    run_options = RunOptions("1", "stop", 5.0, RestartPolicy(3, "retry"))
    given = cases(tmp_path)[case]
    given = replace(given, job=replace(given.job, run_options=run_options))
    plan = recorded(given)
    spec = recorded_job(RunFiles(plan.layout.root))
    again = make_plan(replace(given, job=spec))
    assert (spec.run_options, spec.args.words) == (run_options, ARGS)
    assert (again.values.config(), again.watched_argv) == (plan.values.config(), plan.watched_argv)
    assert again.script_words[1:] == plan.script_words[1:]
    if spec.hostfile:
        lines = [HostLine(host, Place("hosts", 1, 1)) for host in given.topology.hosts]
        topology = choose_slots(lines, spec.devices)
    else:
        topology = assign_ranks(given.machine, spec.devices)
    assert plan.topology == topology


def test_a_ds_config_and_hosts_are_asked_for_as_they_were_recorded(tmp_path: Path) -> None:
    given = {**cases(tmp_path), "own": inputs(tmp_path, ds_config=Path("gone.json"))}
    for case in ("ssh", "own"):
        plan = recorded(replace(given[case], layout=RunDir(tmp_path / case)))
        spec = recorded_job(RunFiles(Path("/moved")).holding(job=RunFiles(plan.layout.root).job))
        assert spec.ds_config == (Path("/moved/ds_config.json") if case == "own" else None)
        assert spec.hostfile == (Path("/moved/hostfile") if case == "ssh" else None)


def test_a_directory_that_was_moved_is_still_repeated(tmp_path: Path) -> None:
    given = inputs(tmp_path)
    plan = recorded(given)
    moved = plan.layout.root.rename(tmp_path / "moved")
    again = moved_plan(RunFiles(moved), replace(given, layout=RunDir(tmp_path / "second")))
    assert str(tmp_path / "second" / "ds_config.json") in again.script_words


def test_a_script_that_has_learned_to_read_the_variable_is_shown_without_one(tmp_path: Path) -> None:
    given = inputs(tmp_path)
    past = RunFiles(recorded(given).layout.root)
    reads = Script(Path("train.py"), "", ConfigInterface.DEEPSPEED)
    assert reads.handover is Handover.VARIABLE
    again = moved_plan(past, replace(given, script=reads, layout=RunDir(tmp_path / "second")))
    assert not [line for line in plan_lines(again, complete=True) if "$ZLAUNCH_DS_CONFIG" in line]


@pytest.mark.parametrize("missing", ["script", "ranks", "launcher", "native_ops", "environment", "over_ssh"])
def test_a_record_that_says_too_little_is_refused_and_not_guessed(missing: str, tmp_path: Path) -> None:
    given = inputs(tmp_path)
    past = RunFiles(recorded(given).layout.root)
    job = conform({name: value for name, value in past.job.items() if name != missing}, JobRecord)
    with pytest.raises(Unavailable, match=rf"\(`{missing}`\): it is damaged"):
        moved_plan(past.holding(job=job), replace(given, layout=RunDir(tmp_path / "second")))


@pytest.mark.parametrize("missing", ["spec", "script", "ranks", "swap_dirs", "accelerator"])
def test_a_record_that_does_not_say_what_was_asked_for_is_refused(missing: str, tmp_path: Path) -> None:
    plan = recorded(inputs(tmp_path))
    past = RunFiles(plan.layout.root)
    job = conform({name: value for name, value in past.job.items() if name != missing}, JobRecord)
    with pytest.raises(Unavailable, match=rf"\(`{missing}`\): it is damaged"):
        recorded_job(past.holding(job=job))


@pytest.mark.parametrize(
    "damage", [{"inherited": {"A=B": "1"}}, {"inherited": {"A": "\0"}}, {"working_directory": "\0"}]
)
def test_surroundings_that_no_run_can_have_had_are_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    past = RunFiles(recorded(inputs(tmp_path)).layout.root)
    job = conform({**past.job, "working_directory": str(tmp_path), **damage}, JobRecord)
    with pytest.raises(Unavailable, match="it is damaged"):
        restore_environment(past.holding(job=job))


@pytest.mark.parametrize(
    "damage", [{"ranks": []}, *({"environment": {name: "1"}} for name in ("", "A=B", "A\0"))]
)
def test_a_record_of_what_cannot_have_run_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    given = inputs(tmp_path)
    past = RunFiles(recorded(given).layout.root)
    job = conform({**past.job, **damage}, JobRecord)
    with pytest.raises(Unavailable, match="it is damaged"):
        moved_plan(past.holding(job=job), replace(given, layout=RunDir(tmp_path / "second")))


GIT: GitRecord = {"commit": "a" * 40, "branch": "main", "changed": [], "diff_sha256": None}
THEN: EnvironmentRecord = {
    "git": GIT,
    "packages": {"torch": "2.13.0"},
    "zlaunch": "1",
    "python": "/venv/bin/python",
    "machine": {"gpus": [{"name": "H100"}]},
}


def test_what_is_as_it_was_has_not_changed() -> None:
    assert [*environment_changes(THEN, THEN), *script_changes("a.py", "1" * 64, "1" * 64)] == []


@pytest.mark.parametrize(
    ("what", "now"),
    [
        ("git commit", {**THEN, "git": {**GIT, "commit": "b" * 40}}),
        ("git commit", {**THEN, "git": None}),
        ("uncommitted changes", {**THEN, "git": {**GIT, "diff_sha256": "3" * 64}}),
        ("torch", {**THEN, "packages": {"torch": "2.14.0"}}),
        ("zlaunch", {**THEN, "zlaunch": "2"}),
        ("interpreter", {**THEN, "python": "/usr/bin/python"}),
        ("GPUs", {**THEN, "machine": {"gpus": []}}),
    ],
)
def test_each_thing_that_is_not_what_it_was_is_named(what: str, now: EnvironmentRecord) -> None:
    assert [one.what for one in environment_changes(THEN, now)] == [what]


def test_another_branch_of_the_same_commit_is_no_change() -> None:
    git: GitRecord = {**GIT, "branch": "other", "changed": ["?? notes"]}
    assert not [*environment_changes(THEN, {**THEN, "git": git})]


@pytest.mark.parametrize(("then", "now"), [("1" * 64, "2" * 64), ("1" * 64, None), (None, "1" * 64)])
def test_a_script_with_another_hash_or_without_one_counts_as_changed(
    then: str | None, now: str | None
) -> None:
    assert [one.what for one in script_changes("a.py", then, now)] == ["a.py"]


@given(
    st.dictionaries(
        st.sampled_from(
            ["NCCL_DEBUG", "HF_TOKEN", "CUDA_VISIBLE_DEVICES", "HOME", "LD_PRELOAD", "PYTHONPATH"]
        ),
        st.text(),
    )
)
def test_secrets_and_what_concerns_no_job_are_not_recorded(environ: dict[str, str]) -> None:
    assert {*inherited(environ)} == {*environ} - {"HF_TOKEN", "HOME"}


@pytest.mark.job
def test_a_repeated_run_goes_on_from_the_same_tag_whatever_latest_names_by_then(
    saved: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(saved / "zero2", tmp_path / "base"))
    told = resumption(base, LOOP)
    first = recorded(replace(inputs(tmp_path), script=LOOP, resumption=told))
    assert first.environment["ZLAUNCH_RESUME"].value == str(base)
    (base / "latest").write_text("another")
    again = repeated(first, replace(inputs(tmp_path), script=LOOP, resumption=told))
    assert again.environment["ZLAUNCH_RESUME"].value == str(again.layout.resume)
    assert (again.layout.resume / "latest").read_text() == "global_step3"
