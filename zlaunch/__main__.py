"""The program, as `zlaunch` and as `python -m zlaunch`."""

import gc
import sys


def main() -> None:
    """Run it; a Ctrl-C while it imports ends it as quietly as one that comes later.

    A package that is missing is named without a traceback, whichever command imports it.
    What is imported stays, so nothing is gained by looking for garbage meanwhile; a job turns it on again.
    """
    gc.disable()
    try:
        from zlaunch.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "zlaunch":
            raise
        from zlaunch import console
        from zlaunch.errors import Unavailable

        missing = Unavailable(
            f"zlaunch needs {error.name}, which is not installed in {sys.prefix}",
            "`pip install zlaunch`, in that environment, installs what is missing",
        )
        console.show_error(missing)
        sys.exit(missing.status)


if __name__ == "__main__":
    main()
