"""What another host lacks is said before anything starts there; each lack here is real."""

import pytest

from tests.cluster.bed import POOR, Bed
from tests.running import Result, zlaunch

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def refused(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Start two ranks on a host that has nearly nothing."""
    folder = tmp_path_factory.mktemp("lacks")
    (folder / "hosts").write_text(f"{POOR} slots=2\n")
    env = {**bed.environment(), "TORCH_EXTENSIONS_DIR": str(bed.own)}
    flags = ["--hostfile", "hosts", "--stage", "3", "--offload", "nvme", "--nvme", bed.own]
    return zlaunch(
        "train", *flags, "--launcher", "deepspeed", "--run-dir", bed.own / "r", cwd=folder, env=env
    )


def said_of(result: Result, code: str) -> str:
    """Take what was said with a code."""
    head = f": {POOR} [{code}]"
    assert result.err.count(head) == 1, result.err
    return " ".join(result.err.partition(head)[2].partition("[")[0].split())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("shm-too-small", "1 of 1 are free"),
        ("memlock-too-small", "the limit of a process is 0.1 MiB"),
        ("disk-too-small", "for offload to NVMe"),
        ("not-shared", "seems to be a different directory than here"),
    ],
)
def test_what_another_host_lacks_is_said_with_its_name(code: str, words: str, refused: Result) -> None:
    assert words in said_of(refused, code)


def test_nothing_starts_on_a_host_that_lacks_something(refused: Result, bed: Bed) -> None:
    assert (refused.status, list(bed.own.iterdir())) == (65, [])


def test_what_cannot_be_typed_with_a_hostfile_is_not_offered(refused: Result) -> None:
    assert "--launcher torchrun" not in refused.err
