"""Write an `aio` section into a ds_config; comments and layout stay."""

from collections.abc import Mapping
from pathlib import Path

from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.edit import add_member, fix_text
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Fix, FixKind, Refused
from zlaunch.files import write_back

AIO = "aio"


def merge_aio(file: Path, aio: Mapping[str, object]) -> Path | None:
    """Set the keys of `aio` in a file, and return the copy of the old one; None if nothing changes.

    Raises InputMissing or Refused for a file that cannot be read, Unavailable if it cannot be written.
    """
    document = read(file)
    merged = merged_aio(document, aio)
    if merged.text == document.text:
        return None
    return write_back(file, merged.text, keep=True)


def merged_aio(document: Document, aio: Mapping[str, object]) -> Document:
    """Set the keys in a document; other keys of the section stay."""
    section = document.value.get(AIO)
    if section is None and AIO not in document.value:
        return _edited(document, add_member(document, (), AIO, dict(aio)))
    if not isinstance(section, dict):
        finding = Finding("bad-type", "`aio` must be an object", 'write `"aio": {}`', where=AIO)
        raise Refused([document.locate(finding)])
    for key, value in aio.items():
        if key not in document.value[AIO]:
            document = _edited(document, add_member(document, (AIO,), key, value))
        elif document.value[AIO][key] != value:
            document = _edited(document, fix_text(document, (AIO, key), Fix(FixKind.WRITE, value)))
    return document


def _edited(document: Document, text: str) -> Document:
    return parse(text, document.file)
