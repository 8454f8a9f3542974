import pytest

from zlaunch.launch.op_build import advice_on


@pytest.mark.parametrize(
    "output",
    [
        "/bin/sh: 1: c++: not found",
        "/bin/sh: line 1: c++: command not found",
        "/bin/sh: line 1: g++: command not found",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/g++'",
    ],
)
def test_a_compiler_that_is_missing_is_to_be_installed(output: str) -> None:
    assert "apt-get install g++" in advice_on(output)


def test_a_compiler_that_found_an_error_is_not_to_be_installed() -> None:
    assert (
        advice_on("c++ -O3 -c op.cpp\nop.cpp:3:1: error: nothing is declared") == "see the compiler's output"
    )
