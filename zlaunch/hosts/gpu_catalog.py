"""Memory and speed of known GPUs.

Memory is `torch.cuda.get_device_properties().total_memory`, which is below the nominal size: the lowest
figure in public out-of-memory messages ("has a total capacity of …"); drivers differ by up to 0.3 GiB.
Speeds are those of NVIDIA's data sheets, dense and with fp32 accumulation, which no job reaches. NVML names
are those of `nvidia-smi -L`.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Final

from zlaunch.errors import WrongUsage

_GIB: Final = 1 << 30

CONTEXT_BYTES: Final = (int(0.47 * _GIB), int(0.92 * _GIB))
"""Memory of the CUDA context, minimum and maximum. Published by S. Bekman, "Machine Learning Engineering",
training/performance, "Preloaded CUDA kernels memory usage"."""
NCCL_BYTES: Final = (int(0.73 * _GIB), int(1.5 * _GIB))
"""Memory of torch.distributed and NCCL with more than one rank: lasting, and initially. Same source."""

_ANY: Final = "any GPU since Ampere"
"""Name of a GPU of which only the memory is given; it is assumed to have bf16."""

_FULL_NAME = re.compile(
    r"(?:(?P<count>\d{1,6})\s*[x\N{MULTIPLICATION SIGN}*]\s*)?(?P<name>\S.*)", re.IGNORECASE
)

_OF_OTHERS = re.compile(r"a(3[158]0|5[358]0|7[357]0)m?|b(50|60|5[78]0)|v(340|520|620|710)")
"""Names of Intel (Arc) and AMD (Radeon PRO) GPUs that look like an NVIDIA series."""

_MEMORY = re.compile(r"(?P<size>\d{1,6}(?:\.\d{1,3})?)\s*(?P<unit>GiB|GB)", re.IGNORECASE)
_UNITS: Final = {"gib": _GIB, "gb": 10**9}


def overhead_bytes(world_size: int) -> tuple[int, int]:
    """Return the GPU memory of a rank without tensors, minimum and maximum."""
    low, high = CONTEXT_BYTES
    return (low + NCCL_BYTES[0], high + NCCL_BYTES[1]) if world_size > 1 else (low, high)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model; memory in bytes, speeds in bytes or floating-point operations per second."""

    name: str
    total_bytes: int
    """Total memory, as torch sees it."""
    half_flops: float
    """Matrix products in bf16, or in fp16 without bf16 support."""
    fp32_flops: float
    tf32_flops: float
    """Matrix products in fp32 with `torch.backends.cuda.matmul.allow_tf32`; 0 without TF32 support."""
    has_bf16: bool
    memory_bandwidth: float
    """Bytes per second of the GPU memory."""
    nvlink_bandwidth: float
    """Bytes per second to other GPUs of the host, in each direction; 0 if they use PCIe."""
    host_bandwidth: float
    """Bytes per second to the host's memory, in each direction."""
    nvml_names: tuple[str, ...]

    def usable_bytes(self, world_size: int = 1) -> tuple[int, int]:
        """Return the memory for tensors, minimum and maximum: the total without CUDA and NCCL."""
        low, high = overhead_bytes(world_size)
        return self.total_bytes - high, self.total_bytes - low


_PCIE_3, _PCIE_4, _PCIE_5 = 15.75, 31.5, 63.0
"""GB/s with 16 lanes, in each direction."""
_C2C = 450.0
"""GB/s between Grace and Hopper, in each direction."""

# Name: GiB | TFLOP/s half, fp32, tf32 | GB/s memory, NVLink, host | NVML names
_TABLE: Final[dict[str, tuple[float, tuple[float, float, float], tuple[float, float, float], str]]] = {
    "V100-16GB": (15.77, (125, 15.7, 0), (900, 150, _PCIE_3), "Tesla V100-SXM2-16GB|Tesla V100-PCIE-16GB"),
    "V100-32GB": (
        31.73,
        (125, 15.7, 0),
        (900, 150, _PCIE_3),
        "Tesla V100-SXM2-32GB|Tesla V100-SXM3-32GB|Tesla V100-PCIE-32GB",
    ),
    "T4": (14.56, (65, 8.1, 0), (320, 0, _PCIE_3), "Tesla T4|NVIDIA T4"),
    "A10": (22.06, (125, 31.2, 62.5), (600, 0, _PCIE_4), "NVIDIA A10"),
    "A10G": (22.06, (70, 35, 35), (600, 0, _PCIE_4), "NVIDIA A10G"),
    "A30": (23.5, (165, 10.3, 82), (933, 100, _PCIE_4), "NVIDIA A30"),
    "A40": (44.34, (149.7, 37.4, 74.8), (696, 56.25, _PCIE_4), "NVIDIA A40"),
    "A6000": (47.53, (154.8, 38.7, 77.4), (768, 56.25, _PCIE_4), "NVIDIA RTX A6000"),
    "RTX-3090": (
        23.56,
        (71, 35.6, 35.6),
        (936, 56.25, _PCIE_4),
        "NVIDIA GeForce RTX 3090|NVIDIA GeForce RTX 3090 Ti",
    ),
    "RTX-4090": (23.52, (165.2, 82.6, 82.6), (1008, 0, _PCIE_4), "NVIDIA GeForce RTX 4090"),
    "RTX-5090": (31.36, (209.5, 104.8, 104.8), (1792, 0, _PCIE_5), "NVIDIA GeForce RTX 5090"),
    "RTX-6000-Ada": (47.4, (364.2, 91.1, 182.1), (960, 0, _PCIE_4), "NVIDIA RTX 6000 Ada Generation"),
    "RTX-PRO-6000": (
        94.97,
        (503.8, 125, 251.9),
        (1792, 0, _PCIE_5),
        "NVIDIA RTX PRO 6000 Blackwell Server Edition|NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    ),
    "L4": (22.03, (121, 30.3, 60), (300, 0, _PCIE_4), "NVIDIA L4"),
    "L40S": (44.39, (362, 91.6, 183), (864, 0, _PCIE_4), "NVIDIA L40S"),
    "A100-40GB": (39.39, (312, 19.5, 156), (1555, 300, _PCIE_4), "NVIDIA A100-SXM4-40GB"),
    "A100-80GB": (79.15, (312, 19.5, 156), (2039, 300, _PCIE_4), "NVIDIA A100-SXM4-80GB"),
    "A100-40GB-PCIe": (39.39, (312, 19.5, 156), (1555, 0, _PCIE_4), "NVIDIA A100-PCIE-40GB"),
    "A100-80GB-PCIe": (79.14, (312, 19.5, 156), (1935, 0, _PCIE_4), "NVIDIA A100 80GB PCIe"),
    "H100-80GB": (79.11, (989, 66.9, 494.5), (3350, 450, _PCIE_5), "NVIDIA H100 80GB HBM3"),
    "H100-80GB-PCIe": (79.11, (756, 51, 378), (2000, 0, _PCIE_5), "NVIDIA H100 PCIe"),
    "H100-NVL": (93.02, (835, 60, 417), (3938, 0, _PCIE_5), "NVIDIA H100 NVL"),
    "H20": (95.0, (148, 44, 74), (4000, 450, _PCIE_5), "NVIDIA H20"),
    "H200": (139.72, (989, 66.9, 494.5), (4800, 450, _PCIE_5), "NVIDIA H200"),
    "GH200": (94.5, (989, 66.9, 494.5), (4000, 450, _C2C), "NVIDIA GH200 480GB"),
    "B200": (178.35, (2250, 75, 1125), (8000, 900, _PCIE_5), "NVIDIA B200"),
}

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
"""Other names → key of the table; a name without a size means the smallest GPU."""


def _gpu(name: str) -> GpuModel:
    gib, flops, bandwidths, nvml = _TABLE[name]
    half, fp32, tf32 = (1e12 * speed for speed in flops)
    memory, nvlink, host = (1e9 * speed for speed in bandwidths)
    return GpuModel(
        name=name,
        total_bytes=int(gib * _GIB),
        half_flops=half,
        fp32_flops=fp32,
        tf32_flops=tf32,
        has_bf16=tf32 > 0,  # both came with Ampere
        memory_bandwidth=memory,
        nvlink_bandwidth=nvlink,
        host_bandwidth=host,
        nvml_names=tuple(nvml.split("|")),
    )


GPUS: Final[dict[str, GpuModel]] = {name: _gpu(name) for name in _TABLE}


def parse_gpus(text: str) -> tuple[int | None, GpuModel]:
    """Parse `8xH100-80GB`, `4xA100`, `H100` or `4x48GiB`; return the count (None if not given) and the GPU.

    Names are case-insensitive. Raise WrongUsage for unknown ones.
    """
    match = _FULL_NAME.fullmatch(text.strip())
    name = match["name"] if match else text
    gpu = _named(name) or _of_memory(name)
    if gpu is None or not match:
        counted = text.strip()[: -len(name)] if match else ""
        raise WrongUsage(f"unknown GPU `{text}`", _hint(name, counted))
    count = int(match["count"]) if match["count"] else None
    if count == 0:
        raise WrongUsage(f"`{text}` is no GPU at all", f"name at least one: `1x{name}`")
    return count, gpu


def gpu_from_nvml(name: str) -> GpuModel | None:
    """Return the GPU with an NVML name such as `NVIDIA H100 80GB HBM3`; None if it is not in the table."""
    wanted = _normalized(name)
    return next((gpu for gpu in GPUS.values() if wanted in map(_normalized, gpu.nvml_names)), None)


def _normalized(name: str) -> str:
    """Normalize a name: lower case, hyphens, without the vendor."""
    words = re.split(r"[\s_-]+", name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "tesla", "geforce", ""))


def _named(name: str) -> GpuModel | None:
    key = _normalized(name)
    key = _normalized(_ALIASES.get(key, key))
    return next((gpu for known, gpu in GPUS.items() if _normalized(known) == key), None)


def _of_memory(text: str) -> GpuModel | None:
    """Return a GPU for `48GiB` or `48GB`: exactly that memory, bf16, and unknown speed."""
    match = _MEMORY.fullmatch(text.strip())
    total_bytes = int(float(match["size"]) * _UNITS[match["unit"].lower()]) if match else 0
    if not total_bytes:
        return None
    return GpuModel(_ANY, total_bytes, 0, 0, 0, True, 0, 0, 0, ())


def _hint(name: str, counted: str) -> str:
    """Suggest a name of the same series, after the `8x` that was given.

    Other series are not suggested, because they may belong to another vendor.
    """
    spelled = {_normalized(known): known for known in GPUS} | {alias: alias.upper() for alias in _ALIASES}
    same_series = [known for known in spelled if _series(known) == _series(_normalized(name))]
    close = difflib.get_close_matches(_normalized(name), same_series, n=1, cutoff=0.6)
    if close and not _OF_OTHERS.fullmatch(_normalized(name)):
        return f"did you mean `{counted}{spelled[close[0]]}`?"
    return f"give its memory: `{counted or '8x'}48GiB`; known names: {', '.join(GPUS)}"


def _series(name: str) -> str:
    """Return the leading letters: `h` of `h100`, `rtx` of `rtx-4090`, `mi` of `mi300x`."""
    return re.match(r"[^\W\d_]*", name)[0]  # type: ignore[index]
