"""The program, as `zlaunch` and as `python -m zlaunch`."""

import gc
import sys


def main() -> None:
    """Run it; a Ctrl-C while it imports ends it as quietly as one that comes later.

    What is imported stays, so nothing is gained by looking for garbage meanwhile; a job turns it on again.
    """
    gc.disable()
    try:
        from zlaunch.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
