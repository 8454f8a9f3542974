"""Ask Slurm for nodes that it has taken out of service, and why."""

import re
from collections.abc import Sequence

from zlaunch.process import output_of

ANSWER_SECONDS = 5.0
"""A job that Slurm ends has 30 s by default."""

_STATE = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)")
_REASON = re.compile(r"\bReason=(.*?)(?: \[[^\]]*\])?(?: \w+=|$)")
_GONE = re.compile("DOWN|FAIL|NOT_RESPONDING")


def nodes_down(names: Sequence[str]) -> dict[str, str]:
    """Return those of some nodes that are down → state and reason; none if Slurm does not answer."""
    said = output_of(["scontrol", "show", "--oneliner", "node", ",".join(names)], ANSWER_SECONDS) or ""
    return {name: words for line in said.splitlines() for name, words in _read(line)}


def _read(line: str) -> list[tuple[str, str]]:
    found, reason = _STATE.match(line), _REASON.search(line)
    if found is None or not _GONE.search(found[2]):
        return []
    return [(found[1], f"{found[2]}{f', {reason[1]}' if reason else ''}")]
