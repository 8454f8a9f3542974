from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.errors import InputMissing, Place, Refused, WrongUsage
from zlaunch.hosts.cluster.topology import (
    Host,
    HostLine,
    Slot,
    Topology,
    beyond_deepspeed,
    parse_hostfile,
    parse_hosts,
    read_hostfile,
    select,
    too_many_slots,
)

W0, W1 = Host("w0", (0, 1, 2, 3)), Host("w1", (0, 1))

BAD_LINES = [
    ("w0 slots=four", "bad-host-line"),
    ("w0 slots=4 w1 slots=4", "bad-host-line"),
    ("-oProxyCommand=x slots=1", "bad-host-line"),
    ("w0;reboot slots=1", "bad-host-line"),
    ("@w0 slots=1", "bad-host-line"),
    ("-l@w0 slots=1", "bad-host-line"),
    ("w0:4 slots=4", "bad-host-line"),
    ("w0 slots=4 slots=4", "bad-host-line"),
    ("w0 slots=4 port=0", "bad-host-line"),
    ("w0 slots=4 addr=a;b", "bad-host-line"),
    ("w0 colour=red", "bad-host-line"),
    ("w0 port=70000", "bad-host-line"),
    ("w0 slots=-1", "bad-host-line"),
    ("w0 addr=999.1.1.1", "bad-host-line"),
    ("10.0.0.300 slots=1", "bad-host-line"),
    ("w0 slots=1\nW0 slots=1", "duplicate-host"),
    ("w0 slots=1\nw0. slots=1", "duplicate-host"),
    ("[fd00::1] slots=1\n[fd00:0::1] slots=1", "duplicate-host"),
    ("w0 python=~/env/bin/python", "bad-host-line"),
    ("w0 python=", "bad-host-line"),
    ("[::g]:8", "bad-host-line"),
    ("1:2:3 slots=1", "bad-host-line"),
    ("w0 slots=0", "no-slots"),
    ("w1 slots=2\nw1 slots=2", "duplicate-host"),
]

SELECTIONS = [
    ("w1", None, [("w1", (0, 1))]),
    ("w0:2,0", None, [("w0", (0, 2))]),
    ("w1@w0:1", None, [("w0", (1,)), ("w1", (0, 1))]),
    ("w0:1@w0:3", None, [("w0", (1, 3))]),
    (None, "w0", [("w1", (0, 1))]),
    (None, "w0:0,1@w1:1", [("w0", (2, 3)), ("w1", (0,))]),
    (None, None, [("w0", (0, 1, 2, 3)), ("w1", (0, 1))]),
]

WRONG_TERMS = ["w9", "w0:", "w0:x", "w0:0-1", "w0:0,", "w0:9", "w0@w9", "@", "w0:0@", "w0:" + "9" * 5000]

names = st.from_regex(r"[a-z][a-z0-9]{0,4}", fullmatch=True)
devices = st.sets(st.integers(0, 15), min_size=1).map(lambda numbers: tuple(sorted(numbers)))
host_lists = st.lists(
    st.builds(Host, names, devices), min_size=1, max_size=4, unique_by=lambda host: host.name
)

host_words = st.sampled_from(
    ["w0", "w1", "user@w2", "slots=4", "slots=0", "slots", "=", "max_slots=8", "#", "\t"]
)
host_texts = st.lists(st.lists(host_words, max_size=4).map(" ".join), max_size=5).map("\n".join)


def _written(hosts: list[Host]) -> str:
    return "@".join(f"{host.name}:{','.join(map(str, host.devices))}" for host in hosts)


def _slots(hosts: Iterable[Host]) -> list[tuple[str, int]]:
    return [(host.name, device) for host in hosts for device in host.devices]


def test_a_line_names_a_host_and_its_slots() -> None:
    lines, _ = parse_hostfile("w0 slots=2", "hosts")
    assert lines == (HostLine(Host("w0", (0, 1)), Place("hosts", 1, 1)),)


@pytest.mark.parametrize(
    "line",
    [
        "  w0\tslots=2  ",
        "w0 slots=2 # fast",
        "w0 slots=2 max_slots=8",
        "# w9\n\nw0 slots=2",
        "w0 slots = 2",
        "w0:2",
        "w0:2  # fast",
    ],
)
def test_a_line_may_be_written_in_other_ways(line: str) -> None:
    lines, findings = parse_hostfile(line, "hosts")
    assert ([line.host for line in lines], findings) == ([Host("w0", (0, 1))], [])


@pytest.mark.parametrize("name", ["w0", "10.0.0.1", "gpu-node_3.cluster", "W"])
def test_a_host_is_named_as_ssh_knows_it(name: str) -> None:
    assert parse_hostfile(f"{name} slots=1", "hosts")[0][0].host.name == name


@pytest.mark.parametrize(("text", "code"), BAD_LINES)
def test_a_bad_line_is_found(text: str, code: str) -> None:
    assert [finding.code for finding in parse_hostfile(text, "hosts")[1]] == [code]


@pytest.mark.parametrize("slots", ["9" * 5000, "9" * 25])
def test_more_slots_than_any_host_has_are_found(slots: str) -> None:
    assert len(parse_hostfile(f"w0 slots={slots}", "hosts")[1]) == 1


def test_a_bad_line_is_placed() -> None:
    assert parse_hostfile("w0 slots=1\n\nw1 w2", "hosts")[1][0].place == Place("hosts", 3, 1)


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("w0 slots = 2", Host("w0", (0, 1))),
        ("w0:2 # fast", Host("w0", (0, 1))),
        ("w0", Host("w0", ())),
        ("ann@w0:2", Host("w0", (0, 1), "ann")),
        ("w0 port=2222 slots=1 addr=10.0.0.2", Host("w0", (0,), None, 2222, "10.0.0.2")),
        ("[::1]:2", Host("::1", (0, 1))),
        ("w0:1 python=/opt/a,b/bin/python", Host("w0", (0,), python="/opt/a,b/bin/python")),
        ("w0:1 python=python3.12", Host("w0", (0,), python="python3.12")),
        ("ann@[fe80::2] slots=1 addr=fd00::2", Host("fe80::2", (0,), "ann", None, "fd00::2")),
        ("fd00::1 slots=1", Host("fd00::1", (0,))),
        ("fe80::1%eth0 slots=1", Host("fe80::1%eth0", (0,))),
        ("[fe80::1%ib0]:1 addr=[fd00::2]", Host("fe80::1%ib0", (0,), addr="fd00::2")),
    ],
)
def test_a_line_says_how_to_reach_a_host(line: str, host: Host) -> None:
    lines, findings = parse_hostfile(line, "hosts")
    assert ([line.host for line in lines], findings) == ([host], [])


def test_a_host_is_read_as_it_writes_itself() -> None:
    host = Host("w0", (0, 1), "ann", 2222, "10.0.0.2", "/opt/env/bin/python")
    assert parse_hostfile(host.line(), "hosts")[0][0].host == host


def test_hosts_are_named_on_the_command_line() -> None:
    assert [line.host for line in parse_hosts("w0:4, ann@w1 slots=2")] == [W0, replace(W1, user="ann")]


@pytest.mark.parametrize("text", ["", "w0:4,", "w0:4,w0:2", "w0:x"])
def test_hosts_that_make_no_sense_are_wrong_usage(text: str) -> None:
    with pytest.raises(WrongUsage, match="--hosts"):
        parse_hosts(text)


def test_an_ipv6_address_is_filtered_like_any_host() -> None:
    hosts = [Host("::1", (0, 1)), W1]
    assert select(hosts, "[::1]:1@w1", None) == (Host("::1", (1,)), W1)


@pytest.mark.parametrize("line", ["ann@w0:1", "w0:1 port=22", "w0:1 addr=w0-ib", "[::1]:1", "w0:1 python=/p"])
def test_what_deepspeed_cannot_be_told_is_found_with_its_line(line: str) -> None:
    lines, _ = parse_hostfile(f"w9:1\n{line}", "hosts")
    assert [str(finding.place) for finding in beyond_deepspeed(lines)] == ["hosts:2:1"]


def test_a_duplicate_host_names_both_lines() -> None:
    found = parse_hostfile("#\nw0 slots=1\nw0:1", "hosts")[1][0]
    assert found.message == "`w0` is on line 2 and on line 3"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("w0 slots=2 slots=3", "`slots=` is given twice"),
        ("w0 slots=-1", "`slots=-1`: not a number of slots"),
        ("w0:x", "`w0:x`: `x` is not a number of slots"),
        ("w0 port=0", "`port=0`: not a port"),
        ("w0 colour=red", "`colour=red` is not an option of a host"),
        ("w0 slots=1\nW0 slots=1", "`w0` is on line 1 and on line 2, there as `W0`"),
    ],
)
def test_each_mistake_has_words_of_its_own(line: str, said: str) -> None:
    found = parse_hostfile(line, "hosts")[1][0]
    assert found.message == said


def test_the_mark_that_some_editors_write_first_is_no_part_of_a_name() -> None:
    assert [line.host for line in parse_hostfile("\ufeffw1 slots=2", "hosts")[0]] == [W1]


def test_a_user_may_have_an_address_for_a_name() -> None:
    (line,) = parse_hostfile("ann@corp.com@w1 slots=2", "hosts")[0]
    assert (line.host.user, line.host.name) == ("ann@corp.com", "w1")


@given(st.text() | host_texts)
def test_each_line_of_any_text_is_a_host_or_a_finding(text: str) -> None:
    lines, findings = parse_hostfile(text, "hosts")
    given = text.removeprefix("\ufeff").split("\n")
    meant = [line for line in given if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) + len(findings) == len(meant)


@given(host_lists)
def test_a_hostfile_is_read_as_it_was_written(hosts: list[Host]) -> None:
    text = "".join(f"{host.name} slots={len(host.devices)}\n" for host in hosts)
    read = parse_hostfile(text, "hosts")[0]
    assert [(line.host.name, len(line.host.devices)) for line in read] == [
        (host.name, len(host.devices)) for host in hosts
    ]


def test_a_file_with_hosts_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("w0 slots=4\nw1 slots=2\n")
    assert [line.host for line in read_hostfile(file)] == [W0, W1]


@pytest.mark.parametrize(("text", "code"), [("# nobody\n", "no-hosts"), ("w0 w1\n", "bad-host-line")])
def test_a_file_without_hosts_is_refused(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(Refused) as caught:
        read_hostfile(file)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_a_missing_hostfile_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="hosts"):
        read_hostfile(tmp_path / "hosts")


def test_a_hostfile_that_is_no_text_is_missing_input(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputMissing, match="not a text file"):
        read_hostfile(file)


def test_a_host_with_more_slots_than_it_has_is_found() -> None:
    lines, _ = parse_hostfile("w0 slots=4\nw1 slots=2", "hosts")
    assert [str(finding.place) for finding in too_many_slots(lines, {"w0": 2, "w1": 2})] == ["hosts:1:1"]


def test_a_host_that_was_not_asked_may_have_any_number_of_slots() -> None:
    lines, _ = parse_hostfile("w0 slots=4", "hosts")
    assert too_many_slots(lines, {}) == []


@pytest.mark.parametrize(("include", "exclude", "kept"), SELECTIONS)
def test_a_filter_keeps_what_deepspeed_would_keep(
    include: str | None, exclude: str | None, kept: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert [(host.name, host.devices) for host in select([W0, W1], include, exclude)] == kept


@pytest.mark.parametrize("term", WRONG_TERMS)
def test_a_filter_that_names_nothing_is_wrong_usage(term: str) -> None:
    with pytest.raises(WrongUsage):
        select([W0, W1], term, None)


def test_a_filter_that_leaves_nothing_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="no slot"):
        select([W0, W1], None, "w0@w1")


def test_two_filters_are_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="together"):
        select([W0, W1], "w0", "w1")


def test_a_wrong_slot_is_answered_with_the_right_ones() -> None:
    with pytest.raises(WrongUsage, match="`w1` has no slot 7; it has `0`, `1`"):
        select([W0, W1], "w1:7", None)


@given(host_lists)
def test_including_everything_changes_nothing(hosts: list[Host]) -> None:
    assert select(hosts, _written(hosts), None) == tuple(hosts)


@given(host_lists)
def test_including_all_hosts_by_name_changes_nothing(hosts: list[Host]) -> None:
    assert select(hosts, "@".join(host.name for host in hosts), None) == tuple(hosts)


@given(host_lists, st.data())
def test_including_and_excluding_a_term_share_the_slots_out(hosts: list[Host], data: st.DataObject) -> None:
    hosts = [*hosts, Host("0spare", (0,))]
    some = data.draw(st.lists(st.sampled_from(_slots(hosts[:-1])), min_size=1, unique=True))
    term = "@".join(f"{name}:{device}" for name, device in some)
    parts = [*_slots(select(hosts, term, None)), *_slots(select(hosts, None, term))]
    assert sorted(parts) == sorted(_slots(hosts))


@given(st.text(), st.booleans())
def test_any_filter_is_a_selection_or_wrong_usage(text: str, include: bool) -> None:
    try:
        hosts = select([W0, W1], text if include else None, None if include else text)
    except WrongUsage:
        return
    assert {host.name for host in hosts} <= {"w0", "w1"}


def test_ranks_are_counted_host_by_host_and_device_by_device() -> None:
    topology = Topology((Host("w0", (1, 3)), Host("w1", (0,))))
    assert list(topology.slots()) == [Slot(0, "w0", 0, 1), Slot(1, "w0", 1, 3), Slot(2, "w1", 0, 0)]


@given(host_lists)
def test_there_are_as_many_ranks_as_slots(hosts: list[Host]) -> None:
    topology = Topology(tuple(hosts))
    assert [slot.rank for slot in topology.slots()] == list(range(topology.world_size))
