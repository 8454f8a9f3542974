import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import CPU_MACHINE, LAYOUT, PYTHON, TWO_GPUS, gpu, local, machine, over_ssh
from tests.running import run
from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.resources import Machine
from zlaunch.hosts.rank_environment import Variable, accelerate_variables, asked_variables, job_environment
from zlaunch.secrets import is_secret

HOSTS = over_ssh(Host("w0", (0, 1)), Host("w1", (0,)))


def _environment(
    environ: Mapping[str, str] | None = None,
    on: Machine = TWO_GPUS,
    topology: Topology | None = None,
    python: Interpreter = PYTHON,
) -> dict[str, str]:
    variables = job_environment(on, topology or local(0, 1), environ or {}, {}, python)
    return {name: variable.value for name, variable in variables.items()}


def test_the_programs_of_the_ranks_python_come_first() -> None:
    assert _environment({"PATH": "/usr/bin"})["PATH"] == f"/venv/bin{os.pathsep}/usr/bin"


def test_a_path_that_has_the_programs_of_the_ranks_python_stays() -> None:
    assert "PATH" not in _environment({"PATH": f"/usr/bin{os.pathsep}/venv/bin"})


def test_ninja_is_found_where_its_package_is_installed_elsewhere() -> None:
    path = _environment({"PATH": "/usr/bin"}, python=replace(PYTHON, ninja="/packages/bin"))["PATH"]
    assert path.split(os.pathsep) == ["/venv/bin", "/packages/bin", "/usr/bin"]


def test_the_cores_are_shared_among_the_ranks() -> None:
    assert _environment()["OMP_NUM_THREADS"] == "4"


def test_every_rank_has_a_thread() -> None:
    assert _environment(on=machine(gpu(0), gpu(1), cores=1))["OMP_NUM_THREADS"] == "1"


def test_the_host_with_the_most_ranks_decides_the_threads() -> None:
    assert _environment(topology=HOSTS)["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONWARNINGS", "CUDA_DEVICE_ORDER"])
def test_what_the_user_has_set_is_left_alone(name: str) -> None:
    assert name not in _environment({name: "mine"})


def test_setuptools_does_not_warn_after_deepspeed_has_looked_for_a_library(tmp_path: Path) -> None:
    filters = {"PYTHONWARNINGS": _environment()["PYTHONWARNINGS"]}
    done = run(sys.executable, "-c", "import distutils.ccompiler, setuptools", cwd=tmp_path, env=filters)
    assert (done.status, "_distutils_hack" in done.err) == (0, False), done.err


def test_the_devices_of_a_job_are_made_visible() -> None:
    assert _environment(topology=local(3, 1))["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_the_devices_of_a_job_go_before_what_the_user_made_visible() -> None:
    assert _environment({"CUDA_VISIBLE_DEVICES": "0,1,2"})["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_devices_that_are_visible_already_are_not_set_again() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in _environment({"CUDA_VISIBLE_DEVICES": "0,1"})


def test_devices_are_numbered_as_nvidia_smi_numbers_them() -> None:
    assert _environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_devices_of_other_hosts_are_left_to_the_runner() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in _environment(topology=HOSTS)


def test_deepspeed_is_told_that_there_is_no_gpu() -> None:
    assert _environment({"DS_ACCELERATOR": "cuda"}, on=CPU_MACHINE)["DS_ACCELERATOR"] == "cpu"


def test_a_machine_without_gpus_has_no_devices_to_show() -> None:
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & set(_environment(on=CPU_MACHINE))


def test_what_counts_on_other_hosts_is_forwarded_there() -> None:
    assert _environment({"NCCL_DEBUG": "INFO"}, topology=HOSTS)["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize("name", ["HF_TOKEN", "HOME", "MY_NCCL_DEBUG"])
def test_what_is_secret_or_local_is_not_forwarded(name: str) -> None:
    assert name not in _environment({name: "x"}, topology=HOSTS)


def test_nothing_is_forwarded_on_one_machine() -> None:
    assert "NCCL_DEBUG" not in _environment({"NCCL_DEBUG": "INFO"})


def test_variables_that_carry_the_ds_config_are_set() -> None:
    carrier = {"ACCELERATE_USE_DEEPSPEED": Variable("true", "because")}
    assert job_environment(TWO_GPUS, local(0), {}, carrier, PYTHON).items() >= carrier.items()


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "my_password", "AWS_SECRET_ACCESS_KEY_ID"])
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["GH_PAT", "DB_PASS", "db_pwd", "GPG_PASSPHRASE", "SESSION_COOKIE"])
def test_a_secret_is_known_by_a_word_of_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "value", ["https://me:word@hub.example.org/x", "hf_abcdefghijklmnopqrst", "token=ghp_abcdefghijklmnop"]
)
def test_a_secret_is_known_by_its_value(value: str) -> None:
    assert is_secret("HF_ENDPOINT", value)


@pytest.mark.parametrize("value", ["https://hub.example.org:443/a@b", "hf_hub", "http://[::1]:80"])
def test_an_ordinary_value_is_no_secret(value: str) -> None:
    assert not is_secret("HF_ENDPOINT", value)


@pytest.mark.parametrize("name", ["PATH", "PWD", "COMPASS", "NCCL_DEBUG", "OMP_NUM_THREADS"])
def test_what_is_no_secret_is_none(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        (Variable("4", "why"), "4"),
        (Variable("a b", "why"), "'a b'"),
        (Variable("/venv/bin:/usr/bin", "why", prepended="/venv/bin"), f"/venv/bin{os.pathsep}$PATH"),
    ],
)
def test_a_variable_is_shown_as_a_shell_takes_it(variable: Variable, shown: str) -> None:
    assert variable.shown("PATH") == shown


def test_accelerate_is_told_where_the_ds_config_is() -> None:
    variable = accelerate_variables(LAYOUT, "bf16")["ACCELERATE_DEEPSPEED_CONFIG_FILE"]
    assert variable.value == str(LAYOUT.ds_config)


@pytest.mark.parametrize(("precision", "value"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "no")])
def test_accelerate_is_told_the_format_in_its_own_words(precision: str, value: str) -> None:
    assert accelerate_variables(LAYOUT, precision)["ACCELERATE_MIXED_PRECISION"].value == value


def test_variables_that_are_asked_for_are_set_and_secrets_are_not_shown() -> None:
    found = asked_variables(["A=1 2", "HF_TOKEN", "EMPTY="], {"HF_TOKEN": "hf_0123456789abcdefgh"}, {})
    assert {name: one.value for name, one in found.items()} == {
        "A": "1 2",
        "HF_TOKEN": "hf_0123456789abcdefgh",
        "EMPTY": "",
    }
    assert [one.shown(name) for name, one in found.items()] == ["'1 2'", "(hidden)", "''"]


@pytest.mark.parametrize(
    ("name", "typed"), [("HF_TOKEN", "export HF_TOKEN="), ("DEPTH", "--env DEPTH=VALUE")]
)
def test_a_variable_that_is_not_set_comes_with_what_to_type_and_no_secret_in_it(
    name: str, typed: str
) -> None:
    with pytest.raises(WrongUsage) as caught:
        asked_variables([name], {}, {})
    assert typed in (caught.value.hint or "")


@pytest.mark.parametrize("word", ["NOT_SET", "=x", "a-b=1", ""])
def test_what_names_no_variable_is_wrong_usage(word: str) -> None:
    with pytest.raises(WrongUsage, match="--env"):
        asked_variables([word], {}, {})
