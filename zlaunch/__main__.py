"""The program, as `zlaunch` and as `python -m zlaunch`."""

import gc
import importlib.util
import io
import os
import signal
import sys
from functools import partial
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run it; a Ctrl-C while it imports ends it as quietly as one that comes later.

    A package that is missing is named without a traceback, whichever command imports it.
    What is imported stays, so nothing is gained by looking for garbage meanwhile; a job turns it on again.
    """
    gc.disable()
    _open_streams()
    interrupts: list[int] = []
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, partial(_interrupt, interrupts))
    try:
        from zlaunch.cli import main as run

        run()
    except KeyboardInterrupt as stop:
        sys.exit(128 + getattr(stop, "number", signal.SIGINT))
    except Exception as error:
        if interrupts:  # libraries turn the interrupt into an error of their own
            sys.exit(130)
        _name_missing_package(error)
        raise


def _interrupt(interrupts: list[int], number: int, _frame: FrameType | None) -> NoReturn:
    interrupts.append(number)
    raise KeyboardInterrupt


def _name_missing_package(error: Exception) -> None:
    """End with an error that says what to install, if a package is missing."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "zlaunch").partition(".")[0]
        if package == "zlaunch" or importlib.util.find_spec(package) is not None:
            return
        from zlaunch import console
        from zlaunch.errors import Unavailable

        missing = Unavailable(
            f"zlaunch needs {error.name}, which is not installed in {sys.prefix}",
            "`pip install zlaunch`, in that environment, installs what is missing",
        )
        console.show_error(missing)
        sys.exit(missing.status)


def _open_streams() -> None:
    """Open each standard stream that was closed, so that no file takes its number.

    What the encoding of a terminal does not have is escaped, also parts of names of files.
    """
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, open(opened, mode, closefd=False))  # noqa: SIM115 - for the whole program
            assert opened == number
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
