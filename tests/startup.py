"""What every Python of the environment of tests begins with: it spares ranks and launchers what no test is about.

`make` copies it to the packages, as `zlaunch_tests`. With ZLAUNCH_TESTS_EXEC=1 they import everything.
"""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

IS_RANK = "RANK" in os.environ
LAUNCHERS = {"torch.distributed.run", "deepspeed.launcher.runner", "deepspeed.launcher.launch"}
UNUSED_BY_LAUNCHERS = ("torch._meta_registrations", "torch._native")
"""They compute with tensors, and are a quarter of what importing torch takes."""


def defer_torch() -> None:
    """Launchers compute nothing; and every optimizer imports the compiler, to say what it must not compile."""
    from zlaunch.estimate.rehearsal.imports import defer_compiler, import_lazily

    if not LAUNCHERS.isdisjoint(sys.orig_argv):
        for module in UNUSED_BY_LAUNCHERS:
            import_lazily(module)
    elif IS_RANK:
        defer_compiler()


def list_models_once() -> None:
    """Transformers lists its 1,600 files of models twice."""
    if IS_RANK:
        from zlaunch.estimate.rehearsal.imports import list_models_once

        list_models_once()


def defer_symbolic_shapes() -> None:
    """Transformers imports sympy."""
    if IS_RANK and "torch" in sys.modules:
        from zlaunch.estimate.rehearsal.imports import defer_symbolic_shapes

        defer_symbolic_shapes()


def leave_muon_uncompiled() -> None:
    """Every engine imports Muon, which asks torch for its compiler: a fourth of all that a small rank computes."""
    compiler: Any = sys.modules.get("deepspeed.runtime.compiler")
    if compiler is not None:
        compiler.compile = lambda: lambda function: function


BEFORE: dict[str, Callable[[], None]] = {
    "torch.optim": defer_torch,
    "transformers.utils.hub": list_models_once,
    "transformers.modeling_utils": defer_symbolic_shapes,
    "deepspeed.runtime.zero.muon.original_muon": leave_muon_uncompiled,
}
"""Module → what is done before it is imported."""


class Spared:
    """Notices what is about to be imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing: others do."""
        if name in BEFORE:
            BEFORE[name]()


if "ZLAUNCH_TESTS_EXEC" not in os.environ:
    sys.meta_path.insert(0, Spared)

# The collector would walk through torch again and again, and at the end once more.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

# DeepSpeed asks py-cpuinfo about the CPU up to three times in each rank, in a program that computes for a second.
if sys.orig_argv[-1:] == ["--json"] and sys.orig_argv[-2].endswith("/cpuinfo.py"):
    with open(f"{sys.prefix}/cpu.json", "rb") as told:  # noqa: PTH123 - importing pathlib takes longer than this
        os.write(1, told.read())
    os._exit(0)
