import itertools
import re

import pytest

from tests.each import each
from zlaunch.errors import WrongUsage
from zlaunch.hosts.machine.gpu_catalog import (
    MOST_SIMILAR,
    GpuModel,
    gpu_from_nvml,
    known_gpus,
    nominal_size,
    parse_gpus,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8xH100-80GB", 8, "H100-80GB"),
        ("8 x h100", 8, "H100-80GB"),
        ("8*H100", 8, "H100-80GB"),
        ("8\N{MULTIPLICATION SIGN}H100", 8, "H100-80GB"),
        ("4xA100", 4, "A100-40GB"),
        ("4XA100-80gb", 4, "A100-80GB"),
        ("H100", None, "H100-80GB"),
        ("nvidia h200", None, "H200"),
        ("rtx_4090", None, "RTX-4090"),
        ("4090", None, "RTX-4090"),
        ("2xRTX4090", 2, "RTX-4090"),
        ("8xH800", 8, "H800-80GB"),
        ("8xH20-3e", 8, "H20-141GB"),
        ("L40S-48GB", None, "L40S"),
        ("2xV100-32GB", 2, "V100-32GB"),
    ],
)
def test_gpus_are_named_as_people_write_them(text: str, count: int | None, name: str) -> None:
    assert parse_gpus(text) == (count, known_gpus()[name])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8xH10", "did you mean `8xH100`?"),
        ("8xH1000", "did you mean `8xH100`?"),
        ("A100-80", "did you mean `A100-80GB`?"),
        ("2xrtx-4900", "did you mean `2xRTX-4090`?"),
        ("8xA800", "write `8xA800-40GB` or `8xA800-80GB`"),
    ],
)
def test_an_unknown_gpu_is_answered_with_what_may_be_meant(text: str, hint: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse_gpus(text)
    assert caught.value.hint == hint


def hint_for(text: str) -> str | None:
    try:
        parse_gpus(text)
    except WrongUsage as error:
        return error.hint
    return None


def digits(text: str) -> list[str]:
    """List the digits other than zero of a name before its memory."""
    return sorted(re.findall("[1-9]", re.sub(r"\d+GB", "", text.upper())))


@each("gpu", known_gpus().values(), ids=known_gpus())
def test_another_number_is_another_gpu(gpu: GpuModel) -> None:
    """`H800` was answered with `H200`, which has another memory."""
    places = [place for place, character in enumerate(gpu.name) if character.isdigit()]
    for place, digit in itertools.product(places, "123456789"):
        written = f"{gpu.name[:place]}{digit}{gpu.name[place + 1 :]}"
        if (proposal := re.fullmatch(r"did you mean `(.*)`\?", hint_for(written) or "")) is not None:
            assert digits(proposal[1]) == digits(written)


def test_of_many_similar_names_the_nearest_are_given() -> None:
    names = str(hint_for("2xA100-41GB")).partition("similar names are ")[2].split(", ")
    assert (names[:2], len(names)) == (["A100-40GB", "A100-80GB"], MOST_SIMILAR)


def test_a_written_memory_is_kept_in_the_hint() -> None:
    hint = hint_for("8xH100-64GB")
    assert hint is not None
    assert hint.startswith("give its memory: `8x64GB`; similar names are H100-80GB, ")


def test_the_hint_for_a_gpu_of_amd_has_its_memory_and_says_what_is_missing() -> None:
    hint = (
        "give its memory: `8x192GiB`; zlaunch has no figures of AMD GPUs, and then counts CUDA's own memory"
    )
    assert hint_for("8xMI300X") == f"{hint} in place of ROCm's"


# Names of AMD, Intel, Google, Huawei, Apple, Graphcore, Biren, and of NVIDIA's that are not in the table.
OTHERS = (
    *("MI300", "8xMI300X", "mi250", "RX-7900-XTX", "7900XTX", "Radeon-VII", "V620", "V710", "W7900"),
    *("Gaudi2", "gaudi-3", "Max-1550", "Arc-A770", "A770", "A310", "B580", "TPUv4", "v5e", "v5p", "v6e"),
    *(
        "910B",
        "Ascend-910B",
        "M3",
        "M2-Ultra",
        "GC200",
        "BR100",
        "BI-V100",
        "P4",
        "K80",
        "A1000",
        "A100X",
        "L40G",
        "B100",
    ),
)


@each("text", OTHERS)
def test_no_gpu_of_another_maker_is_proposed(text: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse_gpus(text)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("give its memory: ")


def test_a_size_in_gb_comes_with_what_torch_sees_of_such_gpus() -> None:
    assert nominal_size(parse_gpus("48GB")[1]) == "48 GB; known GPUs of 48 GB have 44.3 to 47.5 GiB"
    assert nominal_size(parse_gpus("80GB")[1]) == "80 GB; known GPUs of 80 GB have 79.1 GiB"
    assert nominal_size(parse_gpus("100GB")[1]) == "100 GB"
    assert nominal_size(parse_gpus("48GiB")[1]) == nominal_size(parse_gpus("A40")[1]) == ""


@pytest.mark.parametrize(
    ("text", "count", "nbytes"),
    [
        ("4x48GiB", 4, 48 * GIB),
        ("48GB", None, 48 * 10**9),
        ("8 x 80 gib", 8, 80 * GIB),
        ("2x47.5GiB", 2, 95 * GIB // 2),
    ],
)
def test_a_gpu_is_named_by_its_memory(text: str, count: int | None, nbytes: int) -> None:
    found, gpu = parse_gpus(text)
    assert (found, gpu.total_bytes, gpu.has_bf16, gpu.half_flops) == (count, nbytes, True, 0)


@pytest.mark.parametrize("text", ["0GiB", "4x0.0GB", "48G", "4x48", "-1GiB", "1e3GiB", "0x48GiB"])
def test_what_names_no_memory_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_gpus(text)


@pytest.mark.parametrize("text", ["", "x", "8x", "🐙", "\N{MULTIPLICATION SIGN}", "8", "MI300X" * 30])
def test_what_names_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_gpus(text)


def test_no_gpus_are_not_a_machine() -> None:
    with pytest.raises(WrongUsage, match="`0xH100` is not a GPU"):
        parse_gpus("0xH100")


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
    ],
)
def test_a_gpu_is_found_by_the_name_that_nvml_gives_it(name: str, gpu: str) -> None:
    assert gpu_from_nvml(name) == known_gpus()[gpu]


def test_a_gpu_that_the_table_lacks_is_not_guessed() -> None:
    assert gpu_from_nvml("NVIDIA H100 64GB") is None


@each("gpu", known_gpus().values(), ids=known_gpus())
def test_each_gpu_is_found_by_each_of_its_names(gpu: GpuModel) -> None:
    assert {gpu_from_nvml(name) for name in gpu.nvml_names} == {gpu}
    assert parse_gpus(f"3x{gpu.name}") == (3, gpu)


@each("gpu", known_gpus().values(), ids=known_gpus())
def test_the_figures_of_a_gpu_are_plausible(gpu: GpuModel) -> None:
    assert 10 * GIB < gpu.total_bytes < 280 * GIB
    assert gpu.half_flops >= gpu.tf32_flops
    assert gpu.half_flops > gpu.fp32_flops > 0
    assert 1e11 < gpu.memory_bandwidth < 1e13
    assert gpu.memory_bandwidth > gpu.nvlink_bandwidth
    assert gpu.host_bandwidth > 1e10


def test_torch_sees_less_than_the_name_says() -> None:
    sized = {gpu: int(name.split("-")[1][:-2]) for name, gpu in known_gpus().items() if "GB-" in f"{name}-"}
    assert all(0.92 * size < gpu.total_bytes / GIB < size for gpu, size in sized.items())


def test_cuda_and_nccl_take_their_share() -> None:
    gpu = known_gpus()["H100-80GB"]
    alone, together = gpu.usable_bytes(1), gpu.usable_bytes(8)
    assert together[0] == alone[0] < together[1] < alone[1] < gpu.total_bytes  # one rank may use NCCL too
    assert 76 < together[0] / GIB < together[1] / GIB < 78.5
