"""The Slurm that other tests use does what they need of it."""

from pathlib import Path

import pytest

from tests.cluster.slurm_bed import URGENT, Slurm

pytestmark = pytest.mark.hosts


def submitted(slurm: Slurm, folder: Path, script: str, *options: str) -> str:
    """Submit a shell script whose output goes to `JOB.log`."""
    log = folder / "%j.log"
    return slurm.ask(
        "sbatch", "--parsable", f"--output={log}", "--open-mode=append", *options, "--wrap", script
    )


def test_a_step_runs_on_both_nodes_which_know_each_other_by_name(slurm: Slurm) -> None:
    show = "echo $(hostname) $(hostname -I) $(getent hosts zlslurm1 | cut -d' ' -f1)"
    lines = slurm.ask("srun", "--nodes=2", "sh", "-c", show).splitlines()
    names, own, first = zip(*(line.split() for line in sorted(lines)), strict=True)
    assert (names, set(first)) == (slurm.nodes, {own[0]})


def test_an_urgent_job_requeues_another_one_which_gets_sigterm_and_runs_again(
    slurm: Slurm, tmp_path: Path
) -> None:
    script = 'trap "echo term; exit 0" TERM; [ "$SLURM_RESTART_COUNT" ] && exit; echo up; while :; do sleep 0.1; done'
    first = submitted(slurm, tmp_path, script, "--nodes=2", "--requeue")
    slurm.wait(first, "RUNNING")
    urgent = submitted(slurm, tmp_path, "true", "--nodes=2", f"--partition={URGENT}")
    slurm.wait(urgent, "COMPLETED")
    job = slurm.wait(first, "COMPLETED")
    assert (job["Restarts"], "term" in (tmp_path / f"{first}.log").read_text()) == ("1", True)


def test_a_node_that_is_down_stays_so_until_it_is_resumed(slurm: Slurm, tmp_path: Path) -> None:
    slurm.set_node(slurm.nodes[1], "down")
    job = submitted(slurm, tmp_path, "true", "--nodes=2")
    assert (slurm.node_state(slurm.nodes[1]), slurm.wait(job, "PENDING")["JobId"]) == ("down", job)
    slurm.set_node(slurm.nodes[1], "resume")
    slurm.wait(job, "COMPLETED")
