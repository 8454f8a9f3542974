"""How the tests are shared out to the workers of xdist: what shares a fixture or an import stays together.

`--dist loadfile` makes a unit of each file; here a death is a unit too, and so are all tests that ask the installed
packages, because each worker that runs one imports them. What takes longest begins first, so that no worker waits
for another at the end.
"""

from xdist.scheduler import LoadScopeScheduling

PACKAGES = "packages"
IMPORTS_PACKAGES = (
    "tests/contract/",
    "tests/estimate/rehearsal/test_allocations.py",
    "tests/estimate/rehearsal/test_older_packages.py",
    "tests/job/test_model_families.py",
)
DEATHS = "tests/deaths/test_deaths.py"
SECONDS = {
    "tests/estimate/rehearsal/test_equal_to_real_ranks.py": 120,
    "tests/jobs/test_recipes.py": 70,
    "tests/contract/test_late_rules.py": 60,
    "tests/jobs/test_training.py": 120,
    "tests/resume/test_can_resume.py": 90,
    "tests/checkpoint/test_verify.py": 50,
    "tests/test_learn.py": 40,
    PACKAGES: 50,
}
"""What takes long: a file or a unit, and about how many seconds of two cores. The rest takes one."""


def unit_of(nodeid: str) -> str:
    """Name the unit of a test."""
    file = nodeid.partition("::")[0]
    if file == DEATHS:
        return nodeid
    return PACKAGES if file.startswith(IMPORTS_PACKAGES) and file not in SECONDS else file


def seconds(nodeid: str) -> int:
    """Say about how long the unit of a test takes."""
    unit = unit_of(nodeid)
    return SECONDS.get(unit, SECONDS.get(unit.partition("::")[0], 1))


class Units(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out units in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
