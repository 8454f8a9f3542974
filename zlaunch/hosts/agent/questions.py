"""The questions to a host: what `zlaunch.hosts.agent.host` gets as JSON. Nothing slow is imported."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Questions(NamedTuple):
    """What to look at, apart from the hardware."""

    environ: Mapping[str, str] = {}
    """Variables of this machine that the ranks there will get."""
    python: str | None = None
    """The interpreter of the ranks; None for the one that runs zlaunch."""
    files: tuple[str, ...] = ()
    """Files whose bytes must be equal everywhere."""
    paths: Mapping[str, str] = {}
    """Name → a directory whose file system the job writes to."""
    ops: Mapping[str, tuple[str, ...]] = {}
    """Accelerator → native ops that the job needs there."""
    hub: bool = True
    """Whether to try to reach the model hub."""

    def to_json(self) -> str:
        """Write the questions as one line of ASCII."""
        return json.dumps(self._asdict())


def read_questions(text: str) -> Questions:
    """Read what `to_json` wrote."""
    return Questions(**json.loads(text))


Facts = Mapping[str, Any]
"""The answer of a host: topic → what was found, as JSON; the topics are those of `hosts.machine.facts`."""
