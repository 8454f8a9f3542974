"""The GPUs that zlaunch knows by name, as `gpus.json` has them: memory as torch sees it, and peak speeds."""

import json
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final

from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("gpus.json")

_GIB: Final = 1 << 30

CONTEXT_BYTES: Final = (int(0.47 * _GIB), int(0.92 * _GIB))
"""Memory of CUDA itself on a GPU, least and most. Published by S. Bekman, "Machine Learning Engineering",
training/performance, "Preloaded CUDA kernels memory usage"; an H100 had 0.82 GiB (docs/gpu.md)."""
NCCL_BYTES: Final = (int(0.73 * _GIB), int(1.95 * _GIB))
"""What torch.distributed and NCCL add. With several ranks 0.73 GiB to 1.5 GiB, permanently and at first (same
source); three jobs of one rank on an H100 had 0.96 GiB, 1.3 GiB and 1.93 GiB."""

MOST_CUBLAS_BYTES: Final = 32 << 20
"""What torch allocates for a handle of cuBLAS on Hopper and later (`parseChosenWorkspaceSize`)."""

_ANY: Final = "any GPU since Ampere"
"""A GPU of which only the memory is known is assumed to have bf16, and cuBLAS to take most."""

MOST_SIMILAR: Final = 5
"""Names of GPUs in the answer to an unknown one."""

_AMPERE: Final = (8, 0)
_HOPPER: Final = (9, 0)

_FULL_NAME = r"(?i)(?:(?P<count>\d{1,6})\s*[x\N{MULTIPLICATION SIGN}*]\s*)?(?P<name>\S.*)"

_OF_OTHERS = (
    r"a(3[158]0|5[358]0|7[357]0)m?|b(50|60|5[78]0)|v(340|520|620|710)"
    r"|(rtx-)?a(400|500|1000|2000|3000|4500|5500)|[pt](4|40|400|600|1000|2000)|gb10|b(10|20|30|100)"
)
"""GPUs that are not in the table, but have similar names: Intel's (Arc), AMD's (Radeon PRO), NVIDIA's with
another memory."""

_AMD_GIB: Final[Mapping[str, int]] = {
    **dict.fromkeys(("mi210", "mi250", "mi250x"), 64),
    "mi300a": 128,
    **dict.fromkeys(("mi300", "mi300x"), 192),
    "mi325x": 256,
    **dict.fromkeys(("mi350x", "mi355x"), 288),
}
"""Memory of a device of AMD's data sheets; the two dies of an MI250 are two devices."""

_MEMORY = r"(?i)(?P<size>\d{1,6}(?:\.\d{1,3})?)\s*(?P<unit>GiB|GB)"
_SIZE = r"(?<![0-9])(\d+)gb"
_UNITS: Final = {"gib": _GIB, "gb": 10**9}


def overhead_bytes(world_size: int) -> tuple[int, int]:
    """What a rank holds on its GPU besides tensors, at least and at most."""
    least, most = CONTEXT_BYTES
    if world_size > 1:
        least += NCCL_BYTES[0]
    return least, most + NCCL_BYTES[1]  # a single rank may create communicators too


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
    memory_bandwidth: float
    """Bytes per second between the chip and its memory."""
    nvlink_bandwidth: float
    """Bytes per second to other GPUs of the host, in each direction; 0 if they are connected by PCIe."""
    host_bandwidth: float
    """Bytes per second to the host's memory, in each direction."""
    nvml_names: tuple[str, ...]
    capability: tuple[int, int]
    """CUDA's compute capability."""

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bf16, which came with Ampere."""
        return self.capability >= _AMPERE

    @property
    def cublas_bytes(self) -> int:
        """What torch allocates for each handle of cuBLAS."""
        if self.capability >= _HOPPER:
            return MOST_CUBLAS_BYTES
        return 2 * (4 << 20) + 8 * (16 << 10)

    def usable_bytes(self, world_size: int = 1) -> tuple[int, int]:
        """Memory for tensors, at least and at most: all but that of CUDA and NCCL."""
        least, most = overhead_bytes(world_size)
        return self.total_bytes - most, self.total_bytes - least


@cache
def known_gpus() -> Mapping[str, GpuModel]:
    """Read the GPUs, by name."""
    table = json.loads(FILE.read_text("utf-8"))
    return {row["name"]: _gpu(row, table["host_links"]) for row in table["gpus"]}


@cache
def _aliases() -> Mapping[str, str]:
    aliases: dict[str, str] = {}
    for row in json.loads(FILE.read_text("utf-8"))["gpus"]:
        aliases |= dict.fromkeys(row.get("also", ()), row["name"])
    return aliases


def _gpu(row: Mapping[str, Any], host_links: Mapping[str, float]) -> GpuModel:
    tera_flops, giga_bytes = row["TFLOPS"], row["GBps"]
    major, minor = map(int, row["capability"].split("."))
    capability = (major, minor)
    return GpuModel(
        name=row["name"],
        total_bytes=int(row["GiB"] * _GIB),
        half_flops=1e12 * tera_flops["half"],
        fp32_flops=1e12 * tera_flops["fp32"],
        tf32_flops=1e12 * tera_flops["tf32"],
        memory_bandwidth=1e9 * giga_bytes["memory"],
        nvlink_bandwidth=1e9 * giga_bytes["nvlink"],
        host_bandwidth=1e9 * host_links[row["host_link"]],
        nvml_names=tuple(row["nvml"]),
        capability=capability,
    )


def parse_gpus(text: str) -> tuple[int | None, GpuModel]:
    """Read `8xH100-80GB`, `4xA100`, `H100` or `4x48GiB`: the count (None without one), and the model.

    Case does not matter. Raises WrongUsage for an unknown name, with the one that may be meant.
    """
    match, name = re.fullmatch(_FULL_NAME, text.strip()), text
    if match:
        name = match["name"]
    gpu = _gpu_named(name) or _of_memory(name)
    if gpu is None or not match:
        counted = ""
        if match:
            counted = text.strip()[: -len(name)]
        if sizes := _sizes_of(name):
            named = " or ".join(f"`{counted}{size}`" for size in sizes)
            raise WrongUsage(f"`{text}` is sold with different memory", f"write {named}")
        raise WrongUsage(f"unknown GPU `{text}`", _hint_for(name, counted))
    count = None
    if match["count"]:
        count = int(match["count"])
    if count == 0:
        raise WrongUsage(f"`{text}` is not a GPU", f"use at least one: `1x{name}`")
    return count, gpu


def parse_hosts_of_gpus(text: str) -> tuple[int | None, int | None, GpuModel]:
    """Read `2x8xH100-80GB` or `8xH100-80GB`: hosts, GPUs of each, and their model.

    A number that is not written is None.
    """
    hosts = None
    if match := re.fullmatch(r"\s*([1-9][0-9]{0,4})x([0-9]{1,4}x.+)", text):
        hosts, text = int(match[1]), match[2]
    count, gpu = parse_gpus(text)
    return hosts, count, gpu


def gpu_from_nvml(name: str) -> GpuModel | None:
    """The GPU with this NVML name, like `NVIDIA H100 80GB HBM3`; None if it is not in the table."""
    wanted = _plain(name)
    return next((gpu for gpu in known_gpus().values() if wanted in map(_plain, gpu.nvml_names)), None)


def _plain(name: str) -> str:
    """Normalize a name: lower case, hyphens, without the vendor."""
    words = re.split(r"[\s_-]+", name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "tesla", "geforce", ""))


def _gpu_named(name: str) -> GpuModel | None:
    """Find a GPU by its name or an alias, in which hyphens do not matter: `rtx4090`."""
    short = _short(name)
    for alias, known in _aliases().items():
        if short == _short(alias):
            return known_gpus()[known]
    return next((gpu for known, gpu in known_gpus().items() if _short(known) == short), None)


def _short(name: str) -> str:
    return _plain(name).replace("-", "")


def parse_memory(text: str) -> int:
    """Read `48GiB` or `48GB` as bytes; 0 for anything else."""
    match = re.fullmatch(_MEMORY, text.strip())
    if match is None:
        return 0
    return int(float(match["size"]) * _UNITS[match["unit"].lower()])


def _of_memory(text: str) -> GpuModel | None:
    """Read a memory as a GPU with that memory, bf16 and unknown speed."""
    if total_bytes := parse_memory(text):
        return GpuModel(_ANY, total_bytes, 0, 0, 0, 0, 0, 0, (), _HOPPER)
    return None


def nominal_size(gpu: GpuModel) -> str:
    """Say what torch sees of known GPUs of the same size, if only a size in GB is known of this one."""
    gigabytes, rest = divmod(gpu.total_bytes, _UNITS["gb"])
    if gpu.name != _ANY or rest:
        return ""
    seen = [known.total_bytes / _GIB for known in known_gpus().values()]
    alike = [size for size in seen if min(filter(size.__le__, _NOMINAL_GB), default=0) == gigabytes]
    text = f"{gigabytes} GB"
    if alike:
        sizes = dict.fromkeys(f"{size:.1f}" for size in (min(alike), max(alike)))
        text += f"; known GPUs of {gigabytes} GB have {' to '.join(sizes)} GiB"
    return text


_NOMINAL_GB: Final = (11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 141, 144, 180, 192)
"""GB in the names of GPUs, of which torch sees fewer GiB."""


def _sizes_of(name: str) -> list[str]:
    """Find the GPUs of a name that lacks only the memory."""
    plain = re.escape(_plain(name))
    return [known for known in known_gpus() if re.fullmatch(plain + r"-\d+gb", _plain(known))]


def _hint_for(name: str, counted: str) -> str:
    """Say what to write for an unknown name, with the count that was written.

    A GPU is proposed only for a slip of the keyboard: one of another memory or class is no answer.
    """
    plain, count = _plain(name), counted or "8x"
    if plain in _AMD_GIB:
        return (
            f"give its memory: `{count}{_AMD_GIB[plain]}GiB`; zlaunch has no figures of AMD GPUs, "
            "and then counts CUDA's own memory in place of ROCm's"
        )
    spelled = {_plain(known): known for known in known_gpus()}
    spelled |= {alias: alias.upper() for alias in _aliases()}
    slips = [known for known in spelled if _is_slip(plain, known)]
    if slips and not re.fullmatch(_OF_OTHERS, plain):
        return f"did you mean `{counted}{spelled[slips[0]]}`?"
    memory = "48GiB"
    if size := re.search(_SIZE, plain):
        memory = f"{size[1]}GB"
    names, words = [gpu for gpu in known_gpus() if _series(_plain(gpu)) == _series(plain)], "similar names"
    names = sorted(names, key=lambda gpu: _unlikeness(plain, _plain(gpu)))[:MOST_SIMILAR]
    if not names:
        names, words = list(known_gpus()), "known GPUs"
    return f"give its memory: `{count}{memory}`; {words} are {', '.join(names)}"


def _unlikeness(plain: str, known: str) -> tuple[float, int]:
    """Return how far two names are apart, first without their memory."""
    ours, theirs = (re.sub(_SIZE, "", text) for text in (plain, known))
    sizes = [int(found[1]) for text in (plain, known) if (found := re.search(_SIZE, text))]
    return 1 - SequenceMatcher(None, ours, theirs).ratio(), max(sizes, default=0) - min(sizes, default=0)


def _is_slip(plain: str, known: str) -> bool:
    """Whether a name is a known one without `GB`, with a zero too many or too few, or two digits swapped.

    Another letter or digit makes another GPU, and so does another memory.
    """
    size, known_size = re.search(_SIZE, plain), re.search(_SIZE, known)
    short, known_short = (_short(text).removesuffix("gb") for text in (plain, known))
    if short == known_short:
        return True
    if bool(size) != bool(known_size) or (size and known_size and size[1] != known_size[1]):
        return False
    if re.sub(r"\d", "", short) != re.sub(r"\d", "", known_short):
        return False
    return any(
        (
            known_short in _without_a_zero(short),
            short in _without_a_zero(known_short),
            known_short in _swapped(short),
        )
    )


def _without_a_zero(text: str) -> set[str]:
    return {text[: zero.start()] + text[zero.end() :] for zero in re.finditer("0", text)}


def _swapped(text: str) -> set[str]:
    return {text[:i] + text[i + 1] + text[i] + text[i + 2 :] for i in range(len(text) - 1)}


def _series(plain: str) -> str:
    """Take the letters that a name begins with: `h` of `h100`, `rtx` of `rtx-4090`, `mi` of `mi300x`."""
    return re.match(r"[^\W\d_]*", plain)[0]  # type: ignore[index]
