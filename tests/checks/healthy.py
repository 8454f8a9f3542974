"""The facts of a host on which nothing is wrong, to change one of them."""

import copy
from typing import Any

from zlaunch.hosts.agent.questions import Facts

GIB = 1 << 30

GPU = {
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-0",
    "memory_bytes": 80 * GIB,
    "compute_capability": [9, 0],
    "free_bytes": 79 * GIB,
    "processes": [],
    "is_busy": False,
}
_CPU: dict[str, Any] = {
    "python": {
        "executable": "/venv/bin/python",
        "version": "3.11.7",
        "packages": {
            "torch": "2.13.0",
            "deepspeed": "0.19.8",
            "transformers": "5.23.0",
            "accelerate": "1.15.0",
            "peft": "0.21.2",
        },
        "headers": True,
    },
    "machine": {"cores": 8, "memory_bytes": 64 * GIB},
    "gpus": [],
    "cuda": {"driver": None, "driver_cuda": None, "torch_cuda": None, "nvcc": None, "nccl": None},
    "links": None,
    "compilers": {"c++": "12.2.0", "ninja": "1.13.2"},
    "room": {
        "available_bytes": 60 * GIB,
        "swap_bytes": 0,
        "cgroup": None,
        "shm": {"device": 1, "total_bytes": 32 * GIB, "free_bytes": 32 * GIB},
        "shm_left_bytes": 0,
        "memlock_bytes": None,
        "infiniband": False,
    },
    "disks": {
        "this directory": {
            "device": 2,
            "total_bytes": 500 * GIB,
            "free_bytes": 400 * GIB,
            "path": "/home/me",
            "writable": True,
        }
    },
    "ops": {},
    "files": {},
    "hub": {"endpoint": "https://huggingface.co", "offline": None, "proxy": None, "error": None},
    "network": {
        "hostname": "w0",
        "own_addresses": ["10.0.0.1"],
        "interfaces": [
            {"name": "lo", "address": "127.0.0.1", "mtu": 65536, "speed": None, "physical": False},
            {"name": "eth0", "address": "10.0.0.1", "mtu": 1500, "speed": 10000, "physical": True},
        ],
        "chosen": {},
        "reached_at": "10.0.0.1",
        "identity": {"host": "w0", "boot": "", "pid_namespace": ""},
    },
    "errors": {},
    "seconds": 0.1,
}
_CUDA = {
    "driver": "550.54.15",
    "driver_cuda": "12.4",
    "torch_cuda": "12.8",
    "nvcc": "12.4",
    "nccl": "2.27.3",
}


def cpu_host(**topics: Any) -> Facts:
    """A host without GPUs; the members of a topic replace those of the healthy one."""
    facts = copy.deepcopy(_CPU)
    for topic, value in topics.items():
        facts[topic] = {**facts[topic], **value} if isinstance(facts.get(topic), dict) else value
    return facts


def gpu_host(**topics: Any) -> Facts:
    """A host with one GPU."""
    return cpu_host(**{"gpus": [GPU], **topics, "cuda": {**_CUDA, **topics.get("cuda", {})}})
