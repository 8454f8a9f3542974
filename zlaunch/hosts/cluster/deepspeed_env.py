"""`.deepspeed_env`: variables that DeepSpeed's runner gives to the ranks on other hosts.

The runner reads the file in the home directory and in the directory that it runs in. From a directory that it
cannot quote it is started elsewhere, so zlaunch reads the file of that directory in its place.
"""

from collections.abc import Mapping
from pathlib import Path

from zlaunch.errors import Finding, InputMissing, Place, Refused
from zlaunch.hosts.rank_environment import Variable, is_name
from zlaunch.secrets import is_secret, remember

_CODE = "bad-deepspeed-env"


def read_deepspeed_env(directory: Path, environ: Mapping[str, str]) -> dict[str, Variable]:
    """Read the file of a directory, if there is one; raise Refused with every line that cannot be read."""
    file = directory / environ.get("DS_ENV_FILE", ".deepspeed_env")
    if not file.is_file():
        return {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "not a text file")
        raise InputMissing(f"cannot read `{file.name}`: {reason}") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    findings = [
        Finding(_CODE, *wrong, place=Place(str(file), number, 1, line, len(line)))
        for number, line in numbered
        if (wrong := _wrong(line)) is not None
    ]
    if findings:
        raise Refused(findings)
    variables = {}
    for _, line in numbered:
        name, value = _split(line)
        remember(value, name)
        variables[name] = Variable(value, f"`{file.name}`", is_secret=is_secret(name, value))
    return variables


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip(), value.strip()


def _wrong(line: str) -> tuple[str, str] | None:
    """What keeps a line from being read, and what to type."""
    name, value = _split(line)
    if "=" not in line or not is_name(name):
        return f"`{line}` is not `NAME=VALUE`, which DeepSpeed's runner reads", "write `NAME=VALUE`"
    if set('$`\\"') & set(value):
        message = f"zlaunch reads this file itself here, and does not expand `{line}`, as a shell would"
        return message, "write the value itself, or use a directory without spaces and quotes in its path"
    return None
