import os
from collections.abc import Iterator

import pytest

from tests.cluster import slurm_bed
from tests.cluster.bed import Bed, hosts, missing
from tests.cluster.slurm_bed import Slurm


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Hosts; `make test` installs what they need where it can."""
    require("hosts", missing())
    with hosts(tmp_path_factory.mktemp("bed")) as bed:
        yield bed


@pytest.fixture(scope="session")
def whole_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes; `make test` installs what it needs where it can."""
    require("Slurm", slurm_bed.missing())
    with slurm_bed.slurm(tmp_path_factory.mktemp("slurm")) as bed:
        yield bed


@pytest.fixture
def slurm(whole_slurm: Slurm) -> Iterator[Slurm]:
    """A Slurm whose nodes are idle; whatever runs there afterwards is cancelled."""
    yield whole_slurm
    whole_slurm.clear()


def require(what: str, lacking: list[str]) -> None:
    """Skip a test whose programs are missing; fail where all tests must run."""
    if lacking:
        assert not os.environ.get("CI"), f"missing: {lacking}"
        pytest.skip(f"for {what}: {', '.join(lacking)}")
