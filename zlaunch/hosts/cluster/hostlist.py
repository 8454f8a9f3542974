"""Slurm's short form of many host names: `gpu[01-03,7],login` (`scontrol show hostnames`)."""

import itertools
import re
from collections.abc import Iterator

from zlaunch.errors import WrongUsage

_PART = r"[^\[\],]+|\[[^\[\]]*\]"
_RANGE = r"(\d{1,9})(?:-(\d{1,9}))?"
MOST_HOSTS = 1 << 16


def expand(text: str) -> tuple[str, ...]:
    """Write out all host names, in their order; raise WrongUsage for what is not such a list."""
    names = tuple(itertools.islice(_expanded_hosts(text), MOST_HOSTS))
    if not names:
        raise WrongUsage(f"`{text}` is not a list of hosts")
    return names


def _expanded_hosts(text: str) -> Iterator[str]:
    for term in re.split(r",(?![^\[]*\])", text):
        parts = re.findall(_PART, term)
        if not term or "".join(parts) != term:
            raise WrongUsage(f"`{text}` is not a list of hosts")
        choices = [_expanded_part(part, text) for part in parts]
        yield from ("".join(words) for words in itertools.product(*choices))


def _expanded_part(part: str, text: str) -> list[str]:
    """Write out a part of a name, such as `[01-03,7]`."""
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for term in part[1:-1].split(","):
        match = re.fullmatch(_RANGE, term)
        if match is None:
            raise WrongUsage(f"`{text}` is not a list of hosts")
        first, last = match[1], match[2] or match[1]
        numbers = range(int(first), min(int(last), int(first) + MOST_HOSTS) + 1)
        found += [str(number).zfill(len(first)) for number in numbers]
    return found
