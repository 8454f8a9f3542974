"""Read the request to save after a step and end, which is a file in the run directory."""

import os
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 8192


class SaveAt(NamedTuple):
    """The request of zlaunch."""

    step: int
    directory: str
    """Directory for an engine whose script has not saved yet; empty if unknown."""


class SaveRequest:
    """Reads the file at each end of a step, which takes some microseconds."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def at(self, step: int) -> SaveAt | None:
        """Return the request if it is for this step; every rank must ask about the same steps.

        The file is opened each time: on a network file system, only that reads what another host wrote.
        """
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(descriptor, MOST_BYTES)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if not text.endswith(b"\n"):
            return None
        number, _, directory = os.fsdecode(text[:-1]).partition(" ")
        if number != str(step):
            return None
        return SaveAt(step, directory)
