"""How the GPUs of a host are connected: the tables of `nvidia-smi topo -m` and of torch.

Tested with recorded tables; not verified on a GPU by this project.
"""

import re
from collections.abc import Sequence
from itertools import combinations

_CELL = re.compile(r"NV\d+|X|PIX|PXB|PHB|NODE|SYS|N/A")


def read_matrix(text: str) -> list[list[str]]:
    """Read `nvidia-smi topo -m`: for each GPU, how it is connected to each (`NV18`, `PIX`, `SYS`, `X`)."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    gpus = [
        row
        for row in rows
        if row and re.fullmatch(r"GPU\d+", row[0]) and row[1:2] and _CELL.fullmatch(row[1])
    ]
    return [row[1 : len(gpus) + 1] for row in gpus]


def slow_pairs(text: str) -> list[tuple[int, int]]:
    """Pairs of GPUs without NVLink between them."""
    matrix = read_matrix(text)
    pairs = combinations(range(len(matrix)), 2)
    return [(first, second) for first, second in pairs if not matrix[first][second].startswith("NV")]


def unreachable_pairs(peers: Sequence[Sequence[bool]]) -> list[tuple[int, int]]:
    """Pairs of GPUs that cannot read each other's memory."""
    pairs = combinations(range(len(peers)), 2)
    return [(first, second) for first, second in pairs if not (peers[first][second] and peers[second][first])]
