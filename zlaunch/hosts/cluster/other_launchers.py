"""Schedulers that zlaunch does not obey, but whose variables say that a job has several hosts."""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

_MOST_BYTES = 1 << 20


def _count_words(text: str) -> int:
    return len(set(text.split()))


def _every_other_word(text: str) -> int:
    return len(set(text.split()[::2]))


def _lines_of_file(text: str) -> int:
    with Path(text).open("rb") as file:
        lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    return len({line.split()[0] for line in lines if line.split()})


def _count_json(text: str) -> int:
    hosts = json.loads(text)
    if not isinstance(hosts, list):
        raise ValueError
    return len(hosts)


_COUNTS: Mapping[str, Callable[[str], int]] = {
    "PBS_NODEFILE": _lines_of_file,
    "LSB_MCPU_HOSTS": _every_other_word,
    "LSB_HOSTS": _count_words,
    "PE_HOSTFILE": _lines_of_file,  # of Grid Engine
    "FLUX_JOB_NNODES": int,
    "SKYPILOT_NUM_NODES": int,
    "SM_HOSTS": _count_json,  # of SageMaker
    "LWS_GROUP_SIZE": int,  # of a LeaderWorkerSet
    "BEAKER_REPLICA_COUNT": int,
    "SLURM_HET_SIZE": int,  # whose other variables describe one component
}
"""Variable → how it says how many hosts there are; ValueError or OSError where it does not."""


def says_several(environ: Mapping[str, str]) -> str | None:
    """Return a variable and what it says, such as `PBS_NODEFILE says 2 hosts`; None if none does."""
    for name, count in _COUNTS.items():
        if text := environ.get(name):
            with contextlib.suppress(ValueError, OSError, RecursionError):
                if (hosts := count(text)) > 1:
                    return f"{name} says {hosts} hosts"
    return None
