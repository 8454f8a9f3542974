"""Read a ds_config from a file, stdin, or base64 on a command line.

DeepSpeed reads ds_config files with hjson, transformers and accelerate with strict JSON, so a file can
work in one and fail in the other. `parser` accepts both, makes `2e8` an integer as DeepSpeed does, keeps
the first of duplicate keys, and reports all of it.
"""

import base64
import binascii
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, InputMissing, Place, Refused

STDIN, BASE64 = "<stdin>", "<base64>"


def read(name: str | Path) -> Document:
    """Read a ds_config from a file, from stdin for `-`, or from base64 as launchers pass it on.

    Raises InputMissing if it cannot be read, Refused with the place of a syntax error.
    """
    if not str(name):
        raise InputMissing("the name of a ds_config is empty", "is a variable of the shell unset?")
    if str(name) == "-":
        return parse(_decode(sys.stdin.buffer.read(), STDIN), STDIN)
    try:
        return parse(_decode(Path(name).read_bytes(), str(name)), str(name))
    except OSError as error:
        if (text := _from_base64(str(name))) is not None:
            return parse(text, BASE64)
        raise InputMissing(
            f"cannot read the ds_config `{name}`: {error.strerror}", _similar_file(Path(name))
        ) from None


def _similar_file(path: Path) -> str | None:
    """Suggest a file beside a name that does not exist."""
    with suppress(OSError):
        if not path.exists():
            beside = [file.name for file in path.parent.iterdir() if file.is_file()]
            if near := get_close_matches(path.name, beside, 1):
                return f"did you mean `{path.with_name(near[0])}`?"
    return None


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Refused([Finding("not-text", "not UTF-8 text", place=Place(file, line, 1))]) from None


def _from_base64(text: str) -> str | None:
    try:
        decoded = base64.urlsafe_b64decode(text).decode()
    except (binascii.Error, ValueError):
        return None
    if decoded.lstrip().startswith("{"):
        return decoded
    return None
