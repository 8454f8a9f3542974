"""Prove to the other end of a connection that both know a secret, without sending it.

Each end makes a nonce, and answers that of the other one. This keeps strangers out; it encrypts nothing.
"""

import hmac
import secrets

SECRET = "ZLAUNCH_SECRET"  # noqa: S105 - the name of a variable
"""The variable with the secret of a job, the same on every node; it is never on a command line."""

LEADER, MEMBER = "leader", "member"
"""The two ends: the proof of one is none of the other."""

MOST_BYTES = 4096
"""A connection that has shown no proof may not send more."""


def new_nonce() -> str:
    """Make a text that is used once."""
    return secrets.token_hex(16)


def prove(secret: str, role: str, nonce: object) -> str:
    """Answer the nonce of the other end, which may have sent anything."""
    told = nonce if isinstance(nonce, str) else ""
    return hmac.new(_bytes(secret), _bytes(f"{role} {told}"), "sha256").hexdigest()


def is_proof(told: object, secret: str, role: str, nonce: str) -> bool:
    """Whether the other end knows the secret; takes the same time for every answer."""
    return isinstance(told, str) and hmac.compare_digest(_bytes(told), _bytes(prove(secret, role, nonce)))


def _bytes(text: str) -> bytes:
    """Encode any text: JSON, and a variable that is no UTF-8, may have half a character."""
    return text.encode("utf-8", "surrogatepass")
