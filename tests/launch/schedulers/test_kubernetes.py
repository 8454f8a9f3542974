"""Manifests against the published schemas, and jobs that are followed with a `kubectl` of our own."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.launch.schedulers.programs import calls, program
from tests.running import zlaunch
from zlaunch.errors import WrongUsage
from zlaunch.launch.schedulers import kubernetes
from zlaunch.launch.schedulers.kubernetes import KubernetesRequest, Volume

SCHEMAS = Path(__file__).with_name("schemas")
KINDS = ("jobset", "trainjob")
ODD_ARGS = ("a b", "it's", '"$HOME"', "$(NNODES)", "$$", "é", "line\nbreak")


def request(**known: Any) -> KubernetesRequest:
    given = {
        "words": ("train.py", "--stage", "3"),
        "script_args": ODD_ARGS,
        "name": "My Training_1",
        "directory": Path("/here"),
        "nodes": 2,
        "gpus": 8,
        "image": "registry/image:1",
        "namespace": "team",
        "volume": [Volume("data", "/data")],
        "workdir": "/data/it's here",
        "is_resumable": True,
    }
    return KubernetesRequest(**{**given, **known})


def manifest(asked: KubernetesRequest) -> Any:
    return yaml.safe_load(kubernetes.render(asked))


def closed(schema: Any) -> Any:
    """Refuse unknown members, as `kubectl create` does."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    members = {
        key: {name: closed(one) for name, one in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
    }
    is_open = "properties" not in schema or "additionalProperties" in schema
    return members if is_open else {**members, "additionalProperties": False}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "known",
    [
        {},
        {"nodes": 1, "gpus": None, "namespace": None, "volume": None, "workdir": None, "requeue": False},
        {"run_dir": Path("runs/it's"), "words": ("train.py", "--resume", "latest")},
    ],
)
def test_a_manifest_is_valid_by_the_published_schema(kind: str, known: dict[str, Any]) -> None:
    schema = closed(json.loads((SCHEMAS / f"{kind}.json").read_text()))
    schema["properties"]["metadata"]["additionalProperties"] = True
    jsonschema.validate(manifest(request(kind=kind, **known)), schema)


def container_of(kind: str, found: Any) -> Any:
    spec = found["spec"]
    if kind == "trainjob":
        return spec["trainer"]
    pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]
    return pod["spec"]["containers"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restart", ["0", "1"])
@pytest.mark.parametrize("resume", [(), ("--resume", "latest")])
def test_the_shell_of_a_pod_passes_all_arguments_on(
    kind: str, restart: str, resume: tuple[str, ...], tmp_path: Path
) -> None:
    """Kubernetes replaces `$(NAME)` and `$$` before the shell sees them."""
    asked = request(kind=kind, workdir=str(tmp_path), run_dir=Path("runs/it's"), words=("t.py", *resume))
    command = container_of(kind, manifest(asked))["command"]
    (tmp_path / "zlaunch").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nexit 75\n')
    (tmp_path / "zlaunch").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RESTART": restart, "HOME": "/root"}
    shell = [expanded(word, {"NNODES": "2", **env}) for word in command]
    done = subprocess.run(shell, env=env, capture_output=True, text=True, check=False)
    words = done.stdout.split("\0")[:-1]
    cut = words.index("--")
    assert tuple(words[cut + 1 :]) == ODD_ARGS
    again = restart == "1"
    assert f"runs/it's{'-attempt-2' if again else ''}" in words[:cut]
    assert words[:cut].count("--resume") == bool(resume) + again
    assert done.returncode == 75


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("save_within", "told", "grace"), [(None, 285, 300), (600.5, None, 616)])
def test_a_pod_is_killed_only_after_the_time_that_its_ranks_have_to_save(
    kind: str, save_within: float | None, told: int | None, grace: int
) -> None:
    found = manifest(request(kind=kind, save_within=save_within))
    assert f"'terminationGracePeriodSeconds': {grace}," in str(found)
    assert str(found).count("terminationGracePeriodSeconds") == str(found).count(f"Seconds': {grace},")
    script = container_of(kind, found)["command"][-1]
    assert re.findall(r"--save-within (\S+)", script) == ([] if told is None else [str(told)])


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Do what Kubernetes does with a command: `$(NAME)` is replaced if it is known, `$$` is a dollar sign."""
    done, place = "", 0
    while place < len(text):
        rest = text[place + 1 :]
        if text[place] != "$" or not rest:
            done, place = done + text[place], place + 1
        elif rest[0] == "$":
            done, place = done + "$", place + 2
        elif rest[0] == "(" and rest[1:].partition(")")[0] in env:
            name = rest[1:].partition(")")[0]
            done, place = done + env[name], place + len(name) + 3
        else:
            done, place = done + "$", place + 1
    return done


def test_a_pod_that_has_saved_restarts_its_jobset_and_another_failure_does_not() -> None:
    spec = manifest(request())["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    saved = job["podFailurePolicy"]["rules"][0]
    assert (saved["action"], saved["onExitCodes"]["values"]) == ("FailJob", [75])
    rules = [(one["action"], one.get("onJobFailureReasons")) for one in spec["failurePolicy"]["rules"]]
    assert rules == [("RestartJobSet", ["PodFailurePolicy"]), ("FailJobSet", None)]


def test_without_an_image_there_is_no_manifest() -> None:
    with pytest.raises(WrongUsage, match="needs an image"):
        kubernetes.check(request(image=None))


def pod(phase: str, **status: Any) -> dict[str, Any]:
    mark = {"batch.kubernetes.io/job-completion-index": "0"}
    known = {"phase": phase, **status}
    return {
        "items": [
            {"metadata": {"name": "p-0", "annotations": mark}, "spec": {"nodeName": "n1"}, "status": known}
        ]
    }


def condition(name: str, message: str = "") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": name, "status": "True", "message": message}]}}


WAITS = pod(
    "Pending",
    conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    ],
)
DIED = pod("Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 7}}}])
SUBMIT = (
    "train",
    "/in/the/image.py",
    "--submit",
    "kubernetes",
    "--image",
    "i",
    "--nodes",
    "2",
    "--namespace",
    "team",
)


@pytest.mark.parametrize(
    ("last", "state", "status"),
    [
        (pod("Succeeded"), condition("Completed"), 0),
        (DIED, condition("Failed", "a pod failed"), 7),
    ],
)
def test_a_job_is_followed_from_its_pods_to_its_exit_status(
    last: dict[str, Any], state: dict[str, Any], status: int, tmp_path: Path
) -> None:
    env = program(
        tmp_path,
        "kubectl",
        {
            "create": ["jobset.jobset.x-k8s.io/name-1"],
            "logs p-0": ["said by the job"],
            "get pods": [WAITS, pod("Running"), last],
            "get jobset.jobset.x-k8s.io": [{}, {}, state],
        },
    )
    result = zlaunch(*SUBMIT, cwd=tmp_path, env=env)
    assert (result.status, result.out) == (status, "said by the job\n"), result.err
    said = " ".join(result.err.split())
    assert "submitted as name-1" in said
    assert "`kubectl --namespace team delete jobset.jobset.x-k8s.io name-1` cancels it" in said
    assert "pending: Unschedulable: 0/3 nodes" in said
    assert "running on n1" in said
    ((_, created), *_) = calls(tmp_path)
    assert yaml.safe_load(created)["kind"] == "JobSet"


def test_a_kind_that_kubeflow_has_replaced_is_refused_with_the_one_to_use(tmp_path: Path) -> None:
    result = zlaunch(*SUBMIT, "--kind", "pytorchjob", cwd=tmp_path)
    assert (result.status, "write `--kind trainjob`" in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (("kubernetes", "--image", "registry/train:1"), "the pods need ZL_API_KEY"),
        (("slurm",), "ZL_API_KEY is not set here, so the nodes must have it of their own"),
    ],
)
def test_a_variable_of_the_nodes_need_not_be_set_where_the_job_is_submitted(
    scheduler: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    asked = ("--submit", *scheduler, "--gpus", "1", "--env", "ZL_API_KEY", "--dry-run")
    done = zlaunch("train", "train.py", *asked, cwd=tmp_path)
    assert (done.status, said in " ".join(done.err.split())) == (0, True), done.err


def test_without_kubectl_the_error_says_where_to_run_it(tmp_path: Path) -> None:
    result = zlaunch(*SUBMIT, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert (result.status, "`kubectl` is not installed here" in result.err) == (69, True), result.err


@pytest.mark.parametrize(
    "known",
    [
        {"image": ""},
        {"image": "a\nb"},
        {"namespace": "Bad_NS!"},
        {"volume": [Volume("Claim_X", "/a")]},
        {"volume": [Volume("a", "/data"), Volume("b", "/data/")]},
        {"volume": [Volume("a", "/dev/shm")]},
        {"volume": [Volume("a", "/b:ro")]},
        {"volume": [Volume("a", "/")]},
    ],
    ids=str,
)
def test_what_an_api_server_rejects_is_not_submitted(known: dict[str, Any]) -> None:
    with pytest.raises(WrongUsage):
        kubernetes.check(request(**known))


def test_a_byte_that_no_manifest_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    words = ("train", "script.py", "--submit", "kubernetes", "--image", "i", "--", "a\udcffb")
    result = zlaunch(*words, cwd=tmp_path)
    assert (result.status, "`$'a\\xffb'` is not UTF-8 text" in result.err) == (2, True)
