import pytest

from zlaunch.hosts.slurm_cpus import cpus_on


@pytest.mark.parametrize(
    ("per_node", "node", "count"),
    [
        ("16(x2),8", "w2", 16),
        ("16(x2),8", "w3", 8),
        ("4(x3)", "w1", 4),
        ("4", "w1", None),
        ("", "w1", None),
        ("four(x3)", "w1", None),
        ("4(x3)", "elsewhere", None),
    ],
)
def test_each_node_has_its_own_number_of_cpus(per_node: str, node: str, count: int | None) -> None:
    environ = {"SLURM_JOB_NODELIST": "w[1-3]", "SLURM_JOB_CPUS_PER_NODE": per_node}
    assert cpus_on(node, environ) == count


def test_outside_of_a_job_nothing_is_known() -> None:
    assert cpus_on("w1", {}) is None
