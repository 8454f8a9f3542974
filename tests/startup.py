"""What every Python of the environment of tests begins with: it spares ranks and launchers what no test is about.

`make` copies it to the packages, as `zlaunch_tests`. With ZLAUNCH_TESTS_EXEC=1, ranks and launchers import all
that a user's do. A module that is imported at the top here, every Python imports: `typing` would take 9 ms.
"""

import atexit
import gc
import importlib
import os
import sys

LAUNCHERS = {"torch.distributed.run", "deepspeed.launcher.runner", "deepspeed.launcher.launch"}
UNUSED_BY_LAUNCHERS = ("torch._meta_registrations", "torch._native")
"""They compute with tensors, and are a quarter of what importing torch takes."""
OF_REHEARSALS = "zlaunch.estimate.rehearsal.program"
"""The program of rehearsals has the variables of a rank, and puts off itself what it does not need."""
IN_RANKS = {
    "torch.optim": "defer_compiler",
    "transformers.utils.hub": "list_models_once",
    "transformers.modeling_utils": "defer_symbolic_shapes",
}
"""Module → the function of rehearsals that spares its imports. torch asks for its compiler in torch.optim first."""


def spare_launcher() -> None:
    """Import what computes with tensors when it is used."""
    from zlaunch.estimate.rehearsal.imports import import_lazily

    for module in UNUSED_BY_LAUNCHERS:
        import_lazily(module)


def spare_rank(function: str) -> None:
    """Call a function of rehearsals. Where transformers comes before torch, torch is imported for it."""
    importlib.import_module("torch")
    getattr(importlib.import_module("zlaunch.estimate.rehearsal.imports"), function)()


def leave_muon_uncompiled() -> None:
    """Every engine imports Muon, which asks torch for its compiler: a fourth of all that a small rank computes."""
    compiler = sys.modules.get("deepspeed.runtime.compiler")
    if compiler is not None:
        vars(compiler)["compile"] = lambda: lambda function: function


class Spared:
    """Notices what is about to be imported."""

    is_launcher = not LAUNCHERS.isdisjoint(sys.orig_argv)
    is_rank = "RANK" in os.environ and OF_REHEARSALS not in sys.orig_argv

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        """Find nothing: others do."""
        if name == "torch.optim" and cls.is_launcher:
            spare_launcher()
        elif name in IN_RANKS and cls.is_rank:
            spare_rank(IN_RANKS[name])
        elif name == "deepspeed.runtime.zero.muon.original_muon":
            leave_muon_uncompiled()


if not os.environ.get("ZLAUNCH_TESTS_EXEC"):
    sys.meta_path.insert(0, Spared)

# The collector would walk through torch again and again, and at the end once more.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

# DeepSpeed asks py-cpuinfo about the CPU up to three times in each rank, in a program that computes for a second.
if sys.orig_argv[-1:] == ["--json"] and sys.orig_argv[-2].endswith("/cpuinfo.py"):
    with open(f"{sys.prefix}/cpu.json", "rb") as told:  # noqa: PTH123 - importing pathlib takes longer than this
        os.write(1, told.read())
    os._exit(0)
