"""Which zlaunch runs on a host: all hosts of a job must run the same code, since they exchange its values.

Checkouts of one release differ, so it is known by its version and by a hash of its code.
"""

import hashlib
from functools import cache
from pathlib import Path

import zlaunch

MEMBER = "code"
"""The member of the first message of each host that has it."""


@cache
def own_code() -> str:
    """Return the version of this zlaunch and a hash of its code."""
    digest, package = hashlib.blake2b(digest_size=4), Path(zlaunch.__file__).parent
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\n".encode())
        digest.update(file.read_bytes())
    return f"{zlaunch.__version__}, code {digest.hexdigest()}"


def why_other(code: object) -> str | None:
    """Say how the zlaunch of a host differs from this one; None if it does not."""
    if code == own_code():
        return None
    if not isinstance(code, str):
        return "has another zlaunch, which does not say its version"
    return f"has another zlaunch ({code}) than this host ({own_code()})"
