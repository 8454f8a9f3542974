"""What every Python of the environment of tests begins with: it spares ranks what no test is about.

`make` copies it to the packages, as `zlaunch_tests`.
"""

import atexit
import gc
import os
import sys
from typing import Any


class MuonIsNotCompiled:
    """Every engine imports Muon, which asks torch for its compiler: a fourth of all that a small rank computes."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing, but compile nothing from the time on that Muon is looked for."""
        compiler: Any = sys.modules.get("deepspeed.runtime.compiler")
        if name == "deepspeed.runtime.zero.muon.original_muon" and compiler is not None:
            compiler.compile = lambda: lambda function: function


# The collector would walk through torch again and again, and at the end once more.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

sys.meta_path.insert(0, MuonIsNotCompiled)

# DeepSpeed asks py-cpuinfo about the CPU up to three times in each rank, in a program that computes for a second.
if sys.orig_argv[-1:] == ["--json"] and sys.orig_argv[-2].endswith("/cpuinfo.py"):
    with open(f"{sys.prefix}/cpu.json", "rb") as told:  # noqa: PTH123 - importing pathlib takes longer than this
        os.write(1, told.read())
    os._exit(0)
