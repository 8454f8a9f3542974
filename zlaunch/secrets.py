"""Recognize what is never written to a file."""

import re

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of variables and arguments whose values are never written to a file."""


def is_secret(name: str) -> bool:
    """Whether the name of a variable or an argument suggests a secret value."""
    return SECRET.search(name) is not None
