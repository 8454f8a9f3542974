"""Values that many tests need, and strategies that make more of them."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.interpreter import NAMES, Interpreter, Package
from zlaunch.hosts.machine.resources import Gpu, Machine
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.source import Source, SourceKind
from zlaunch.rundir.layout import RunDir

ODD_NAME = "it's a $HOME"
"""A directory name that a shell takes apart unless it is quoted."""
LAYOUT = RunDir(Path("/runs/20260101-120000-job"))
WRITTEN = Source(SourceKind.CONFIG_FILE, "ds.json:1")
SHAPE = ModelConfig({"hidden_size": 64, "vocab_size": 256}, "", "model/config.json")


def gpu(index: int, capability: tuple[int, int] = (9, 0)) -> Gpu:
    return Gpu(index, "NVIDIA H200", f"GPU-{index}", 139 << 30, capability)


def machine(*gpus: Gpu, cores: int = 8, hidden: tuple[int, ...] = ()) -> Machine:
    return Machine("here", cores, 64 << 30, gpus, hidden)


def interpreter(
    folder: str = "/venv", version: str = "3.12.1", *, without: tuple[str, ...] = ()
) -> Interpreter:
    """An environment that sees all packages but some."""
    site, tag = f"{folder}/lib/site-packages", f"py{''.join(version.split('.')[:2])}"
    packages = {name: None if name in without else Package(f"{site}/{name}", "1.0") for name in NAMES}
    return Interpreter(
        f"{folder}/bin/python", version, tag, f"{folder}/include", f"{folder}/bin", None, packages
    )


PYTHON = interpreter()
CPU_MACHINE = machine()
TWO_GPUS = machine(gpu(0), gpu(1))


FLAGS = {
    ConfigInterface.TRAINER: ("--deepspeed",),
    ConfigInterface.DEEPSPEED: ("--deepspeed", "--deepspeed_config"),
}


def script(source: str = "", interface: ConfigInterface = ConfigInterface.TRAINER, **known: Any) -> Script:
    flags = FLAGS.get(interface, ())
    return Script(Path("train.py"), source, interface, **{"config_flags": flags, **known})


def local(*devices: int) -> Topology:
    return Topology((Host("localhost", devices),))


def over_ssh(*hosts: Host) -> Topology:
    return Topology(hosts, reach=Reach.SSH)


_LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)


json_values = st.recursive(_LEAVES, _containers, max_leaves=12)
"""Any JSON, but for floats that are whole numbers: those are integers to DeepSpeed."""

json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(), json_values, max_size=4)

nested_objects: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    lambda children: st.dictionaries(st.sampled_from("abc"), st.integers() | children, max_size=3),
    max_leaves=8,
)
"""Objects in objects over so few keys that two of them often meet."""
