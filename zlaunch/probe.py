"""What this machine has. Asks the driver and the file system; imports neither torch nor deepspeed."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.machine import Gpu, Machine


def probe_machine(environ: Mapping[str, str]) -> Machine:
    """Look at this machine; raise Unavailable if it has GPUs that this Python cannot use."""
    gpus = [] if environ.get("DS_ACCELERATOR") == "cpu" else _gpus()
    visible = _visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if visible and torch_cuda() is None:
        raise Unavailable(
            f"this machine has {len(gpus)} GPUs, but torch {_version('torch')} was built without CUDA",
            "install a CUDA build of torch, or set DS_ACCELERATOR=cpu to train on the CPU",
        )
    return Machine(
        hostname=socket.gethostname(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(visible),
        hidden_gpus=tuple(gpu.index for gpu in gpus if gpu not in visible),
    )


def torch_cuda() -> str | None:
    """Read which CUDA the installed torch was built for, without importing it."""
    source = (_folder_of("torch") / "version.py").read_text("utf-8")
    match = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", source, re.MULTILINE)
    return match.group(1) if match else None


def model_types() -> frozenset[str]:
    """Read which kinds of models the installed transformers knows, without importing it."""
    auto = _folder_of("transformers") / "models" / "auto"
    text = "".join((auto / name).read_text("utf-8") for name in ("auto_mappings.py", "configuration_auto.py"))
    return frozenset(re.findall(r'"([\w.-]+)"[,:]\s*"\w+Config"', text))


def trainer_optimizers() -> tuple[str, ...]:
    """Read which optimizers the Trainer of the installed transformers knows by name."""
    text = (_folder_of("transformers") / "training_args.py").read_text("utf-8")
    _, _, after = text.partition("class OptimizerNames(")
    return tuple(re.findall(r'^    [A-Z_0-9]+ = "(\w+)"', after.partition("\nclass ")[0], re.MULTILINE))


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"{package} is not installed", "install zlaunch into this environment anew")
    return Path(spec.submodule_search_locations[0])


def package_versions(names: Sequence[str]) -> dict[str, str | None]:
    """Look up the versions of installed packages; None for one that is not there."""
    return {name: _version(name) for name in names} | {"python": platform.python_version()}


def install_place(package: str) -> tuple[str, float]:
    """Say where a package is installed, and since when, in seconds since the epoch."""
    try:
        installed = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(
            f"{package} is not installed", "install zlaunch into this environment anew"
        ) from None
    record = next((file for file in installed.files or [] if file.name == "RECORD"), None)
    since = 0.0 if record is None else Path(str(record.locate())).stat().st_mtime
    return str(installed.locate_file(package)), since


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _gpus() -> list[Gpu]:
    """Ask NVML for all GPUs; none if there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if Path("/dev/nvidiactl").exists():
            raise Unavailable(
                f"there is an NVIDIA device, but its driver does not answer: {error}",
                "see whether `nvidia-smi` works, or set DS_ACCELERATOR=cpu to train on the CPU",
            ) from None
        return []
    try:
        return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def _visible(gpus: Sequence[Gpu], selection: str | None) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, up to the first that does not exist."""
    if selection is None:
        return list(gpus)
    visible: list[Gpu] = []
    for term in selection.split(","):
        name = term.strip()
        found = [
            gpu
            for gpu in gpus
            if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        ]
        if not found and name.startswith(("GPU-", "MIG-")):
            raise Unavailable(
                f"CUDA_VISIBLE_DEVICES names `{name}`, which is no GPU here", "name GPUs by number"
            )
        if not found:
            break
        visible += found
    return visible
