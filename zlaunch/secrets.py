"""Recognize what is never written to a file."""

import re

_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|(?<![A-Z])(PAT|PASS|PWD)(?![A-Z])",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|\b(hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[\w-]{16,}"
)
"""A URL with a password, and tokens of well-known services."""

_DIRECTORIES = ("PWD", "OLDPWD")


def is_secret(name: str, value: str = "") -> bool:
    """Whether the name of a variable or an argument, or its value, suggests a secret."""
    by_name = name not in _DIRECTORIES and _NAME.search(name) is not None
    return by_name or _VALUE.search(value) is not None
