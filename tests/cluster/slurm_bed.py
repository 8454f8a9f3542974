"""A real Slurm on one machine: a controller and two nodes, each with a network, a name and processes of its own.

The nodes share the file system, as those of a cluster share theirs. Each sees only its own processes and its own
loopback, and knows the others by name. All traffic stays between addresses of the bridge, and everything that
Slurm writes stays in one folder. There is no accounting, as on many small clusters: `sacct` fails.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster import network
from tests.cluster.network import Network

PROGRAMS = (
    "ip",
    "nsenter",
    "unshare",
    "mount",
    "sbatch",
    "srun",
    "scontrol",
    "slurmctld",
    "slurmd",
    "munged",
)
SLURM_NODES = ("zlslurm1", "zlslurm2")
PARTITION, URGENT = "normal", "urgent"
"""A job of the urgent partition preempts those of the other one, which are requeued."""
GPUS = 8
"""GPUs a node claims to have; there is no device."""
REQUEUE_SECONDS = 5
"""Slurm starts a requeued job no earlier, so that the credentials of its first start have expired."""


@dataclass(frozen=True)
class Slurm:
    """What a test needs: the variable that names this Slurm, and its nodes."""

    folder: Path
    nodes: tuple[str, ...] = SLURM_NODES

    def environment(self) -> dict[str, str]:
        """The environment of someone on the login node."""
        conf = str(self.folder / "slurm.conf")
        return {**os.environ, "SLURM_CONF": conf, "GLOO_SOCKET_IFNAME": "eth0", "DS_ACCELERATOR": "cpu"}

    def ask(self, *argv: object) -> str:
        """Run a program of Slurm and return what it prints."""
        words = [str(word) for word in argv]
        return subprocess.run(
            words, env=self.environment(), check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    def job(self, number: object) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Reason, Restarts, ExitCode and so on."""
        return dict(
            word.split("=", 1)
            for word in self.ask("scontrol", "show", "job", "--oneliner", number).split()
            if "=" in word
        )

    def wait(self, number: object, *states: str, seconds: float = 120) -> dict[str, str]:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline, job
            time.sleep(0.2)
        return job

    def set_node(self, node: str, state: str) -> None:
        """Drain a node, or take it down, or resume it."""
        reason = [] if state == "resume" else ["reason=a test"]
        self.ask("scontrol", "update", f"nodename={node}", f"state={state}", *reason)

    def clear(self) -> None:
        """Cancel all jobs, and give the nodes back to the next test."""
        self.ask("scancel", "--full", "--user=root")
        deadline = time.monotonic() + 60
        while self.ask("squeue", "--noheader"):
            assert time.monotonic() < deadline, self.ask("squeue")
            time.sleep(0.2)
        for node in self.nodes:
            if not self.node_state(node).startswith(("idle", "alloc", "mix", "comp")):
                self.set_node(node, "resume")
        self.wait_for_nodes()

    def node_state(self, node: str) -> str:
        """The state of a node: idle, alloc, drain, down and others."""
        return self.ask("sinfo", "--noheader", f"--nodes={node}", "--format=%t", f"--partition={PARTITION}")

    def wait_for_nodes(self) -> None:
        """Wait until all nodes are idle."""
        deadline = time.monotonic() + 60
        while any(self.node_state(node) != "idle" for node in self.nodes):
            assert time.monotonic() < deadline, self.ask("sinfo", "--Node", "--long")
            time.sleep(0.2)


def missing() -> list[str]:
    """Name what this machine lacks for the bed."""
    return network.missing(PROGRAMS)


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start Slurm, and take everything away again."""
    bed = Slurm(folder)
    with ExitStack() as undo:
        made = network.network(undo, "zlslurm", "10.78", SLURM_NODES)
        _configure(folder, made)
        _daemon(undo, folder, "munged", *_munge_options(folder))
        _wait_for((folder / "munge.socket").exists, "munged")
        _daemon(undo, folder, "slurmctld", "-D", "-f", folder / "slurm.conf")
        for name in SLURM_NODES:
            _node(undo, folder, made, name)
        _wait_for(lambda: _is_up(bed), "slurmctld")
        undo.callback(_end_jobs, bed)
        bed.wait_for_nodes()
        yield bed


def _munge_options(folder: Path) -> list[str]:
    """Keep all files of munge in a folder, which it would rather have root alone write to."""
    names = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
    names |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in names.items()]
    return ["--foreground", "--force", "--num-threads=2", *options]


def _configure(folder: Path, made: Network) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for name in ("state", *(f"spool/{node}" for node in SLURM_NODES)):
        (folder / name).mkdir(parents=True)
    nodes = "".join(
        f"NodeName={name} NodeHostname={name} NodeAddr={made.address(name)} Port={17000 + number} CPUs=1 "
        f"RealMemory=8000 Gres=gpu:{GPUS}\n"
        for number, name in enumerate(SLURM_NODES, start=1)
    )
    (folder / "slurm.conf").write_text(
        f"""ClusterName=zlaunch
SlurmctldHost={socket.gethostname()}({made.here})
SlurmctldPort={17100 + made.number}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={REQUEUE_SECONDS}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=30
MinJobAge=600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=1:00:00 PriorityTier=1
PartitionName={URGENT} Nodes=ALL MaxTime=1:00:00 PriorityTier=10 PreemptMode=OFF
"""
    )
    for number in range(GPUS):  # what stands for its device
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    own = "".join(f"{made.address(name)} {name}\n" for name in SLURM_NODES)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{made.here} {socket.gethostname()}\n{own}")


def _daemon(undo: ExitStack, folder: Path, program: str, *args: object, within: tuple[str, ...] = ()) -> None:
    """Start a program that ends with the bed."""
    words = [*network.DIES_WITH_US, *within, str(_found(program)), *(str(arg) for arg in args)]
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{program}.out").open("ab") as out:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    undo.callback(_end, process, is_node=bool(within))


def _end(process: "subprocess.Popen[bytes]", *, is_node: bool) -> None:
    """Ask a program to end; kill the first process of a node, and so all that runs there."""
    for one in psutil.Process(process.pid).children() if is_node else ():
        one.kill()
    process.send_signal(signal.SIGCONT if is_node else signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _node(undo: ExitStack, folder: Path, made: Network, name: str) -> None:
    """Start a node, whose processes end with it: the first one of its namespace is killed."""
    # the shell is the first process, which has to reap the orphans of ended jobs
    begin = f'mount --bind "{folder}/hosts" /etc/hosts && hostname {name} && "$@" & wait $!'
    # `ip netns exec` would hide the cgroups, without which slurmd does not start
    inside = (
        "nsenter",
        f"--net=/run/netns/{made.space(name)}",
        "unshare",
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    )
    _daemon(
        undo,
        folder,
        "slurmd",
        *("-D", "-N", name, "-f", folder / "slurm.conf"),
        within=(*inside, "sh", "-c", begin, "-"),
    )


def _is_up(bed: Slurm) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return "UP" in bed.ask("scontrol", "ping")
    return False


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not start"
        time.sleep(0.1)


def _end_jobs(bed: Slurm) -> None:
    with contextlib.suppress(subprocess.CalledProcessError, AssertionError):
        bed.clear()
