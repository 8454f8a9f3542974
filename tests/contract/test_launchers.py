"""Command lines, hostfiles and filters, against the launchers that will read them."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.each import each
from zlaunch.errors import WrongUsage, ZlaunchError
from zlaunch.hosts.cluster.topology import (
    Host,
    Reach,
    Topology,
    beyond_deepspeed,
    parse_hostfile,
    read_hostfile,
    select,
)
from zlaunch.launch.backends import deepspeed, torchrun
from zlaunch.launch.launcher import Target

SAME_EVERY_TIME = settings(derandomize=True, deadline=None, max_examples=300)

MODULE = Target("package.train", ("--lr", "1e-3"), "module")
PROGRAM = Target("/tools/bin/python", ("/tools/start.py", "zlaunch.worker.rank", "/runs/1"), "program")
SCRIPT = Target("train.py", ("--lr", "1e-3", "--num_gpus", "4", "--", "-x", "a b"))
HOSTS = replace(PROGRAM, hostfile="/runs/1/hostfile")
TARGETS = {"a module": MODULE, "a script": SCRIPT, "a program": PROGRAM}

HERE = Topology((Host("localhost", (0, 1)),))
APART = Topology((Host("localhost", (2, 5)),))
TWO = Topology((Host("w0", (0, 1, 2, 3)), Host("w1", (1, 3))), reach=Reach.SSH)
ONE_LEFT = Topology((Host("w1", (0,)),), reach=Reach.SSH)
NAMED = Topology((Host("10.0.0.1", (0,)), Host("gpu-1.example.org", (0, 1))), reach=Reach.SSH)


def runner_reads(target: Target, topology: Topology, accelerator: str = "cuda") -> Any:
    from deepspeed.launcher.runner import parse_args

    _, *words = deepspeed.build_argv(target, topology, accelerator, 29501)
    return parse_args(words)


@each("target", TARGETS.values(), ids=TARGETS)
@each(
    ("field", "wanted"),
    [
        ("user_script", lambda target: target.name),
        ("user_args", lambda target: list(target.args)),
        ("module", lambda target: target is MODULE),
        ("no_python", lambda target: target is PROGRAM),
        ("hostfile", lambda _: deepspeed.NO_HOSTFILE),
        ("master_port", lambda _: 29501),
        ("no_local_rank", lambda _: True),
        ("force_multi", lambda _: False),
    ],
)
def test_deepspeeds_runner_understands_its_command_line(
    target: Target, field: str, wanted: Callable[[Target], Any]
) -> None:
    assert getattr(runner_reads(target, HERE), field) == wanted(target)


def test_deepspeeds_runner_goes_to_other_hosts_when_it_is_told_to() -> None:
    args = runner_reads(HOSTS, ONE_LEFT)
    assert (args.hostfile, args.force_multi) == (HOSTS.hostfile, True)


def test_deepspeeds_runner_starts_as_many_ranks_on_a_cpu() -> None:
    assert runner_reads(MODULE, HERE, "cpu").num_gpus == HERE.world_size


def written(topology: Topology) -> str:
    return " ".join(f"{host.name}:{','.join(map(str, host.devices))}" for host in topology.hosts)


@each("topology", [HERE, APART, TWO, ONE_LEFT, NAMED], ids=written)
def test_deepspeeds_runner_finds_the_same_hosts_and_devices(topology: Topology) -> None:
    from deepspeed.launcher.runner import parse_inclusion_exclusion

    pool = {host.name: max(host.devices) + 1 for host in topology.hosts}
    include = runner_reads(HOSTS, topology).include
    found = parse_inclusion_exclusion(pool, include, "")
    assert list(found.items()) == [(host.name, list(host.devices)) for host in topology.hosts]


@each("target", TARGETS.values(), ids=TARGETS)
@each(
    ("field", "wanted"),
    [
        ("training_script", lambda target: target.name),
        ("training_script_args", lambda target: list(target.args)),
        ("module", lambda target: target is MODULE),
        ("no_python", lambda target: target is PROGRAM),
        ("nproc_per_node", lambda _: "2"),
        ("standalone", lambda _: True),
        ("log_dir", lambda _: os.devnull),
        ("nnodes", lambda _: "1:1"),
    ],
)
def test_torchrun_understands_its_command_line(
    target: Target, field: str, wanted: Callable[[Target], Any]
) -> None:
    from torch.distributed.run import get_args_parser

    program, *words = torchrun.build_argv(target, HERE, "cuda", 29501)
    assert getattr(get_args_parser().parse_args(words), field) == wanted(target), program


HOSTFILES = {
    "one host": "w0 slots=4\n",
    "two hosts": "w0 slots=4\nw1 slots=8\n",
    "no last newline": "w0 slots=4",
    "tabs": "w0\tslots=4\n",
    "spaces around": "   w0   slots=4   \n",
    "comments and blank lines": "# all\n\n   \n  # some\nw0 slots=1\n",
    "a comment behind": "w0 slots=4 # old\nw1 slots=2\t#new\n",
    "most slots": "w0 slots=4 max_slots=8\n",
    "Windows": "w0 slots=4\r\nw1 slots=2\r\n",
    "addresses": "10.0.0.1 slots=1\ngpu-1.example.org slots=3\n",
    "leading zeros": "w0 slots=004\n",
    "no slots": "w0 slots=0\n",
    "garbage behind": "w0 slots=4abc\n",
    "spaces around =": "w0 slots = 4\n",
    "a name alone": "w0\n",
    "twice": "w0 slots=1\nw0 slots=2\n",
    "nothing": "",
    "two cases of one name": "W0 slots=1\nw0 slots=2\n",
    "a form feed": "w0 slots=1\x0cw1 slots=2\n",
    "a line separator": "w0 slots=1 # \u2028w1 slots=2\n",
    "Arabic digits": "w0 slots=\u0663\n",
}

PIECES = st.sampled_from(
    [
        "w0",
        "w1",
        "10.0.0.1",
        "me@w2",
        "a-b.c",
        " ",
        "  ",
        "\t",
        "\n",
        "\n",
        "\r\n",
        "#",
        "slots=",
        " slots=1",
        " slots=12",
        "=",
        "0",
        "3",
        "max_slots=4",
        "\x0b",
        "\x85",
        "é",
    ]
)
LINES = st.builds(
    "{}{}slots={}{}".format,
    st.sampled_from(["w0", "w1", "w2", "w3", "me@w4", "10.0.0.5", "#w6", ""]),
    st.sampled_from([" ", "  ", "\t", ""]),
    st.integers(0, 9),
    st.sampled_from(["", " ", " # x", " max_slots=9", "x", " slots=1"]),
)
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.lists(LINES, max_size=5).map("\n".join))


def agreed_hostfile(file: Path) -> None:
    """Hold both readers against each other, where both accept a file; zlaunch accepts more spellings."""
    from deepspeed.launcher.runner import fetch_hostfile

    try:
        lines = read_hostfile(file)
    except ZlaunchError:
        return
    try:
        theirs = fetch_hostfile(str(file))
    except ValueError:
        return
    if not beyond_deepspeed(lines):
        assert [(line.host.name, len(line.host.devices)) for line in lines] == list(theirs.items())


@pytest.mark.parametrize("name", HOSTFILES)
def test_a_hostfile_that_both_accept_means_the_same_to_both(name: str, tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text(HOSTFILES[name], "utf-8", newline="")
    agreed_hostfile(file)


@pytest.fixture(scope="module")
def any_hostfile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts") / "hostfile"


@SAME_EVERY_TIME
@given(text=TEXTS)
def test_any_text_that_both_accept_as_a_hostfile_means_the_same_to_both(
    any_hostfile: Path, text: str
) -> None:
    any_hostfile.write_text(text, "utf-8", newline="")
    agreed_hostfile(any_hostfile)


@pytest.mark.parametrize("name", ["one host", "two hosts", "tabs", "comments and blank lines", "addresses"])
def test_an_ordinary_hostfile_is_accepted(name: str) -> None:
    assert parse_hostfile(HOSTFILES[name], "hostfile")[1] == []


POOL = (Host("w0", (0, 1, 2, 3)), Host("w1", (0, 1)), Host("w2", (0,)))
SLOTS = st.lists(st.integers(0, 4).map(str), min_size=1, max_size=3).map(",".join)
NAMES = ["w0", "w1", "w2", "w9"]


def filter_of(names: list[str]) -> st.SearchStrategy[str]:
    """Name each host whole or by slots, not both; by slots perhaps more than once."""
    whole = {name: st.just(name) for name in names}
    by_slot = {name: SLOTS.map(lambda slots, name=name: f"{name}:{slots}") for name in names}  # type: ignore[misc]
    kinds = st.fixed_dictionaries({name: st.booleans() for name in names})
    return kinds.flatmap(
        lambda kind: st.lists(
            st.sampled_from(names).flatmap(lambda name: whole[name] if kind[name] else by_slot[name]),
            min_size=1,
            max_size=4,
        ).map("@".join)
    )


def zlaunch_selects(include: str, exclude: str) -> dict[str, list[int]] | None:
    try:
        hosts = select(POOL, include or None, exclude or None)
    except WrongUsage:
        return None
    return {host.name: list(host.devices) for host in hosts}


def deepspeed_selects(include: str, exclude: str) -> dict[str, list[int]] | None:
    from deepspeed.launcher.runner import parse_resource_filter

    active = {host.name: list(host.devices) for host in POOL}
    try:
        return dict(parse_resource_filter(active, include, exclude)) or None
    except ValueError:
        return None


@SAME_EVERY_TIME
@given(text=filter_of(NAMES))
@example("w0:1@w0:0")
@example("w1@w0")
def test_an_inclusion_means_the_same_to_deepspeed(text: str) -> None:
    assert zlaunch_selects(text, "") == deepspeed_selects(text, "")


@SAME_EVERY_TIME
@given(text=filter_of(NAMES))
@example("w0@w1@w2")
@example("w0:1@w0:0")
def test_an_exclusion_means_the_same_to_deepspeed(text: str) -> None:
    assert zlaunch_selects("", text) == deepspeed_selects("", text)


@pytest.mark.parametrize("text", ["w0@w0:1", "w0:1@w0"])
def test_a_host_named_whole_and_by_slot_means_the_same_to_deepspeed_or_is_refused(text: str) -> None:
    assert zlaunch_selects(text, "") in (None, deepspeed_selects(text, ""))


@pytest.mark.parametrize(
    "text", ["w0:", "w0:0-1", "w0:0:1", "w0:a", "w0 @w1", "@", "w0@", ":0", "w0:0,", "W0"]
)
def test_a_filter_that_deepspeed_cannot_read_is_refused(text: str) -> None:
    assert deepspeed_selects(text, "") is None
    assert zlaunch_selects(text, "") is None


def test_every_pair_of_hosts_and_slots_is_selected_as_deepspeed_does() -> None:
    terms = ["w0", "w0:1", "w0:0,3", "w1", "w1:1", "w2", "w2:0"]
    pairs = ["@".join(pair) for pair in itertools.permutations(terms, 2) if pair[0][:2] != pair[1][:2]]
    assert [text for text in pairs if zlaunch_selects(text, "") != deepspeed_selects(text, "")] == []
