"""Recognize what is never written to a file, and hide it in what is passed on to others."""

import re
from collections.abc import Iterator, Mapping, Sequence

SECRET = "ZLAUNCH_SECRET"  # noqa: S105 - the name of a variable
"""The variable with the secret of a job, the same on every node; it is never on a command line."""

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


def assigned_secrets(assignments: Sequence[str]) -> list[str]:
    """Return the names in `NAME=VALUE` texts whose value is a secret."""
    split = (text.partition("=") for text in assignments)
    return [name for name, equals, value in split if equals and is_secret(name, value)]


HIDDEN = "(hidden)"
"""Shown in place of a secret."""

_ASSIGNED = re.compile(r"([\w.-]+)(\s*[=:]\s*(?:(?:Bearer|Basic)\s+)?|\s+)([^\s,;'\"`]+)")
_NUMBER = re.compile(r"[-+\d.e]+|true|false|none|null", re.IGNORECASE)


def hide_in_text(text: str) -> str:
    """Hide tokens and passwords of URLs in a text, and what is assigned to a name that suggests a secret."""
    return _ASSIGNED.sub(_without_value, _VALUE.sub(HIDDEN, text))


def _without_value(assignment: "re.Match[str]") -> str:
    name, between, value = assignment.groups()
    is_flag = name.startswith("--") or between.strip()
    if is_flag and _is_hidden(name, value):
        return f"{name}{between}{HIDDEN}"
    return assignment[0]


def _is_hidden(name: str, value: str) -> bool:
    """Whether to hide a value: not the number of `max_tokens`, a tokenizer, or what a KeyError says."""
    is_name = is_secret(name) and "tokenize" not in name.lower() and not name.endswith("Error")
    return is_name and value != HIDDEN and _NUMBER.fullmatch(value) is None


def hide_arguments(words: Sequence[str]) -> list[str]:
    """Hide the secrets among the words of a command."""
    return [*_without_secrets(words)]


def secret_arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments that may be secret, without their values: `--hub_token (hidden)`."""
    hidden = hide_arguments(words)
    secret = []
    for before, word, shown in zip(["", *hidden], words, hidden, strict=False):
        if word == shown:
            continue
        if shown == HIDDEN and before.startswith("-") and "=" not in before:
            secret.append(f"{before} {HIDDEN}")
        else:
            secret.append(shown)
    return secret


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    flag = ""
    for word in words:
        name, is_given, value = word.partition("=")
        if is_given and _is_hidden(name, value):
            yield f"{name}={HIDDEN}"
        elif flag and not word.startswith("-") and _is_hidden(flag, word):
            yield HIDDEN
        else:
            yield _VALUE.sub(HIDDEN, word)
        flag = ""
        if word.startswith("-") and not is_given:
            flag = word


def hide_in(value: object, name: str = "") -> object:
    """Hide the secrets in a JSON value, and all text below a name that suggests one."""
    if isinstance(value, Mapping):
        return {key: hide_in(child, str(key)) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [hide_in(child, name) for child in value]
    if not isinstance(value, str):
        return value
    if _is_hidden(name, value):
        return HIDDEN
    return hide_in_text(value)
