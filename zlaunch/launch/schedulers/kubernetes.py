"""Kubernetes: a JobSet, or a TrainJob of Kubeflow, with one zlaunch in each pod."""

import json
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

import typer

from zlaunch.console import shell_word
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.launch.scheduler import SAVED, JobStatus, Scheduler, SubmitRequest, ask

PORT = 29500
GRACE_SECONDS = 300
"""How long a pod may take to end after SIGTERM, unless its job needs longer."""

END_SECONDS = 15
"""How much of that is left for the end of ranks that have not saved in time."""

_JOBSET = "jobset.sigs.k8s.io"
_ENDED: Mapping[str, bool] = {"Completed": True, "Complete": True, "Succeeded": True, "Failed": False}
"""Conditions of a job that is over → whether it has succeeded."""


_RESOURCES: Mapping[str, str] = {
    "jobset": "jobset.jobset.x-k8s.io",
    "trainjob": "trainjob.trainer.kubeflow.org",
}
"""Kinds of manifests → how `kubectl` names them."""

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_CLAIM = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


class Volume(NamedTuple):
    """A claim of a persistent volume, and where it is mounted."""

    claim: str
    path: str


def parse_volume(text: str) -> Volume:
    """Parse `CLAIM:PATH`; raise WrongUsage for anything else."""
    claim, _, path = text.partition(":")
    if not claim or not path.startswith("/"):
        raise WrongUsage(f"`--volume {text}` is not CLAIM:PATH", "write `--volume datasets:/data`")
    return Volume(claim, path)


def parse_kind(text: str) -> str:
    """Check a kind of manifest; raise WrongUsage for any other."""
    if text == "pytorchjob":
        raise WrongUsage(
            "`--kind pytorchjob`: Kubeflow has replaced the PyTorchJob by the TrainJob",
            "write `--kind trainjob`, or `--kind jobset` without Kubeflow",
        )
    if text not in _RESOURCES:
        raise WrongUsage(f"`--kind {text}` is not a kind of manifest", "write `--kind jobset` or `trainjob`")
    return text


def kinds(incomplete: str) -> list[str]:
    """Complete a kind of manifest."""
    return [kind for kind in _RESOURCES if kind.startswith(incomplete)]


@dataclass(frozen=True)
class KubernetesRequest(SubmitRequest):
    """A job for Kubernetes, with the options that only Kubernetes has."""

    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Image with zlaunch and the script.")] = (
        None
    )
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Namespace.")] = None
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="<jobset|trainjob>",
            parser=parse_kind,
            autocompletion=kinds,
            help="Kind of manifest (default: jobset).",
        ),
    ] = None
    volume: Annotated[
        list[Volume] | None,
        typer.Option(
            metavar="CLAIM:PATH",
            parser=parse_volume,
            help="A persistent volume and where it is mounted; may be repeated.",
        ),
    ] = None
    workdir: Annotated[str | None, typer.Option(metavar="DIR", help="Working directory in the image.")] = None

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """All volumes."""
        return tuple(self.volume or ())

    @property
    def resource(self) -> str:
        """How `kubectl` names the manifest."""
        return _RESOURCES[self.kind or "jobset"]


def check(request: KubernetesRequest) -> list[str]:
    """Raise WrongUsage without an image, and for what an API server certainly rejects."""
    if request.image is None:
        raise WrongUsage(
            "`--submit kubernetes` needs an image that has zlaunch and the script", "write `--image IMAGE`"
        )
    for word in (*request.words, *request.script_words):
        if not _is_text(word):
            raise WrongUsage(
                f"`{shell_word(word)}` is not UTF-8 text, and a manifest has nothing else", "rename it"
            )
    if re.fullmatch(r"\S+", request.image) is None:
        raise WrongUsage(f"`--image {request.image}` names no image", "write `--image registry/train:1`")
    if request.namespace is not None and re.fullmatch(_LABEL, request.namespace) is None:
        raise WrongUsage(
            f"`--namespace {request.namespace}` is not a valid name of a namespace",
            "use lower-case letters, digits and `-`, at most 63 of them",
        )
    taken = ["/dev/shm"]  # noqa: S108 - see _mounts
    for claim, path in request.volumes:
        if re.fullmatch(_CLAIM, claim) is None:
            raise WrongUsage(
                f"`{claim}` is not a valid name of a claim", "use lower-case letters, digits, `-` and `.`"
            )
        if (wrong := _wrong_mount(path, taken)) is not None:
            message = f"`--volume {claim}:{path}`: the path {wrong}"
            raise WrongUsage(message, f"write `--volume {claim}:/data`")
        taken.append(path.rstrip("/"))
    notes = request.without_gpus()
    if request.env:
        names = ", ".join(request.env)
        notes.append(f"the pods need {names}, to be set in the manifest, for example from a Secret")
    return notes


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_mount(path: str, taken: Sequence[str]) -> str | None:
    if ":" in path:
        return "holds a `:`"
    if not path.strip("/"):
        return "is the root"
    if path.rstrip("/") in taken:
        return "is already mounted"
    return None


def render(request: KubernetesRequest) -> str:
    """Write the manifest of a job."""
    from zlaunch.launch.manifest_text import manifest_text  # YAML is needed for a manifest alone

    manifest = _jobset(request)
    if request.kind == "trainjob":
        manifest = _trainjob(request)

    return manifest_text(manifest)


def _metadata(request: KubernetesRequest) -> dict[str, Any]:
    """Name the job; the name is a part of the names of its pods, which are short."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.name.lower()).strip("-")[:30] or "zlaunch"
    if not plain[0].isalpha():
        plain = f"job-{plain}"
    metadata = {"name": f"{plain}-{time.strftime('%m%d-%H%M%S')}"}
    if request.namespace is not None:
        metadata["namespace"] = request.namespace
    return metadata


def _jobset(request: KubernetesRequest) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "train",
        "image": request.image,
        "command": ["sh", "-c", _script(request)],
        "env": [
            _environment_entry("NNODES", str(request.nodes)),
            _from_field("NODE_RANK", "annotations", "batch.kubernetes.io/job-completion-index"),
            _from_field("MASTER_ADDR", "annotations", f"{_JOBSET}/coordinator"),
            _environment_entry("MASTER_PORT", str(PORT)),
            _from_field("RESTART", "labels", f"{_JOBSET}/restart-attempt"),
        ],
    }
    if request.gpus:
        container["resources"] = _limits(request.gpus)
    container["volumeMounts"] = _mounts(request)
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


def _trainjob(request: KubernetesRequest) -> dict[str, Any]:
    """Write a TrainJob; the runtime `torch-distributed` numbers the pods, and says when to restart."""
    pod = {
        "terminationGracePeriodSeconds": _grace_seconds(request),
        "containers": [{"name": "node", "volumeMounts": _mounts(request)}],
        "volumes": _volumes(request),
    }
    trainer: dict[str, Any] = {
        "image": request.image,
        "command": ["sh", "-c", _script(request)],
        "env": [_from_field("RESTART", "labels", f"{_JOBSET}/restart-attempt")],
        "numNodes": request.nodes,
    }
    if request.gpus is not None:
        trainer["numProcPerNode"] = request.gpus
    if request.gpus:
        trainer["resourcesPerNode"] = _limits(request.gpus)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request),
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
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


def _script(request: KubernetesRequest) -> str:
    """Write the shell script of each pod, where RESTART is the number of restarts.

    A restart has a run directory of its own, and resumes.
    """
    lines, first, again = [], [], []
    if request.workdir is not None:
        lines.append(f"cd {shlex.quote(request.workdir)}")
    if request.is_resumable:
        again.append("--resume latest")
    if request.run_dir is not None:
        first.append(f"set -- --run-dir {shlex.quote(str(request.run_dir))}")
        again.append(f'--run-dir {shlex.quote(f"{request.run_dir}-attempt-")}"$((RESTART + 1))"')
    if again:
        first += ['if [ "${RESTART:-0}" -gt 0 ]; then', f"    set -- {' '.join(again)}", "fi"]
    words = ["exec", shlex.join(["zlaunch", "train", *request.words, *_save_within(request)])]
    if first:
        words.append('"$@"')
    if request.script_args:
        words.append(shlex.join(request.script_words))
    return _unexpanded("\n".join([*lines, *first, " ".join(words), ""]))


def _save_within(request: KubernetesRequest) -> list[str]:
    """Let the ranks take the time that a pod has; zlaunch alone would assume 30 seconds."""
    if request.save_within is not None:
        return []
    return ["--save-within", str(GRACE_SECONDS - END_SECONDS)]


def _grace_seconds(request: KubernetesRequest) -> int:
    return max(GRACE_SECONDS, math.ceil(request.save_within or 0) + END_SECONDS)


def _unexpanded(text: str) -> str:
    """Escape `$(NAME)`, which Kubernetes would expand; `$$` is a dollar sign."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _limits(gpus: int) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": gpus}}


def _environment_entry(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _from_field(name: str, kind: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{kind}['{key}']"}}}


def _mounts(request: KubernetesRequest) -> list[dict[str, Any]]:
    claims = [
        {"name": f"volume-{number}", "mountPath": path} for number, (_, path) in enumerate(request.volumes)
    ]
    return [{"name": "shm", "mountPath": "/dev/shm"}, *claims]  # noqa: S108 - what NCCL and data loaders use


def _volumes(request: KubernetesRequest) -> list[dict[str, Any]]:
    """List the volumes; the /dev/shm that a container has otherwise is 64 MiB small."""
    claims = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, (claim, _) in enumerate(request.volumes)
    ]
    return [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *claims]


def submit(text: str, request: KubernetesRequest) -> str:
    """Create a job, and return its name."""
    said = ask([*_kubectl(request), "create", "-o", "name", "-f", "-"], text)
    return said.rpartition("/")[2]


def _kubectl(request: KubernetesRequest) -> list[str]:
    if request.namespace is None:
        return ["kubectl"]
    return ["kubectl", "--namespace", request.namespace]


def cancel_command(job: str, request: KubernetesRequest) -> str:
    """Return the command that ends a job."""
    return shlex.join([*_kubectl(request), "delete", request.resource, job])


def look(job: str, request: KubernetesRequest) -> JobStatus:
    """Ask for the state of a job and its pods."""
    found = json.loads(ask([*_kubectl(request), "get", request.resource, job, "-o", "json"]))
    selector = ("--selector", f"{_JOBSET}/jobset-name={job}")
    pods = json.loads(ask([*_kubectl(request), "get", "pods", *selector, "-o", "json"]))["items"]
    status = found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", []) if one.get("status") == "True"}
    restarts = int(status.get("restarts", 0))
    first = next((pod for pod in pods if _is_first(pod)), None)
    output = None
    if first is not None and _pod_phase(first) in ("Running", "Succeeded", "Failed"):
        output = (*_kubectl(request), "logs", "--follow", first["metadata"]["name"])
    for name, is_success in _ENDED.items():
        if name in conditions:
            exit_status, reason = 0, None
            if not is_success:
                exit_status, reason = _exit_status(pods), conditions[name].get("message")
            return JobStatus(
                name.lower(), reason, is_over=True, exit_status=exit_status, restarts=restarts, output=output
            )
    if any(_pod_phase(pod) == "Running" for pod in pods):
        nodes = ",".join(sorted({str(pod["spec"].get("nodeName")) for pod in pods}))
        return JobStatus("running", None, nodes, restarts=restarts, output=output)
    if "Suspended" in conditions:
        return JobStatus("suspended", conditions["Suspended"].get("message"), restarts=restarts)
    return JobStatus("pending", _why_pending(pods), restarts=restarts)


def _pod_phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase"))


def _is_first(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is node 0, whose output is that of the job."""
    marks = {**pod["metadata"].get("annotations", {}), **pod["metadata"].get("labels", {})}
    return marks.get("batch.kubernetes.io/job-completion-index") == "0"


def _exit_status(pods: Sequence[Mapping[str, Any]]) -> int:
    containers = chain(*(pod.get("status", {}).get("containerStatuses", []) for pod in pods))
    states = [container.get("state", {}) for container in containers]
    codes = [state.get("terminated", {}).get("exitCode", 0) for state in states]
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


SCHEDULER = Scheduler("Kubernetes", KubernetesRequest, check, render, submit, look, cancel_command)
