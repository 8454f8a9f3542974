"""Jobs for Ray, with a `ray` of our own that prints what Ray 2.60 prints."""

from pathlib import Path

import pytest

from tests.launch.schedulers.programs import calls, program
from tests.running import zlaunch

HEAD = "2026-01-01 00:00:00,000\tINFO cli.py:42 -- Job submission server address: http://127.0.0.1:8265\n"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("Job '<last>' succeeded", 0),
        ("Job '<last>' failed\nStatus message: Job entrypoint command failed with exit code 5", 5),
        ("Job '<last>' was stopped", 143),
    ],
)
def test_a_job_is_followed_to_its_exit_status(end: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    words = ("train", "script.py", "--submit", "ray", "--", "a b", "$HOME", "a\udcffb")
    env = program(
        tmp_path,
        "ray",
        {
            "job submit": [HEAD],
            "job logs": ["said by the job"],
            "job status": [f"{HEAD}Status for job '<last>': RUNNING", f"{HEAD}\x1b[31m{end}\x1b[39m"],
        },
    )
    result = zlaunch(*words, cwd=tmp_path, env=env)
    assert result.status == status, result.err
    submitted = calls(tmp_path)[0][0]
    assert submitted[submitted.index("--") + 1 :] == [
        "zlaunch",
        "train",
        "script.py",
        "--",
        "a b",
        "$HOME",
        "a\udcffb",
    ]


def test_several_nodes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    result = zlaunch("train", "script.py", "--submit", "ray", "--nodes", "2", cwd=tmp_path)
    assert (result.status, "runs on one node" in result.err) == (2, True)


@pytest.mark.parametrize(
    "words", [("--submit", "ray"), ("--submit", "slurm"), ("--no-ssh", "--hosts", "a:1,b:1")]
)
def test_a_byte_that_is_no_text_is_written_as_a_shell_reads_it(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("")
    result = zlaunch("train", "script.py", *words, "--dry-run", "--", "--name", "it's a\udcffb", cwd=tmp_path)
    assert "--name $'it\\'s a\\xffb'" in result.out, result
