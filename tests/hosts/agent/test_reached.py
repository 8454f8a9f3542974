"""What is known of the connection by which a program was started."""

from zlaunch.hosts.agent.reached import connection

LOGIN = {"SSH_CONNECTION": "10.0.0.9 55555 10.0.0.1 22"}


def test_sshd_says_both_addresses() -> None:
    assert connection(LOGIN) == ("10.0.0.9", "10.0.0.1")


def test_a_step_of_slurm_inherits_a_login_that_led_to_another_host() -> None:
    assert connection({**LOGIN, "SLURM_STEP_ID": "0"}) == (None, None)
    launched = {"SLURM_STEP_ID": "0", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    assert connection({**LOGIN, **launched}) == ("10.0.0.7", None)


def test_without_a_connection_nothing_is_known() -> None:
    assert connection({}) == (None, None)
