import os
from collections.abc import Iterator

import pytest

from tests.cluster.bed import Bed, hosts, missing


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Hosts; `make test` installs what they need where it can."""
    if lacking := missing():
        assert not os.environ.get("CI"), f"missing: {lacking}"
        pytest.skip(f"hosts need {', '.join(lacking)}")
    with hosts(tmp_path_factory.mktemp("bed")) as bed:
        yield bed
