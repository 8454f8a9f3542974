"""Tables in the layout of `nvidia-smi topo -m`, written by hand; not verified on a GPU."""

import pytest

from zlaunch.checks.gpus import read_matrix, slow_pairs, unreachable_pairs

DGX_A100 = """\t\x1b[4mGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tNV12\tPXB\t48-63,176-191\t3
GPU1\tNV12\t X \tNV12\tPXB\t48-63,176-191\t3
GPU2\tNV12\tNV12\t X \tSYS\t16-31,144-159\t1
mlx5_0\tPXB\tPXB\tSYS\t X \t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
TWO_PAIRS = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     PHB     SYS     0-31    0               N/A
GPU1    NV4      X      PHB     SYS     0-31    0               N/A
GPU2    PHB     PHB      X      NV4     0-31    0               N/A
GPU3    SYS     SYS     NV4      X      32-63   1               N/A
"""


def test_the_links_of_each_gpu_are_read_without_those_of_network_cards() -> None:
    assert read_matrix(DGX_A100) == [["X", "NV12", "NV12"], ["NV12", "X", "NV12"], ["NV12", "NV12", "X"]]


@pytest.mark.parametrize(
    ("text", "pairs"), [(DGX_A100, []), (TWO_PAIRS, [(0, 2), (0, 3), (1, 2), (1, 3)]), ("", [])]
)
def test_pairs_without_nvlink_are_named(text: str, pairs: list[tuple[int, int]]) -> None:
    assert slow_pairs(text) == pairs


def test_a_pair_is_unreachable_if_one_of_both_cannot_read_the_other() -> None:
    assert unreachable_pairs([[True, True, True], [True, True, False], [True, True, True]]) == [(1, 2)]
