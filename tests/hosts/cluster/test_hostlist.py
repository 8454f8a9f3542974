"""Slurm's lists of hosts, written out."""

import pytest

from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.hostlist import expand

LISTS = {
    "gpu1": ("gpu1",),
    "gpu[1-3]": ("gpu1", "gpu2", "gpu3"),
    "gpu[08-10,12]": ("gpu08", "gpu09", "gpu10", "gpu12"),
    "a,b[1,3],c": ("a", "b1", "b3", "c"),
    "rack[1-2]node[1-2]-ib": ("rack1node1-ib", "rack1node2-ib", "rack2node1-ib", "rack2node2-ib"),
}


def test_lists_are_written_out_in_their_order() -> None:
    assert {text: expand(text) for text in LISTS} == LISTS


@pytest.mark.parametrize("text", ["", "gpu[1-", "gpu[a-b]", "gpu]1[", "a,,b"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="not a list of hosts"):
        expand(text)
