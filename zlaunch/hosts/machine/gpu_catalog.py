"""The GPUs that zlaunch knows by name: memory as torch sees it, and peak speeds.

Memory is `torch.cuda.get_device_properties().total_memory`, which is less than the nominal size: the lowest
figure in public out-of-memory messages ("has a total capacity of …"); drivers differ by up to 0.3 GiB.
Speeds are the peaks of NVIDIA's data sheets: dense, with fp32 accumulation. NVML's names are as
`nvidia-smi -L` prints them.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Final

from zlaunch.errors import WrongUsage

_GIB: Final = 1 << 30

CONTEXT_BYTES: Final = (int(0.47 * _GIB), int(0.92 * _GIB))
"""Memory of CUDA itself on a GPU, least and most. Not measured here, but published: S. Bekman,
"Machine Learning Engineering", training/performance, "Preloaded CUDA kernels memory usage"."""
NCCL_BYTES: Final = (int(0.73 * _GIB), int(1.5 * _GIB))
"""What torch.distributed and NCCL add with several ranks, permanently and at first; same source."""

_ANY: Final = "any GPU since Ampere"
"""A GPU of which only the memory is known is assumed to have bf16, which came with Ampere."""

_FULL_NAME = re.compile(
    r"(?:(?P<count>\d{1,6})\s*[x\N{MULTIPLICATION SIGN}*]\s*)?(?P<name>\S.*)", re.IGNORECASE
)

_OF_OTHERS = re.compile(r"a(3[158]0|5[358]0|7[357]0)m?|b(50|60|5[78]0)|v(340|520|620|710)")
"""GPUs of Intel (Arc) and AMD (Radeon PRO) whose names look like an NVIDIA series."""

_MEMORY = re.compile(r"(?P<size>\d{1,6}(?:\.\d{1,3})?)\s*(?P<unit>GiB|GB)", re.IGNORECASE)
_UNITS: Final = {"gib": _GIB, "gb": 10**9}


def overhead_bytes(world_size: int) -> tuple[int, int]:
    """What a rank holds on its GPU besides tensors, at least and at most."""
    least, most = CONTEXT_BYTES
    if world_size > 1:
        least, most = least + NCCL_BYTES[0], most + NCCL_BYTES[1]
    return least, most


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model; memory in bytes, speeds in bytes or floating-point operations per second."""

    name: str
    total_bytes: int
    """Its memory as torch sees it."""
    half_flops: float
    """Matrix products of bf16, or of fp16 where there is no bf16."""
    fp32_flops: float
    tf32_flops: float
    """Matrix products of fp32 with `torch.backends.cuda.matmul.allow_tf32`; 0 where there is none."""
    has_bf16: bool
    memory_bandwidth: float
    """Bytes per second between the chip and its memory."""
    nvlink_bandwidth: float
    """Bytes per second to other GPUs of the host, in each direction; 0 if they are connected by PCIe."""
    host_bandwidth: float
    """Bytes per second to the host's memory, in each direction."""
    nvml_names: tuple[str, ...]

    def usable_bytes(self, world_size: int = 1) -> tuple[int, int]:
        """Memory for tensors, at least and at most: all but that of CUDA and NCCL."""
        least, most = overhead_bytes(world_size)
        return self.total_bytes - most, self.total_bytes - least


_HOST_LINKS: Final = {"PCIe3": 15.75, "PCIe4": 31.5, "PCIe5": 63.0, "C2C": 450.0}
"""GB/s in each direction, of 16 lanes or between Grace and Hopper."""

# Name | GiB that torch sees | TFLOP/s half, fp32, tf32 | GB/s memory, NVLink; link to the host | NVML's names
_TABLE: Final = """
V100-16GB      |  15.77 | 125 15.7 0 | 900 150 PCIe3 | Tesla V100-SXM2-16GB, Tesla V100-PCIE-16GB
V100-32GB      |  31.73 | 125 15.7 0 | 900 150 PCIe3 | Tesla V100-SXM2-32GB, Tesla V100-SXM3-32GB, Tesla V100-PCIE-32GB
T4             |  14.56 | 65 8.1 0 | 320 0 PCIe3 | Tesla T4, NVIDIA T4
A10            |  22.06 | 125 31.2 62.5 | 600 0 PCIe4 | NVIDIA A10
A10G           |  22.06 | 70 35 35 | 600 0 PCIe4 | NVIDIA A10G
A30            |   23.5 | 165 10.3 82 | 933 100 PCIe4 | NVIDIA A30
A40            |  44.34 | 149.7 37.4 74.8 | 696 56.25 PCIe4 | NVIDIA A40
A6000          |  47.53 | 154.8 38.7 77.4 | 768 56.25 PCIe4 | NVIDIA RTX A6000
RTX-3090       |  23.56 | 71 35.6 35.6 | 936 56.25 PCIe4 | NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 3090 Ti
RTX-4090       |  23.52 | 165.2 82.6 82.6 | 1008 0 PCIe4 | NVIDIA GeForce RTX 4090
RTX-5090       |  31.36 | 209.5 104.8 104.8 | 1792 0 PCIe5 | NVIDIA GeForce RTX 5090
RTX-6000-Ada   |   47.4 | 364.2 91.1 182.1 | 960 0 PCIe4 | NVIDIA RTX 6000 Ada Generation
RTX-PRO-6000   |  94.97 | 503.8 125 251.9 | 1792 0 PCIe5 | NVIDIA RTX PRO 6000 Blackwell Server Edition, NVIDIA RTX PRO 6000 Blackwell Workstation Edition
L4             |  22.03 | 121 30.3 60 | 300 0 PCIe4 | NVIDIA L4
L40S           |  44.39 | 362 91.6 183 | 864 0 PCIe4 | NVIDIA L40S
A100-40GB      |  39.39 | 312 19.5 156 | 1555 300 PCIe4 | NVIDIA A100-SXM4-40GB
A100-80GB      |  79.15 | 312 19.5 156 | 2039 300 PCIe4 | NVIDIA A100-SXM4-80GB
A100-40GB-PCIe |  39.39 | 312 19.5 156 | 1555 0 PCIe4 | NVIDIA A100-PCIE-40GB
A100-80GB-PCIe |  79.14 | 312 19.5 156 | 1935 0 PCIe4 | NVIDIA A100 80GB PCIe
H100-80GB      |  79.11 | 989 66.9 494.5 | 3350 450 PCIe5 | NVIDIA H100 80GB HBM3
H100-80GB-PCIe |  79.11 | 756 51 378 | 2000 0 PCIe5 | NVIDIA H100 PCIe
H100-NVL       |  93.02 | 835 60 417 | 3938 0 PCIe5 | NVIDIA H100 NVL
H20            |   95.0 | 148 44 74 | 4000 450 PCIe5 | NVIDIA H20
H200           | 139.72 | 989 66.9 494.5 | 4800 450 PCIe5 | NVIDIA H200
GH200          |   94.5 | 989 66.9 494.5 | 4000 450 C2C | NVIDIA GH200 480GB
B200           | 178.35 | 2250 75 1125 | 8000 900 PCIe5 | NVIDIA B200
"""  # noqa: E501

_ALIASES: Final = {
    "v100": "V100-16GB",
    "a100": "A100-40GB",
    "a100-pcie": "A100-40GB-PCIe",
    "h100": "H100-80GB",
    "h100-sxm": "H100-80GB",
    "h100-pcie": "H100-80GB-PCIe",
    "h200-141gb": "H200",
    "rtx-a6000": "A6000",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "5090": "RTX-5090",
}
"""A name without a size means the smallest GPU of that name."""


def _gpu(row: str) -> GpuModel:
    name, gib, flops, bandwidths, nvml = (cell.strip() for cell in row.split("|"))
    half, fp32, tf32 = (1e12 * float(speed) for speed in flops.split())
    memory, nvlink, host = bandwidths.split()
    return GpuModel(
        name=name,
        total_bytes=int(float(gib) * _GIB),
        half_flops=half,
        fp32_flops=fp32,
        tf32_flops=tf32,
        has_bf16=tf32 > 0,  # both came with Ampere
        memory_bandwidth=1e9 * float(memory),
        nvlink_bandwidth=1e9 * float(nvlink),
        host_bandwidth=1e9 * _HOST_LINKS[host],
        nvml_names=tuple(nvml.split(", ")),
    )


GPUS: Final[dict[str, GpuModel]] = {gpu.name: gpu for gpu in map(_gpu, _TABLE.strip().splitlines())}


def parse_gpus(text: str) -> tuple[int | None, GpuModel]:
    """Read `8xH100-80GB`, `4xA100`, `H100` or `4x48GiB`: the count (None without one), and the model.

    Case does not matter. Raises WrongUsage for an unknown name, with the one that may be meant.
    """
    match = _FULL_NAME.fullmatch(text.strip())
    name = match["name"] if match else text
    gpu = _named(name) or _of_memory(name)
    if gpu is None or not match:
        counted = text.strip()[: -len(name)] if match else ""
        raise WrongUsage(f"unknown GPU `{text}`", _hint(name, counted))
    count = int(match["count"]) if match["count"] else None
    if count == 0:
        raise WrongUsage(f"`{text}` is not a GPU", f"use at least one: `1x{name}`")
    return count, gpu


def parse_hosts_of_gpus(text: str) -> tuple[int, int, GpuModel]:
    """Read `2x8xH100-80GB` or `8xH100-80GB`: hosts, GPUs of each, and their model."""
    found = re.fullmatch(r"\s*([1-9][0-9]{0,4})x([0-9]{1,4}x.+)", text)
    count, gpu = parse_gpus(text if found is None else found[2])
    return 1 if found is None else int(found[1]), count or 1, gpu


def gpu_from_nvml(name: str) -> GpuModel | None:
    """The GPU with this NVML name, like `NVIDIA H100 80GB HBM3`; None if it is not in the table."""
    wanted = _plain(name)
    return next((gpu for gpu in GPUS.values() if wanted in map(_plain, gpu.nvml_names)), None)


def _plain(name: str) -> str:
    """Normalize a name: lower case, hyphens, without the vendor."""
    words = re.split(r"[\s_-]+", name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "tesla", "geforce", ""))


def _named(name: str) -> GpuModel | None:
    plain = _plain(name)
    plain = _plain(_ALIASES.get(plain, plain))
    return next((gpu for known, gpu in GPUS.items() if _plain(known) == plain), None)


def _of_memory(text: str) -> GpuModel | None:
    """Read `48GiB` or `48GB` as a GPU with that memory, bf16 and unknown speed."""
    match = _MEMORY.fullmatch(text.strip())
    total_bytes = int(float(match["size"]) * _UNITS[match["unit"].lower()]) if match else 0
    if not total_bytes:
        return None
    return GpuModel(_ANY, total_bytes, 0, 0, 0, True, 0, 0, 0, ())


def _hint(name: str, counted: str) -> str:
    """Suggest a similar name of the same series, with the count that was written.

    A series is the letters at the beginning of a name; hardly any two vendors share one, so no GPU of
    another vendor is suggested.
    """
    spelled = {_plain(known): known for known in GPUS} | {alias: alias.upper() for alias in _ALIASES}
    alike = [known for known in spelled if _series(known) == _series(_plain(name))]
    close = difflib.get_close_matches(_plain(name), alike, n=1, cutoff=0.6)
    if close and not _OF_OTHERS.fullmatch(_plain(name)):
        return f"did you mean `{counted}{spelled[close[0]]}`?"
    return f"give its memory: `{counted or '8x'}48GiB`; known GPUs are {', '.join(GPUS)}"


def _series(plain: str) -> str:
    """Take the letters that a name begins with: `h` of `h100`, `rtx` of `rtx-4090`, `mi` of `mi300x`."""
    return re.match(r"[^\W\d_]*", plain)[0]  # type: ignore[index]
