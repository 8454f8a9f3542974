"""What a plan says of the checkpoints that will be saved."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import answer, forecast, question
from tests.each import each
from tests.facts import facts_of
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, local, over_ssh, script
from zlaunch.cli.views.launch_json import plan_json
from zlaunch.cli.views.launch_plan import plan_lines
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.job.args import ScriptArgs
from zlaunch.job.recipes import default_recipe
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec, Profile
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.save_plan import SavePlan

MIB, GIB = 1 << 20, 1 << 30
INPUTS = facts_of(
    job=JobSpec(Path("train.py")),
    script=script(),
    ds_config=None,
    model=SHAPE,
    machine=CPU_MACHINE,
    topology=local(0, 1),
    layout=LAYOUT,
    environ={},
    python=PYTHON,
)
SAVES = SavePlan(Path("/kept"), every=5, total=20, each=50 * MIB, free=512 * GIB)

ARGUMENTS = "\narguments of the script, with the source of each"


def row(plan: LaunchPlan) -> str:
    rows = " ".join(" ".join(plan_lines(plan, complete=False)).split())
    assert "saves" in rows
    return rows.partition("saves ")[2].partition(" run ")[0]


@each(
    ("changed", "said"),
    [
        ({}, "a checkpoint every 5 steps to /kept, 50 MiB each, 4 in all: 200 MiB; 512.0 GiB are free"),
        ({"limit": 1}, "a checkpoint every 5 steps to /kept, 50 MiB each, at most 2 at once: 100 MiB; 512.0 GiB are free"),
        ({"limit": None}, "a checkpoint every 5 steps to /kept, 50 MiB each, at most 4 at once: 200 MiB; 512.0 GiB are free"),
        ({"total": None, "each": None}, "a checkpoint every 5 steps to /kept, of unknown size (`--rehearse` finds it), all of them kept; 512.0 GiB are free"),
        ({"total": None, "limit": None, "free": None}, "a checkpoint every 5 steps to /kept, 50 MiB each"),
        ({"every": None, "strategy": "", "limit": None, "each": None}, "a checkpoint when the script says to /kept, of unknown size (`--rehearse` finds it); 512.0 GiB are free"),
        ({"every": 500, "each": None, "free": None}, "a checkpoint after the last step (20) to /kept, of unknown size (`--rehearse` finds it)"),
        ({"is_kept": True, "free": None, "each": None}, "a checkpoint every 5 steps, as in the checkpoint, to /kept, of unknown size (`--rehearse` finds it), 4 in all"),
    ],
)  # fmt: skip
def test_the_plan_says_how_much_of_the_disk_checkpoints_take(changed: dict[str, object], said: str) -> None:
    assert row(replace(make_plan(INPUTS), saves=replace(SAVES, **changed))) == said  # type: ignore[arg-type]


def test_a_recipe_that_saves_its_model_alone_says_what_to_type() -> None:
    plan = replace(make_plan(INPUTS), saves=None)
    assert row(plan) == "no checkpoints"
    recipe = replace(plan, facts=replace(plan.facts, script=replace(plan.script, path=default_recipe())))
    assert row(recipe) == "the model at the end; `--save DIR` adds checkpoints"


@pytest.mark.parametrize(("is_terminal", "full"), [(True, False), (True, True), (False, False)])
def test_a_plan_that_would_scroll_away_is_shown_in_short(
    is_terminal: bool, full: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("LINES", "24")
    PlanView(full=full).dry_run(make_plan(INPUTS), None)
    shown = capsys.readouterr()
    is_short = is_terminal and not full
    assert ("ds_config, with the source of each value" in shown.out) is not is_short
    assert ("`--full` adds " in shown.err) is is_short
    assert "run     " in shown.out


def test_a_plan_says_whether_it_fits_the_memory_of_a_gpu() -> None:
    plan = make_plan(INPUTS)
    fits = replace(plan, facts=replace(plan.facts, estimate=answer(question(stage=2), forecast(10.0))))
    rows = dict(line.split(maxsplit=1) for line in plan_lines(fits, complete=False))
    assert rows["memory"] == "fits: 12.9 GiB of 79.1 GiB on each GPU, peak in load"


def test_of_a_loop_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(replace(INPUTS, script=script(interface=ConfigInterface.DEEPSPEED)))
    assert not any(line.startswith("saves") for line in plan_lines(plan, complete=False))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('config=os.environ["ZLAUNCH_DS_CONFIG"]', "the script reads it"),
        ("", 'read it with `config=os.environ["ZLAUNCH_DS_CONFIG"]`'),
    ],
)
def test_a_loop_is_told_to_read_its_ds_config_only_if_it_does_not(source: str, why: str) -> None:
    loop = replace(script(source, ConfigInterface.DEEPSPEED), config_flags=())
    assert why in make_plan(replace(INPUTS, script=loop)).environment["ZLAUNCH_DS_CONFIG"].why


def test_the_command_of_several_hosts_names_the_host_that_it_is_for() -> None:
    hosts = (Host("n0", (0,)), Host("n1", (0,)))
    plan = make_plan(replace(INPUTS, topology=Topology(hosts)))
    assert "\ncommand for torchrun on n0" in "\n".join(plan_lines(plan, complete=True))


def test_a_plan_ends_with_its_summary() -> None:
    lines = list(plan_lines(make_plan(INPUTS), complete=True))
    assert lines[0] == "ds_config, with the source of each value"
    assert [line.split()[0] for line in lines[lines.index("") :] if line and line[0] != " "][-4:] == [
        *("ranks", "batch", "saves", "run")
    ]


def test_a_plan_says_where_each_argument_comes_from_as_text_and_as_json() -> None:
    job = JobSpec(Path("train.py"), ScriptArgs(("--lr", "1e-5", "--seed", "3"), {"seed": "zlaunch.yaml:4"}))
    plan = make_plan(replace(INPUTS, job=job))
    lines = list(plan_lines(plan, complete=True))
    shown = [line.split(maxsplit=2) for line in lines[lines.index(ARGUMENTS) + 1 :][:2]]
    assert shown == [["--lr", "1e-5", "the command line"], ["--seed", "3", "`args.seed` in zlaunch.yaml:4"]]
    rows = {row["words"][0]: row["source"] for row in json.loads(plan_json(plan))["args"]}
    assert (rows["--use_cpu"], rows["--seed"]) == (
        "no NVIDIA GPU was found",
        "`args.seed` in zlaunch.yaml:4",
    )


def test_hosts_with_the_same_devices_are_one_line() -> None:
    hosts = tuple(Host(f"n{number}", (0, 1)) for number in range(32))
    topology = over_ssh(*hosts, Host("odd", (3,)))
    rows = " ".join(
        " ".join(plan_lines(make_plan(replace(INPUTS, topology=topology)), complete=False)).split()
    )
    assert "65 ranks on 33 hosts: n0 to n31, 32 with slot 0, 1; odd slot 3" in rows


def test_a_plan_says_how_many_steps_a_job_takes() -> None:
    job = JobSpec(Path("train.py"), ScriptArgs.of(["--max_steps", "480"]))
    assert "steps   480" in list(plan_lines(make_plan(replace(INPUTS, job=job)), complete=False))


@pytest.mark.parametrize(("first", "ends"), [(12, ""), (13, ", but the job ends after 12 steps")])
def test_a_plan_says_that_a_job_ends_before_the_steps_to_profile(first: int, ends: str) -> None:
    job = JobSpec(Path("train.py"), ScriptArgs.of(["--max_steps", "12"]), profile=Profile(first, 15))
    rows = " ".join(" ".join(plan_lines(make_plan(replace(INPUTS, job=job)), complete=False)).split())
    assert f"steps {first} to 15 of rank 0, with torch's profiler{ends} run" in rows
