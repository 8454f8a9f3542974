"""Kubernetes: a JobSet, or a TrainJob or PyTorchJob of Kubeflow, with one zlaunch in each pod."""

import json
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from zlaunch.errors import WrongUsage
from zlaunch.launch.schedulers.program import ask
from zlaunch.launch.schedulers.request import SAVED, JobStatus, SubmitRequest

OWN_OPTIONS: tuple[str, ...] = ("image", "namespace", "kind", "volume", "workdir")
SHARES_FILES = False
HAS_TIME_LIMIT = False

PORT = 29500
GRACE_SECONDS = 300
"""How long a pod may take to end after SIGTERM, unless its job needs longer."""

END_SECONDS = 15
"""How much of that is left for the end of ranks that have not saved in time."""

RETRYABLE = 128
"""A PyTorchJob starts a pod again for an exit status from here on."""

_JOBSET = "jobset.sigs.k8s.io"
_ENDED: Mapping[str, bool] = {"Completed": True, "Complete": True, "Succeeded": True, "Failed": False}
"""Conditions of a job that is over → whether it has succeeded."""


@dataclass(frozen=True)
class _Kind:
    """A kind of manifest: how `kubectl` names it, and the label of its pods."""

    resource: str
    label: str


_KINDS: Mapping[str, _Kind] = {
    "jobset": _Kind("jobset.jobset.x-k8s.io", f"{_JOBSET}/jobset-name"),
    "trainjob": _Kind("trainjob.trainer.kubeflow.org", f"{_JOBSET}/jobset-name"),
    "pytorchjob": _Kind("pytorchjob.kubeflow.org", "training.kubeflow.org/job-name"),
}


_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def check(request: SubmitRequest) -> list[str]:
    """Raise WrongUsage without an image, and for what an API server certainly rejects."""
    if request.image is None:
        raise WrongUsage(
            "`--submit kubernetes` needs an image that has zlaunch and the script", "write `--image IMAGE`"
        )
    if re.fullmatch(r"\S+", request.image) is None:
        raise WrongUsage(f"`--image {request.image}` names no image", "write `--image registry/train:1`")
    if request.namespace is not None and _LABEL.fullmatch(request.namespace) is None:
        raise WrongUsage(
            f"`--namespace {request.namespace}` is not a valid name of a namespace",
            "use lower-case letters, digits and `-`, at most 63 of them",
        )
    taken = ["/dev/shm"]  # noqa: S108 - see _mounts
    for claim, path in request.volumes:
        if _CLAIM.fullmatch(claim) is None:
            raise WrongUsage(
                f"`{claim}` is not a valid name of a claim", "use lower-case letters, digits, `-` and `.`"
            )
        if ":" in path or (path.rstrip("/") or "/") in (*taken, "/"):
            why = "holds a `:`" if ":" in path else "is already mounted" if path.strip("/") else "is the root"
            raise WrongUsage(f"`--volume {claim}:{path}`: the path {why}", f"write `--volume {claim}:/data`")
        taken.append(path.rstrip("/"))
    notes = request.without_gpus()
    if request.env:
        names = ", ".join(request.env)
        notes.append(f"the pods need {names}, to be set in the manifest, for example from a Secret")
    return notes


def render(request: SubmitRequest) -> str:
    """Write the manifest of a job."""
    write = {"jobset": _jobset, "trainjob": _trainjob, "pytorchjob": _pytorchjob}[request.kind or "jobset"]
    text: str = yaml.dump(write(request), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as they are, and the items of lists below their key."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _metadata(request: SubmitRequest) -> dict[str, Any]:
    """Name the job; the name is a part of the names of its pods, which are short."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.name.lower()).strip("-")[:30] or "zlaunch"
    start = plain if plain[0].isalpha() else f"job-{plain}"
    name = {"name": f"{start}-{time.strftime('%m%d-%H%M%S')}"}
    return name if request.namespace is None else {**name, "namespace": request.namespace}


def _jobset(request: SubmitRequest) -> dict[str, Any]:
    container = {
        "name": "train",
        **_workplace(request),
        "command": ["sh", "-c", _script(request, counts=True)],
        "env": [
            _variable("NNODES", str(request.nodes)),
            _from_field("NODE_RANK", "annotations", "batch.kubernetes.io/job-completion-index"),
            _from_field("MASTER_ADDR", "annotations", f"{_JOBSET}/coordinator"),
            _variable("MASTER_PORT", str(PORT)),
            _from_field("RESTART", "labels", f"{_JOBSET}/restart-attempt"),
        ],
        **_resources(request),
        "volumeMounts": _mounts(request),
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_seconds(request),
        "containers": [container],
        "volumes": _volumes(request),
    }
    job = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": _restarting_failures("train")},
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(request),
        "spec": {
            "coordinator": {"replicatedJob": "node", "jobIndex": 0, "podIndex": 0},
            "failurePolicy": {
                "maxRestarts": request.restarts,
                "rules": [
                    {
                        "name": "saved",
                        "action": "RestartJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    },
                    {"name": "failed", "action": "FailJobSet"},
                ],
            },
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _restarting_failures(container: str) -> list[dict[str, Any]]:
    """List the failures after which a job restarts: it has saved, or lost its node."""
    saved = {"containerName": container, "operator": "In", "values": [SAVED]}
    lost = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "FailJob", "onExitCodes": saved},
        {"action": "FailJob", "onPodConditions": lost},
    ]


def _trainjob(request: SubmitRequest) -> dict[str, Any]:
    """Write a TrainJob; the runtime `torch-distributed` numbers the pods, and says when to restart."""
    pod = {
        "terminationGracePeriodSeconds": _grace_seconds(request),
        "containers": [{"name": "node", "volumeMounts": _mounts(request)}],
        "volumes": _volumes(request),
    }
    resources = _resources(request).get("resources")
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request),
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": request.image,
                "command": ["sh", "-c", _script(request, counts=True)],
                "env": [_from_field("RESTART", "labels", f"{_JOBSET}/restart-attempt")],
                "numNodes": request.nodes,
                **({} if request.gpus is None else {"numProcPerNode": request.gpus}),
                **({} if resources is None else {"resourcesPerNode": resources}),
            },
            "runtimePatches": [
                {
                    "manager": "zlaunch.submit/train",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
                                ]
                            }
                        }
                    },
                }
            ],
        },
    }


def _pytorchjob(request: SubmitRequest) -> dict[str, Any]:
    """Write a PyTorchJob. Its pods cannot see a restart, so it restarts only with `--resume latest`."""
    restarts = request.requeue and request.resumes
    container = {
        "name": "pytorch",
        **_workplace(request),
        "command": ["sh", "-c", _script(request, counts=False)],
        **_resources(request),
        "volumeMounts": _mounts(request),
    }
    pod = {
        "terminationGracePeriodSeconds": _grace_seconds(request),
        "containers": [container],
        "volumes": _volumes(request),
    }
    counts = {"Master": 1, "Worker": request.nodes - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(request),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": request.restarts if restarts else 0},
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count,
                    "restartPolicy": "ExitCode" if restarts else "Never",
                    "template": {"spec": pod},
                }
                for role, count in counts.items()
                if count
            },
        },
    }


def _script(request: SubmitRequest, *, counts: bool) -> str:
    """Write the shell script of each pod; `counts`: whether RESTART is the number of restarts."""
    enters = [] if request.workdir is None else [f"cd {shlex.quote(request.workdir)}"]
    words = shlex.join(["zlaunch", "train", *request.words, *_save_within(request)])
    behind = f" -- {shlex.join(request.script_args)}" if request.script_args else ""
    lines = _counted(request, words, behind) if counts else _uncounted(request, words, behind)
    return _unexpanded("\n".join([*enters, *lines, ""]))


def _save_within(request: SubmitRequest) -> list[str]:
    """Let the ranks take the time that a pod has; zlaunch alone would assume 30 seconds."""
    return [] if request.save_within is not None else ["--save-within", str(GRACE_SECONDS - END_SECONDS)]


def _grace_seconds(request: SubmitRequest) -> int:
    return max(GRACE_SECONDS, math.ceil(request.save_within or 0) + END_SECONDS)


def _counted(request: SubmitRequest, words: str, behind: str) -> list[str]:
    """Give a restart a run directory of its own, and let it resume."""
    first, again = [], ["--resume latest"] if request.is_resumable else []
    if request.run_dir is not None:
        first = [f"set -- --run-dir {shlex.quote(str(request.run_dir))}"]
        again.append(f'--run-dir {shlex.quote(f"{request.run_dir}-attempt-")}"$((RESTART + 1))"')
    lines = list(first)
    if again:
        lines += ['if [ "${RESTART:-0}" -gt 0 ]; then', f"    set -- {' '.join(again)}", "fi"]
    given = ' "$@"' if lines else ""
    return [*lines, f"exec {words}{given}{behind}"]


def _uncounted(request: SubmitRequest, words: str, behind: str) -> list[str]:
    """Turn the exit status of a job that goes on into one for which a PyTorchJob starts its pods again."""
    run_dir = "" if request.run_dir is None else f" --run-dir {shlex.quote(str(request.run_dir))}"
    if not (request.requeue and request.resumes):
        return [f"exec {words}{run_dir}{behind}"]
    return [
        f"{words}{run_dir}{behind} &",
        'trap "kill -TERM $!" TERM  # a shell passes no signal on',
        "wait $!; status=$?",
        "trap - TERM",
        '[ "$status" -le 128 ] || { wait $!; status=$?; }',
        f'[ "$status" -ne {SAVED} ] || status={RETRYABLE + SAVED}',
        'exit "$status"',
    ]


def _unexpanded(text: str) -> str:
    """Escape `$(NAME)`, which Kubernetes would expand; `$$` is a dollar sign."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _workplace(request: SubmitRequest) -> dict[str, Any]:
    return {"image": request.image}


def _resources(request: SubmitRequest) -> dict[str, Any]:
    return {} if not request.gpus else {"resources": {"limits": {"nvidia.com/gpu": request.gpus}}}


def _variable(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _from_field(name: str, kind: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{kind}['{key}']"}}}


def _mounts(request: SubmitRequest) -> list[dict[str, Any]]:
    claims = [
        {"name": f"volume-{number}", "mountPath": path} for number, (_, path) in enumerate(request.volumes)
    ]
    return [{"name": "shm", "mountPath": "/dev/shm"}, *claims]  # noqa: S108 - what NCCL and data loaders use


def _volumes(request: SubmitRequest) -> list[dict[str, Any]]:
    """List the volumes; the /dev/shm that a container has otherwise is 64 MiB small."""
    claims = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, (claim, _) in enumerate(request.volumes)
    ]
    return [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *claims]


def submit(text: str, request: SubmitRequest) -> str:
    """Create a job, and return its name."""
    said = ask([*_kubectl(request), "create", "-o", "name", "-f", "-"], text)
    return said.rpartition("/")[2]


def _kubectl(request: SubmitRequest) -> list[str]:
    return ["kubectl", *([] if request.namespace is None else ["--namespace", request.namespace])]


def _kind(request: SubmitRequest) -> _Kind:
    return _KINDS[request.kind or "jobset"]


def cancel_command(job: str, request: SubmitRequest) -> str:
    """Return the command that ends a job."""
    return shlex.join([*_kubectl(request), "delete", _kind(request).resource, job])


def look(job: str, request: SubmitRequest) -> JobStatus:
    """Ask for the state of a job and its pods."""
    kind = _kind(request)
    found = json.loads(ask([*_kubectl(request), "get", kind.resource, job, "-o", "json"]))
    pods = json.loads(
        ask([*_kubectl(request), "get", "pods", "--selector", f"{kind.label}={job}", "-o", "json"])
    )["items"]
    status = found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", []) if one.get("status") == "True"}
    restarts = int(status.get("restarts", 0))
    first = next((pod for pod in pods if _is_first(pod)), None)
    output = None
    if first is not None and _phase(first) in ("Running", "Succeeded", "Failed"):
        output = (*_kubectl(request), "logs", "--follow", first["metadata"]["name"])
    for name, is_success in _ENDED.items():
        if name in conditions:
            exit_status = 0 if is_success else _exit_status(pods)
            reason = None if is_success else conditions[name].get("message")
            return JobStatus(
                name.lower(), reason, is_over=True, exit_status=exit_status, restarts=restarts, output=output
            )
    if any(_phase(pod) == "Running" for pod in pods):
        nodes = ",".join(sorted({str(pod["spec"].get("nodeName")) for pod in pods}))
        return JobStatus("running", None, nodes, restarts=restarts, output=output)
    if "Suspended" in conditions:
        return JobStatus("suspended", conditions["Suspended"].get("message"), restarts=restarts)
    return JobStatus("pending", _why_pending(pods), restarts=restarts)


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase"))


def _is_first(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is node 0, whose output is that of the job."""
    marks = {**pod["metadata"].get("annotations", {}), **pod["metadata"].get("labels", {})}
    if "training.kubeflow.org/replica-type" in marks:
        return str(marks["training.kubeflow.org/replica-type"]).lower() == "master"
    return marks.get("batch.kubernetes.io/job-completion-index") == "0"


def _exit_status(pods: Sequence[Mapping[str, Any]]) -> int:
    codes = [
        one.get("state", {}).get("terminated", {}).get("exitCode", 0)
        for pod in pods
        for one in pod.get("status", {}).get("containerStatuses", [])
    ]
    return next((int(code) for code in codes if code), 1)


def _why_pending(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason why the first pod waits, such as an image or a node."""
    for pod in pods:
        status = pod.get("status", {})
        for one in status.get("containerStatuses", []):
            waiting = one.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for one in status.get("conditions", []):
            if one.get("type") == "PodScheduled" and one.get("status") == "False":
                return f"{one.get('reason')}: {one.get('message', '')}".rstrip(": ")
    return None
