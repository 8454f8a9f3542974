import os
from collections.abc import Iterator

import pytest

from tests.hosts.bed import Bed, missing, two_hosts


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two hosts; `make test` installs what they need where it can."""
    if lacking := missing():
        assert not os.environ.get("CI"), f"missing: {lacking}"
        pytest.skip(f"two hosts need {', '.join(lacking)}")
    with two_hosts(tmp_path_factory.mktemp("bed")) as hosts:
        yield hosts
