"""Values as strict JSON: what `--json` prints."""

import json

from zlaunch.json_lines import plain
from zlaunch.secrets import hide_in


def to_json(value: object, indent: int | None = 2) -> str:
    """Write a value as JSON: a dataclass with all its fields, a path as text, NaN and infinity as strings.

    Without an indent, it is one compact line. Secrets are hidden.
    """
    separators = None if indent else (",", ":")
    return json.dumps(hide_in(plain(value, strict=True)), indent=indent, separators=separators)
