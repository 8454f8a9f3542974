import pytest

from zlaunch.job.stack import SoftwareStack


@pytest.mark.parametrize(("accelerate", "offloaded"), [("1.1.1", "adamw_torch"), ("1.2.0", "adagrad")])
def test_accelerate_offloads_adagrad_since_1_2(accelerate: str, offloaded: str) -> None:
    assert SoftwareStack({"accelerate": accelerate}).optimizer_on_host("adagrad") == offloaded
