"""`python FILE estimate SCRIPT …`: zlaunch, which estimates scripts for the CPUs of this machine.

`zlaunch estimate` estimates for GPUs, also where there are none; here it is compared with ranks on CPUs.
"""

import os
from typing import Any

from zlaunch.cli import estimate_program, main
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.request import EstimateRequest
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.hosts.machine.resources import Machine


def _cpus(request: EstimateRequest, python: Interpreter) -> tuple[Cluster, Machine]:
    assert request.gpus is not None
    return Cluster(1, request.gpus), probe_machine(os.environ, python)


command: Any = estimate_program
command.find_cluster = _cpus
main()
