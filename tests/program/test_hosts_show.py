"""`zlaunch hosts show` and `--no-ssh`: nothing is started, and no host is asked."""

import json
import re
import shlex
from pathlib import Path

from tests.running import zlaunch

HOSTFILE = "ann@w0 slots=2 port=2222 addr=10.0.0.1\nw1:4  # the large one\n"


def test_hosts_are_shown_with_their_slots_and_ranks(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(HOSTFILE)
    result = zlaunch("hosts", "show", "--hostfile", "hosts", cwd=tmp_path)
    assert [line.split() for line in result.out.splitlines()] == [
        ["host", "reached", "at", "slots", "ranks"],
        ["w0", *["ann@w0", "port", "2222,", "10.0.0.1", "for", "other", "hosts"], "0,", "1", "0,", "1"],
        ["w1", "w1", "0-3", "2-5"],
    ]


def test_a_python_is_shown_only_if_a_host_has_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("w0 slots=1\nw1 slots=1 python=/opt/env/bin/python\n")
    shown = zlaunch("hosts", "show", "--hostfile", "hosts", cwd=tmp_path).out.splitlines()
    assert (shown[0].split()[-1], shown[2].split()[-1]) == ("python", "/opt/env/bin/python")


def test_a_filter_and_json_work_as_in_train(tmp_path: Path) -> None:
    words = ["--hosts", "w0:2,w1:4", "--include", "w1:1,3", "--json"]
    (host,) = json.loads(zlaunch("hosts", "show", *words, cwd=tmp_path).out)["hosts"]
    assert (host["host"], host["slots"], host["ranks"]) == ("w1", [1, 3], [0, 1])


def test_without_hosts_it_says_what_to_type(tmp_path: Path) -> None:
    result = zlaunch("hosts", "show", cwd=tmp_path)
    assert (result.status, "`--hosts node1:8,node2:8`" in result.err) == (2, True)


def test_the_nodes_of_a_slurm_job_are_shown(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[1-2]"}
    result = zlaunch("hosts", "show", cwd=tmp_path, env=job)
    assert [line.split()[0] for line in result.out.splitlines()] == ["host", "gpu1", "gpu2"]


NODE = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}


def test_a_node_of_several_is_shown_among_the_others_of_which_nothing_is_known(tmp_path: Path) -> None:
    result = zlaunch("hosts", "show", cwd=tmp_path, env={**NODE, "NPROC_PER_NODE": "8"})
    assert result.status == 0, result.err
    assert [re.split("  +", line) for line in result.out.splitlines()[1:]] == [
        ["node 0", "10.0.0.1 port 4000", "?", "?"],
        ["node 1", "this machine", "0-7", "?"],
    ]
    assert "this is node 1 of 2: NNODES=2 NODE_RANK=1" in result.err


def test_a_rank_of_several_is_shown_with_its_number(tmp_path: Path) -> None:
    rank = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "a"}
    hosts = json.loads(zlaunch("hosts", "show", "--json", cwd=tmp_path, env=rank).out)["hosts"]
    assert [(one["host"], one["ranks"]) for one in hosts] == [("rank 0", [0]), ("rank 1", [1])]
    assert hosts[0]["reached_at"].endswith(", this machine")


def test_nodes_without_names_cannot_be_chosen_from(tmp_path: Path) -> None:
    result = zlaunch("hosts", "show", "--include", "w0:1", cwd=tmp_path, env=NODE)
    assert (result.status, "leave out `--include`" in result.err) == (2, True)


def test_no_ssh_shows_a_line_for_each_host_that_can_be_pasted(tmp_path: Path) -> None:
    (odd := tmp_path / "it's a $HOME").mkdir()
    words = ["--no-ssh", "--hosts", "w0:1,w1:2", "--", "two  words"]
    result = zlaunch("train", *words, cwd=odd)
    assert result.status == 0, result.err
    first, typed, second, other = result.out.splitlines()
    assert (first, second) == ("# on w0", "# on w1")
    assert shlex.split(typed) == ["cd", str(odd), "&&", "zlaunch", "train", "--node-rank", "0", *words]
    assert shlex.split(other)[5:7] == ["--node-rank", "1"]


def test_a_node_that_is_none_of_the_hosts_is_refused(tmp_path: Path) -> None:
    result = zlaunch("train", "--no-ssh", "--node-rank", "2", "--hosts", "w0:1,w1:1", cwd=tmp_path)
    assert (result.status, "there are 2 hosts" in result.err) == (2, True)


def test_a_node_rank_alone_is_refused(tmp_path: Path) -> None:
    result = zlaunch("train", "--node-rank", "0", cwd=tmp_path)
    assert (result.status, "add `--no-ssh`" in result.err) == (2, True)
