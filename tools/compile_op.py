"""Compile a file of a native op faster, for tests: `python compile_op.py COMPILER FOLDER ARGUMENTS...`.

Debug information takes 40 % of the time, so there is none. Nine files of `async_io` include all of torch,
which takes 12 of 20 s, so g++ keeps in FOLDER what it has parsed. Another compiler parses it again.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

WITH_TORCH = "/csrc/aio/py_lib/"
"""Where DeepSpeed has these files."""


def main(compiler: str, folder: Path, arguments: list[str]) -> None:
    """Become the compiler, which may look on the PATH for another one of this name, as ccache does."""
    places = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(place for place in places if place != str(folder))
    start = arguments.index("-c") if "-c" in arguments else len(arguments)
    if any(WITH_TORCH in word for word in arguments[start:]):
        header = folder / "parsed_once.h"
        parse_once(compiler, header, arguments[:start])
        # As a header of the system, it is none of the files for which ninja compiles again.
        arguments = ["-isystem", str(folder), "-include", header.name, *arguments]
    os.execv(compiler, [compiler, *arguments, "-g0"])


def parse_once(compiler: str, header: Path, options: list[str]) -> None:
    """Parse torch's headers with these options, unless another process has."""
    with header.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if header.stat().st_size == 0:
            file.write("#include <torch/extension.h>\n")
            file.flush()
            parsed = header.with_name(f"{header.name}.part")
            argv = [compiler, *options, "-g0", "-x", "c++-header", str(header), "-o", str(parsed)]
            if subprocess.run(argv, check=False).returncode == 0:
                parsed.rename(f"{header}.gch")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
