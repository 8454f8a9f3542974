"""The sbatch script, as a shell runs it; what Slurm makes of it is in tests/cluster/test_submit.py."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import zlaunch
from zlaunch.errors import WrongUsage
from zlaunch.launch.schedulers import slurm
from zlaunch.launch.schedulers.slurm import SlurmRequest

ODD_ARGS = ("a b", "it's", '"$HOME"', "`f`", "#no", "\\")


def request(options: Mapping[str, str | None] | None = None, **known: Any) -> SlurmRequest:
    given = {
        "slurm": [slurm.SbatchOption(*one) for one in (options or {}).items()],
        "words": ("train.py",),
        "script_args": ODD_ARGS,
        "name": "it's a $name",
        "directory": Path("/here"),
    }
    return SlurmRequest(**{**given, **known})


def ran(
    folder: Path, asked: SlurmRequest, *, status: int, restarts: int | None
) -> tuple[list[str], list[str], int]:
    """Run a script with programs in place of Slurm's; return what srun and scontrol got, and its exit status."""
    for name, end in (("srun", status), ("scontrol", 0)):
        file = folder / name
        keep = f'printf "%s\\0" "$@" > {name}.got\nprintf "%s" "$ZLAUNCH_SECRET" > {name}.secret'
        file.write_text(f"#!/bin/sh\n{keep}\nexit {end}\n")
        file.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    env |= {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(["bash"], input=slurm.render(asked), cwd=folder, env=env, text=True, check=False)
    got = [folder / f"{name}.got" for name in ("srun", "scontrol")]
    words = [file.read_text().split("\0")[:-1] if file.exists() else [] for file in got]
    return words[0], words[1], done.returncode


def test_each_node_runs_zlaunch_with_all_arguments_as_they_are(tmp_path: Path) -> None:
    srun, scontrol, status = ran(tmp_path, request(), status=3, restarts=None)
    cut = srun.index("--")
    assert (tuple(srun[cut + 1 :]), scontrol, status) == (ODD_ARGS, [], 3)
    assert srun[srun.index("train") : cut] == ["train", "train.py", "--run-dir", "runs/it's a $name-42"]


def test_a_job_that_has_saved_is_requeued_and_resumes_in_a_run_directory_of_its_own(tmp_path: Path) -> None:
    srun, scontrol, status = ran(tmp_path, request(is_resumable=True), status=75, restarts=2)
    assert (scontrol, status) == (["requeue", "42"], 75)
    again = srun[srun.index("--run-dir") : srun.index("--")]
    assert again == ["--run-dir", "runs/it's a $name-42-attempt-3", "--resume", "latest"]


@pytest.mark.parametrize(("known", "restarts"), [({}, 100), ({"requeue": False}, 0)])
def test_a_job_is_not_requeued_for_ever_nor_against_the_wish_of_the_user(
    known: dict[str, Any], restarts: int, tmp_path: Path
) -> None:
    assert ran(tmp_path, request(**known), status=75, restarts=restarts)[1:] == ([], 75)


def test_the_options_of_the_user_come_before_those_of_zlaunch() -> None:
    asked = request(
        time_limit=90_000, gpus=8, options={"signal": "USR1@600", "exclusive": None, "qos": "high"}
    )
    lines = slurm.render(asked).splitlines()
    wanted = ["--time=1-01:00:00", "--gpus-per-node=8", "--signal=USR1@600", "--exclusive", "--qos=high"]
    assert [one for one in wanted if f"#SBATCH {one}" not in lines] == []
    assert [line for line in lines if "signal=USR1@90" in line] == []


@pytest.mark.parametrize(("limit", "before"), [(90_000, 90), (60, 30)])
def test_slurm_signals_the_steps_of_a_job_before_its_limit_and_not_the_shell(limit: int, before: int) -> None:
    """With `B:`, the batch shell alone gets the signal, and bash ends of it."""
    lines = slurm.render(request(time_limit=limit)).splitlines()
    assert [line for line in lines if "--signal" in line] == [f"#SBATCH --signal=USR1@{before}"]


@pytest.mark.parametrize("key", ["gres", "gpus", "gpus-per-task", "gpus-per-node"])
def test_a_job_asks_for_gpus_in_one_way(key: str) -> None:
    lines = slurm.render(request(gpus=8, options={key: "16"})).splitlines()
    assert [line for line in lines if "gpus-per-node=8" in line] == []


def test_cores_that_are_asked_for_by_a_letter_are_those_of_the_step_too(tmp_path: Path) -> None:
    result = zlaunch(
        *("train", "--submit", "slurm", "--slurm", "c=8", "--slurm", "p=fast", "--dry-run"),
        *("--partition", "slow"),
        cwd=tmp_path,
    )
    assert "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none --cpus-per-task=8" in result.out
    assert [line for line in result.out.splitlines() if "partition" in line] == ["#SBATCH --partition=fast"]


@pytest.mark.parametrize("way", [("--submit", "slurm", "--dry-run"), ("--no-ssh", "--hosts", "a:1,b:1")])
def test_an_argument_that_may_be_secret_is_said(way: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    result = zlaunch("train", "script.py", *way, "--", "--hub_token", "abc", cwd=tmp_path)
    assert (result.status, "`--hub_token (hidden)`" in result.err) == (0, True), result.err


def test_a_job_without_gpus_is_said_to_ask_for_none() -> None:
    assert slurm.check(request(gpus=8)) == slurm.check(request(options={"gres": "gpu:2"})) == []
    assert slurm.check(request()) == ["the job asks for no GPU: `--gpus N` asks for N on each node"]


def test_a_script_can_be_taken_as_json(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    words = ("train", "script.py", "--submit", "slurm", "--dry-run")
    text, as_json = (zlaunch(*words, *more, cwd=tmp_path).out for more in ((), ("--json",)))
    assert "#SBATCH" in text
    assert json.loads(as_json)["script"].replace(" --json", "") == text


def test_a_line_break_cannot_end_an_option() -> None:
    with pytest.raises(WrongUsage, match="line break"):
        slurm.check(request(name="a\n#SBATCH --account=b"))


def test_tasks_of_an_array_have_run_directories_of_their_own() -> None:
    text = slurm.render(request(array="0-3", run_dir=Path("runs/a")))
    assert 'run_dir=runs/a-"$SLURM_ARRAY_TASK_ID"' in text


RECORD = """JobId=7 JobName=JobState=FAILED
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList=n1
   StdOut=/here/runs/slurm 7.log
"""


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "7:0", 7),
        ("FAILED", "0:9", 137),
        ("CANCELLED", "0:15", 143),
        ("TIMEOUT", "0:0", 143),
        ("NODE_FAIL", "0:0", 69),
        ("RUNNING", "0:0", None),
    ],
)
def test_the_exit_status_of_a_job_is_that_of_its_end(state: str, code: str, status: int | None) -> None:
    found = slurm._status_of_record(RECORD.format(state=state, reason="None", code=code), request())
    assert (found.name, found.exit_status, found.output) == (
        state.lower(),
        status,
        Path("/here/runs/slurm 7.log"),
    )


@pytest.mark.parametrize(("restarts", "log"), [(0, None), (2, Path("/here/runs/slurm 7.log"))])
def test_a_job_that_waits_has_a_log_only_after_its_first_start(restarts: int, log: Path | None) -> None:
    record = RECORD.format(state="PENDING", reason="BeginTime", code="0:0")
    found = slurm._status_of_record(record.replace("Restarts=0", f"Restarts={restarts}"), request())
    assert (found.restarts, found.output) == (restarts, log)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--partition", "p"], "`--partition` has no effect without `--submit`"),
        (["--no-requeue"], "`--no-requeue` has no effect without `--submit`"),
        (["--submit", "slurm", "--image", "i"], "`--image` has no effect with `--submit slurm`"),
        (["--submit", "slurm", "--gpus", "0,1"], "names devices, but a scheduler chooses them"),
        (["--submit", "slurm", "--nodes", "2", "--gpus", "4", "--show-ranks", "8"], "there are ranks 0 to 7"),
        (["--submit", "slurm", "--hostfile", "h"], "contradict each other"),
        (["--submit", "slurm", "--time-limit", "soon"], "is not a time"),
        (["--submit", "slurm", "--slurm", "=x"], "is not KEY=VALUE"),
        (["--submit", "slurm", "--hosts", "a:2,b:2"], "`--hosts` has no effect with `--submit slurm`"),
        (["--submit", "slurm", "--offline"], "`--offline` has no effect with `--submit slurm`"),
        (["--submit", "slurm", "--no-ssh"], "`--no-ssh` has no effect with `--submit slurm`"),
        (["--submit", "slurm", "--slurm", "nodes=4"], "write `--nodes 4`"),
        (["--submit", "slurm", "--slurm", "no-requeue"], "write `--no-requeue`"),
        (["--submit", "slurm", "--slurm", "n=4"], "each node has one task"),
        (["--submit", "slurm", "--array", "1,2;id"], "`--array 1,2;id` is not a list of indexes"),
        (["--submit", "slurm", "--env", "HF_TOKEN=abc"], "`--env HF_TOKEN=…` would write a secret"),
        (["--no-ssh", "--hosts", "a:1,b:1", "--env", "MY_PASSWORD=x"], "would show a secret in the commands"),
        (
            ["--submit", "slurm", "--nodes", "3", "--on", "2x8xH100-80GB"],
            "`--nodes 3` and `--on 2x8xH100-80GB`",
        ),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    result = zlaunch("train", "script.py", "--dry-run", *words, cwd=tmp_path)
    assert (result.status, said in " ".join(result.err.split())) == (2, True), result.err


def test_a_wrong_ds_config_is_refused_before_the_job_waits_in_a_queue(tmp_path: Path) -> None:
    words = ("--submit", "slurm", "--nodes", "2", "--gpus", "8", "--set", "zero_optimization.stagee=3")
    result = zlaunch("train", *words, cwd=tmp_path, env={"PATH": "/nowhere"})
    assert (result.status, "unknown-key" in result.err) == (65, True), result.err


@pytest.mark.full
def test_a_job_is_checked_on_the_hardware_of_the_cluster(tmp_path: Path) -> None:
    words = ("--submit", "slurm", "--dry-run")
    model = ("--", "--model", "gpt2", "--per_device_train_batch_size", "24", "--sequence_length", "1024")
    small = zlaunch("train", *words, "--on", "2x8xRTX-4090", *model, cwd=tmp_path)
    assert (small.status, small.out) == (65, ""), small.err
    large = zlaunch("train", *words, "--on", "2x8xH100-80GB", *model, cwd=tmp_path)
    assert large.status == 0, large.err
    assert "#SBATCH --nodes=2\n" in large.out
    assert "#SBATCH --gpus-per-node=8\n" in large.out
    assert "--on" not in large.out


def test_each_start_has_a_secret_that_no_command_line_shows(tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        (folder := tmp_path / name).mkdir()
        words = ran(folder, request(), status=0, restarts=None)[0]
        found.append((folder / "srun.secret").read_text())
        assert (len(found[-1]), [word for word in words if found[-1] in word]) == (32, [])
    assert found[0] != found[1]


def test_ranks_are_not_bound_to_the_cores_of_one_task(tmp_path: Path) -> None:
    assert "--cpu-bind=none" in ran(tmp_path, request(), status=0, restarts=None)[0]


def test_what_zlaunch_yaml_says_is_written_into_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    lines = ("script: script.py", "partition: long", "account: mine", "slurm:", "  qos: high", "args: {x: 1}")
    (tmp_path / "zlaunch.yaml").write_text("\n".join(lines))
    result = zlaunch("train", "--submit", "slurm", "--dry-run", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "#SBATCH --partition=long\n" in result.out
    assert "#SBATCH --qos=high\n" in result.out
    assert "train --job none script.py \\" in result.out
    assert zlaunch("train", "--dry-run", cwd=tmp_path).status == 0


def test_a_short_option_of_sbatch_stays_one() -> None:
    assert "#SBATCH -C gpu" in slurm.render(request(options={"C": "gpu"})).splitlines()


def test_the_name_of_a_job_leads_to_no_other_directory() -> None:
    assert "run_dir=runs/etc-x-" in slurm.render(request(name="../etc/x"))
