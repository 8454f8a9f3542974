"""What started zlaunch: every environment is recognized, or refused; none is one host without a word."""

from collections.abc import Mapping

import pytest

from tests.each import each
from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.started_by import (
    Allocation,
    Alone,
    Member,
    detect_cluster,
    without_cluster_variables,
)

SLURM_JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "gpu[01-02]",
}
STEP = {
    **SLURM_JOB,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
PYTORCH_JOB = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "trainer-0", "PET_MASTER_PORT": "29500"}
NNODES = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "head"}
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
ONE_A_NODE = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}

RECOGNIZED: Mapping[str, tuple[Mapping[str, str], object]] = {
    "a shell": ({"HOME": "/root", "MASTER_ADDR": "left"}, None),
    "a Slurm allocation": (SLURM_JOB, Allocation(("gpu01", "gpu02"), "Slurm job 12 on 2 nodes")),
    "a Slurm allocation of one node": (
        {**SLURM_JOB, "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"},
        Alone("Slurm job 12 on 1 node"),
    ),
    "the shell of salloc": (
        {**STEP, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        Allocation(("gpu01", "gpu02"), "Slurm job 12 on 2 nodes"),
    ),
    "srun on every node": (STEP, (1, 2, "gpu01", None)),
    "srun on every node of a script that exports what torchrun reads": (
        {**STEP, "MASTER_ADDR": "gpu01", "WORLD_SIZE": "16", "NNODES": "2"},
        (1, 2, "gpu01", None),
    ),
    "srun for every GPU": (
        {**STEP, "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9", "SLURM_LOCALID": "1"},
        (9, 16, "gpu01", 1),
    ),
    "srun on one of two nodes": (
        {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},
        Alone("Slurm job 12, step 0 on 1 node of the 2 of the job"),
    ),
    "a PyTorchJob": (
        {**PYTORCH_JOB, "PET_NNODES": "2", "PET_NODE_RANK": "1", **PET},
        (1, 2, "trainer-0", None),
    ),
    "a PyTorchJob without PET variables": (PYTORCH_JOB, (1, 2, "job-master-0", None)),
    "a TrainJob": ({**PET, "PET_NPROC_PER_NODE": "8"}, (1, 2, "trainer-0", None)),
    "a node of LLaMA-Factory": (NNODES, (1, 2, "head", None)),
    "one node of Azure ML": (
        {"AZUREML_NODE_COUNT": "1", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.4"},
        Alone("AZUREML_NODE_COUNT=1"),
    ),
    "a batch script of one node that exports what torchrun reads": (
        {**SLURM_JOB, "SLURM_JOB_NUM_NODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "gpu01"},
        Alone("Slurm job 12 on 1 node"),
    ),
    "a node of several, alone": ({**NNODES, "NNODES": "1", "NODE_RANK": "0"}, Alone("NNODES=1")),
    "a rank of torchrun": (TORCHRUN, (3, 4, "head", 1)),
    "a rank of torchrun where the platform exports nodes": ({**NNODES, **TORCHRUN}, (3, 4, "head", 1)),
    "a node with variables of a single process": (
        {**NNODES, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        (1, 2, "head", None),
    ),
    "mpirun in a Slurm job": ({**STEP, **ONE_A_NODE, "MASTER_ADDR": "head"}, (1, 2, "head", None)),
    "a single rank": ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Alone("WORLD_SIZE=1")),
    "srun for every GPU of a script that numbers ranks for torch": (
        {
            **STEP,
            "SLURM_STEP_NUM_TASKS": "16",
            "SLURM_PROCID": "9",
            "SLURM_LOCALID": "1",
            "RANK": "9",
            "WORLD_SIZE": "16",
            "MASTER_ADDR": "head",
        },
        (9, 16, "head", 1),
    ),
    "mpirun for every GPU of a script that numbers ranks for torch": (
        {**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "head"},
        (1, 2, "head", 1),
    ),
    "mpirun on every node of an image for one node": (
        {**ONE_A_NODE, "MASTER_ADDR": "head", "NNODES": "1"},
        (1, 2, "head", None),
    ),
    "mpirun on every node of a program of a single process": (
        {**ONE_A_NODE, "MASTER_ADDR": "head", "WORLD_SIZE": "1"},
        (1, 2, "head", None),
    ),
    "empty variables": ({"NNODES": "", "WORLD_SIZE": "", "SLURM_JOB_ID": "", "RANK": ""}, None),
    "a first node on one machine": ({"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"}, None),
    "Azure ML on every node": (
        {"AZUREML_NODE_COUNT": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105"},
        (1, 2, "10.0.0.4", None),
    ),
    "mpirun on one host": (OPEN_MPI, (1, 2, "127.0.0.1", 1)),
    "mpirun on every node": ({**ONE_A_NODE, "MASTER_ADDR": "head"}, (1, 2, "head", None)),
    "MPICH on one host": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        (1, 2, "127.0.0.1", 1),
    ),
}

REFUSED: Mapping[str, tuple[Mapping[str, str], str]] = {
    "nodes without a number": ({"NNODES": "2", "MASTER_ADDR": "head"}, "NNODES=2 is set without NODE_RANK"),
    "nodes without an address": ({"NNODES": "2", "NODE_RANK": "0"}, "NNODES=2 is set without MASTER_ADDR"),
    "a node of an unknown number": (
        {"NODE_RANK": "1", "MASTER_ADDR": "h"},
        "NODE_RANK=1 is set without NNODES",
    ),
    "a node too many": ({**NNODES, "NODE_RANK": "2"}, "NODE_RANK=2 is not below NNODES=2"),
    "elastic nodes": ({**PET, "PET_NNODES": "1:4"}, "PET_NNODES=1:4: zlaunch starts no elastic jobs"),
    "ranks without an address": ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2 is set without MASTER_ADDR"),
    "mpirun on hosts that know no address": (ONE_A_NODE, "OMPI_COMM_WORLD_SIZE=2 is set without MASTER_ADDR"),
    "a rank of an unknown number": ({"RANK": "1", "MASTER_ADDR": "h"}, "RANK=1 is set without WORLD_SIZE"),
    "a node with two numbers": (
        {**NNODES, "NODE_RANK": "0", "RANK": "1", "WORLD_SIZE": "2"},
        "number 0 of 2, or number 1 of 2",
    ),
    "a first node of an unknown number": (
        {"NODE_RANK": "0", "MASTER_ADDR": "h"},
        "NODE_RANK=0 is set without NNODES",
    ),
    "a rank of MPI of an unknown number": (
        {"OMPI_COMM_WORLD_RANK": "1"},
        "OMPI_COMM_WORLD_RANK=1 is set without OMPI_COMM_WORLD_SIZE",
    ),
    "a second rank of one": (
        {"RANK": "1", "WORLD_SIZE": "1"},
        "RANK=1 is not below WORLD_SIZE=1",
    ),
    "a second node of one": (
        {**PYTORCH_JOB, "NNODES": "1"},
        "RANK=1 WORLD_SIZE=2 and NNODES=1 contradict each other",
    ),
    "a port that is none": ({**NNODES, "MASTER_PORT": "99999"}, "99999 is not a port"),
    "port 0": ({**NNODES, "MASTER_PORT": "0"}, "0 is not a port"),
    "an empty part of a name": ({**NNODES, "MASTER_ADDR": "a..b"}, "`a..b` is neither a host name"),
    "a URL for a host": ({**NNODES, "MASTER_ADDR": "tcp://a:29500"}, "is neither a host name nor an address"),
    "nodes without ranks": ({**NNODES, "NPROC_PER_NODE": "0"}, "NPROC_PER_NODE=0 starts no ranks"),
    "Slurm without its nodes": (
        {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "2"},
        "SLURM_JOB_NODELIST is not set",
    ),
    "Slurm with a broken list": ({**SLURM_JOB, "SLURM_JOB_NODELIST": "gpu["}, "SLURM_JOB_NODELIST: `gpu\\["),
    "Slurm with other nodes than it says": (
        {**SLURM_JOB, "SLURM_JOB_NUM_NODES": "3"},
        "names 2 nodes, but Slurm counts 3",
    ),
    "Slurm with a node twice": (
        {**SLURM_JOB, "SLURM_JOB_NODELIST": "a,a"},
        "names 1 node, but Slurm counts 2",
    ),
    "two families that differ": ({**NNODES, **PET, "PET_NODE_RANK": "0"}, "contradict each other"),
    "Slurm and a user that differ": ({**STEP, **NNODES, "NODE_RANK": "0"}, "contradict each other"),
}


@each("name", RECOGNIZED)
def test_what_started_zlaunch_is_recognized(name: str) -> None:
    environ, expected = RECOGNIZED[name]
    found = detect_cluster(environ)
    if isinstance(found, Member):
        assert (found.number, found.count, found.address, found.device) == expected
    else:
        assert found == expected


@each("name", REFUSED)
def test_what_is_said_only_in_part_or_twice_is_refused(name: str) -> None:
    environ, said = REFUSED[name]
    with pytest.raises(WrongUsage, match=said) as error:
        detect_cluster(environ)
    assert error.value.hint


def test_members_of_one_job_choose_the_same_port_and_of_two_jobs_different_ones() -> None:
    ports = {
        (job, rank): detect_cluster({**STEP, "SLURM_JOB_ID": job, "SLURM_PROCID": rank})
        for job in ("12", "13")
        for rank in "01"
    }
    chosen = {key: one.port for key, one in ports.items() if isinstance(one, Member)}
    assert chosen["12", "0"] == chosen["12", "1"] != chosen["13", "0"] == chosen["13", "1"]


def test_a_launcher_inside_does_not_take_these_variables_for_its_own() -> None:
    left = without_cluster_variables(
        {**PET, **TORCHRUN, **OPEN_MPI, "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "1"}
    )
    assert left == {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "1"}


def test_the_port_that_a_script_has_set_is_that_of_its_steps_and_otherwise_each_step_has_its_own() -> None:
    steps = [{**STEP, "MASTER_PORT": "6105"}, STEP, {**STEP, "SLURM_STEP_ID": "1"}]
    members = [detect_cluster(step) for step in steps]
    ports = [member.port for member in members if isinstance(member, Member)]
    assert (len(ports), ports[0], len({*ports})) == (3, 6105, 3)
