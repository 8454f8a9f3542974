"""Run the programs of schedulers."""

from collections.abc import Sequence

from zlaunch.errors import Unavailable
from zlaunch.process import answer_of

_SECONDS = 60
"""A controller under load takes its time."""


class ProgramFailed(Unavailable):
    """A program of a scheduler has failed: `said` is the end of what it printed."""

    def __init__(self, message: str, said: str, hint: str | None = None) -> None:
        """Keep what it said, beside the message."""
        super().__init__(message, hint)
        self.said = said


def ask(argv: Sequence[str], text: str = "", hint: str | None = None) -> str:
    """Run a program with a text as its input, and return its output; raise Unavailable if it fails."""
    program = argv[0]
    try:
        done = answer_of(argv, text, _SECONDS)
    except FileNotFoundError:
        where = f"run this where `{program}` is, such as on a login node"
        raise Unavailable(
            f"`{program}` is not installed here", f"{where}; `--dry-run` needs no cluster"
        ) from None
    except TimeoutError:
        raise ProgramFailed(f"`{program}` gave no answer within {_SECONDS} s", "") from None
    if done.returncode:
        said = " ".join((done.err.strip() or done.out.strip()).splitlines()[-3:])
        raise ProgramFailed(f"`{program}` failed: {said or f'exit status {done.returncode}'}", said, hint)
    return done.out.strip()
