"""Start the node program of a host: here, over ssh, or as a step of the Slurm job."""

from collections.abc import Sequence

from zlaunch.hosts.agent.host_command import host_command
from zlaunch.hosts.agent.python_of_host import is_here, own_program
from zlaunch.hosts.cluster.topology import Reach
from zlaunch.hosts.machine.ports import free_port
from zlaunch.launch.plan import LaunchPlan
from zlaunch.process import ours
from zlaunch.rundir.record import NodePlanRecord

NODE_PROGRAM = "zlaunch.worker.node"


def node_plans(plan: LaunchPlan) -> list[NodePlanRecord]:
    """List how the launcher is started on each host; empty if zlaunch starts only one."""
    if not plan.on_each_host:
        return []
    ranks = [slot.rank for slot in plan.topology.slots()]
    plans: list[NodePlanRecord] = []
    for node, host in enumerate(plan.topology.hosts):
        ranks_here, ranks = ranks[: len(host.devices)], ranks[len(host.devices) :]
        environment = plan.own_environment(host)
        if plan.accelerator == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.devices))
        plans.append(
            {
                "host": host.name,
                "start": list(_start_command(plan, node)),
                "argv": list(plan.node_argv(node)),
                "environment": environment,
                "python": plan.facts.software_on(host).python.executable,
                "ranks": ranks_here,
            }
        )
    return plans


def control_port(plan: LaunchPlan) -> int:
    """Choose a port for hosts that connect by themselves; 0 if none does."""
    if plan.on_each_host and plan.topology.reach is Reach.JOINED:
        return free_port()
    return 0


def _start_command(plan: LaunchPlan, node: int) -> Sequence[str]:
    host = plan.topology.hosts[node]
    if plan.topology.reach is Reach.JOINED:
        return ours(NODE_PROGRAM) if node == 0 else ()
    if is_here(host):
        return ours(NODE_PROGRAM)
    return host_command(host, own_program(host, NODE_PROGRAM), plan.topology.reach)
