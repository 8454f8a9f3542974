"""The launchers: each module here is one, and has its `BACKEND`."""

from importlib import import_module
from pkgutil import iter_modules

from zlaunch.errors import Unavailable
from zlaunch.hosts.cluster.topology import Reach
from zlaunch.job.script import Script
from zlaunch.job.spec import Launcher
from zlaunch.launch.launcher import Backend


def launchers() -> tuple[Launcher, ...]:
    """List the names of all launchers."""
    return tuple(module.name for module in iter_modules(__path__))


def backend_of(launcher: Launcher) -> Backend:
    """Return a launcher; raise Unavailable for a name that none has, as an old record may hold it."""
    if launcher not in launchers():
        raise Unavailable(f"zlaunch has no launcher `{launcher}`", "use `--launcher torchrun`")
    backend: Backend = import_module(f"{__name__}.{launcher}").BACKEND
    return backend


def launcher_of(asked: Launcher | None, script: Script, reach: Reach = Reach.HERE) -> Launcher:
    """Choose torchrun, unless DeepSpeed's launcher is needed to tell a script its local rank.

    On the nodes of a job that something else has started, zlaunch's rank program does that.
    """
    if asked is not None:
        return asked
    if script.wants_local_rank and not reach.is_inside_job:
        return "deepspeed"
    return "torchrun"
