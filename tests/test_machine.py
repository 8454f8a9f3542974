import pytest

from tests.making import CPU_MACHINE, gpu, machine


def test_a_machine_with_a_gpu_has_cuda() -> None:
    assert machine(gpu(0)).accelerator == "cuda"


def test_a_machine_without_a_gpu_has_its_cpu() -> None:
    assert CPU_MACHINE.accelerator == "cpu"


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((10, 0), "bf16")],
)
def test_the_best_format_follows_the_age_of_the_gpu(capability: tuple[int, int], precision: str) -> None:
    assert machine(gpu(0, capability)).best_precision == precision


def test_the_oldest_gpu_decides_the_format() -> None:
    assert machine(gpu(0, (9, 0)), gpu(1, (7, 5))).best_precision == "fp16"


def test_every_cpu_has_bf16() -> None:
    assert CPU_MACHINE.best_precision == "bf16"
