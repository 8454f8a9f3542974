"""Which program examines a host."""

import sys

from zlaunch.hosts.agent import examine
from zlaunch.hosts.agent.questions import Questions, read_questions
from zlaunch.hosts.cluster.topology import Host


def test_a_host_is_examined_with_the_python_that_its_line_names() -> None:
    argv = examine._asking(Host("elsewhere", (0,), python="/opt/python"), Questions(python="/other"))
    assert argv[:3] == ["/opt/python", "-m", "zlaunch.hosts.agent.host"]
    assert read_questions(argv[3]).python is None


def test_a_host_without_one_is_examined_with_this_python() -> None:
    argv = examine._asking(Host("elsewhere", (0,)), Questions(python="/other"))
    assert argv[0] == sys.executable
    assert read_questions(argv[-1]).python == "/other"
