"""Judge what is secret, by its name or by its value, and hide it in everything that is shown.

`console` hides secrets in every text, `cli.views.dump` in JSON, by the names in it. What was secret where it
was read, as a variable, an argument or a key, is hidden wherever else it appears, such as in an exception.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

SECRET = "ZLAUNCH_SECRET"  # noqa: S105 - the name of a variable
"""The variable with the secret of a job, the same on every node; it is never on a command line."""

HIDDEN = "(hidden)"
"""Shown in place of a secret."""

_Mask = Callable[[str], str]
"""What is shown in place of a secret."""

_SIGN = "token|key|secret|pass|pwd|credential|auth|cookie|webhook|signature|_pat|jwt|dsn"
"""In every name that suggests a secret, and in some others."""
_LIKELY = re.compile(_SIGN, re.IGNORECASE)
_PARTS = ("token", "secret", "password", "passwd", "passphrase", "credential", "cookie", "webhook")
_WORDS = (
    *("auth", "oauth", "authorization", "dsn", "jwt", "pass", "pat", "pwd", "signature", "sshpass"),
    *("key", "keys", "apikey", "apikeys", "accesskey", "secretkey", "sshkey"),
)
_OF_TEXT = re.compile(
    r"(?<![a-z])(?:(?:pad|bos|eos|unk|sep|cls|mask|image|video|audio|special|stop|start|end)_?tokens?"
    r"|(?:de|pre)?tokeni[sz][a-z]*|tokens?_(?:id|type|level|class)[a-z]*)(?![a-z])"
)
"""Tokens of a text, which are no secret: `pad_token`, `tokenizer_name`."""
_BARE = ("auth", "key", "keys", "pass", "pat", "signature")
"""Common words of JSON and messages; as an option or a variable, they suggest a secret."""
_REASONS = ("why", "source")
"""Members beside a value that say where it comes from."""
_DIRECTORIES = ("PWD", "OLDPWD")

_VALUE = re.compile(
    r"(?<=://)[^/\s'\"`<>?#]*:[^/\s'\"`<>]*(?=@)|(?<=https://)[^/\s'\"`<>?#:@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*-----)?"
    r"|(?<![A-Za-z0-9])(?:(?:hf_|gh[opsur]_|npm_|r8_)[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|(?:github_pat_|glpat-|sk-|xox[abeprs]-|AIza|dckr_pat_|pypi-|nvapi-)[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)|(?<=hooks\.slack\.com/services/)[\w/]+"
)
"""User and password in a URL, private keys, and tokens of well-known services."""

_NO_SECRET = (
    r"(?i)[-+\d.e]+|true|false|none|null|auto|VALUE|\.\.\.|…|\(hidden\)"  # noqa: S105 - a pattern
    r"|(?-i:\$(?:\{?[A-Z_][A-Z0-9_]*\}?)?)|<[^>]*>|%\w+%|\*+"
)
"""Numbers, switches and placeholders: `--max_tokens 5`, `HF_TOKEN=VALUE`, `--stop_token <end>`."""

_COMMON = r"(?s)[a-z]{1,8}|[a-z]+(?:[._][a-z]+)+|~.*|\.{0,2}/.*/.*|/[a-z]+|.{0,5}"
"""Words, names of columns, and paths: hidden beside a name, but not wherever they appear."""

_COLUMN_OPTION = (
    r"(?:--)?(?!.*(?:api|access|secret|private|ssh|auth|account|token|pass|sign|encrypt))[a-z_.-]*keys?"
)
_COLUMN = r"[a-z]{1,13}|[a-z]+(?:_[a-z]+)+"
"""Columns of datasets, and the options that name them: `--prompt_key question`."""

_ASSIGNED = (
    rf"(?i)(?:{_SIGN})[\w.-]{{0,99}}(?![\w.-])(?P<close>\\?[\"']?)(?P<between>[ \t]*[=:](?![=:])[ \t]*|[ ]+)"
    r"(?P<open>\\?[\"'`]?)(?P<scheme>(?:Bearer|Basic|Token)\s+)?"
    r"(?P<value>(?<=\")[^\"\\\n]+|(?<=')[^'\\\n]+|[^\s,;'\"`&(){}\[\]\\]+)"
)
_LONGEST_NAME = 100
_PASSWORD_LETTERS = 12
"""A shorter word of letters alone behind a colon is taken for prose: `unknown-key: DeepSpeed has no …`."""
_LEAST_FINGERPRINT = 12
"""A shorter value could be found out by trying all that there are."""
_LONGEST_FINGERPRINT = 1 << 20
_LONGEST_SALT = 64
"""In bytes; blake2b takes no longer key."""
_ROUNDS = 10_000
"""Hashes of one value, about 3 ms, so that guessing is slow."""
_TAG_CHARACTERS = 3
"""At the start of a digest: 12 bits of a quick hash, without which no word of a log is hashed slowly."""
_IN_A_WORD = r"\w[^\s'\"`]*\w"
"""The parts of a value that stay together wherever it is printed."""
_HEADER = r"(?i)(?<=Authorization: )[^'\"`\\\n]+|(?<=Cookie: )[^'\"`\\\n]+"
_NAME = r"[+~]*[\w.-]+"
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=4096)
def _suggests_secret(name: str) -> bool:
    if _LIKELY.search(name) is None or name in _DIRECTORIES or name.endswith("Error"):
        return False
    text = _OF_TEXT.sub("", _NEW_WORD.sub("_", name).lower())
    if any(part in text for part in _PARTS):
        return True
    return any(word in _WORDS for word in re.split(r"[^a-z]+", text))


def is_secret(name: str, value: str = "") -> bool:
    """Whether the name of a variable or an argument, or its value, suggests a secret."""
    return _suggests_secret(name) or _VALUE.search(value) is not None


def assigned_secrets(assignments: Sequence[str]) -> list[str]:
    """Return the names in `NAME=VALUE` texts whose value is a secret."""
    split = (text.partition("=") for text in assignments)
    return [name for name, equals, value in split if equals and is_secret(name, value)]


def hide_in_text(text: str, mask: _Mask = lambda _: HIDDEN) -> str:
    """Hide what is secret by its value, beside a name that suggests a secret, or wherever it was read."""
    if (known := _KNOWN.pattern) is not None:
        text = known.sub(lambda match: mask(match[0]), text)
    for prints in _PRINTS:
        text = prints.hide(text, mask)
    return _hide_unknown(text, mask)


def _hide_unknown(text: str, mask: _Mask) -> str:
    text = _VALUE.sub(lambda match: mask(match[0]), text)
    if _LIKELY.search(text) is None:
        return text
    return _hide_assigned(re.sub(_HEADER, lambda match: mask(match[0]), text), mask)


def _hide_assigned(text: str, mask: _Mask) -> str:
    assigned, parts, done, start = re.compile(_ASSIGNED), [], 0, 0
    while (assignment := assigned.search(text, start)) is not None:
        if _assigns_secret(assignment):
            parts += [text[done : assignment.start("value")], mask(assignment["value"])]
            done = start = assignment.end()
        else:
            start = assignment.start("close")  # the value may be the name of the next one
    return "".join([*parts, text[done:]])


def _assigns_secret(assignment: "re.Match[str]") -> bool:
    name, between, value = _name_of(assignment), assignment["between"], assignment["value"]
    if not _is_hidden(name, value) or name in _BARE or value.endswith((":", "=")):
        return False
    if between.isspace():
        return name.startswith("-") and not value.startswith("-")
    is_words = name.isalpha() or (name.islower() and name.replace("-", "").isalpha())  # not X-Api-Key
    return not (":" in between and is_words and not assignment["close"] and _is_prose(value))


def _is_prose(value: str) -> bool:
    return re.fullmatch(_COMMON, value) is not None or (value.isalpha() and len(value) < _PASSWORD_LETTERS)


def _name_of(assignment: "re.Match[str]") -> str:
    """Return the whole name, which begins before the part that suggests a secret."""
    text, end = assignment.string, assignment.start("close")
    start = max(0, assignment.start() - _LONGEST_NAME)
    return re.split(r"[^\w.-]", text[start:end])[-1]


def _is_hidden(name: str, value: str) -> bool:
    if not _suggests_secret(name) or re.fullmatch(_NO_SECRET, value) is not None:
        return False
    return re.fullmatch(_COLUMN_OPTION, name) is None or re.fullmatch(_COLUMN, value) is None


def hide_arguments(words: Sequence[str]) -> list[str]:
    """Hide the secrets among the words of a command."""
    return [*_without_secrets(words, hide_in_text, lambda _: HIDDEN)]


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


def _without_secrets(
    words: Sequence[str], in_text: Callable[[str, _Mask], str], mask: _Mask
) -> Iterator[str]:
    flag = ""
    for word in words:
        name, is_given, value = word.partition("=")
        if is_given and re.fullmatch(_NAME, name) and _is_hidden(name, value):
            yield f"{name}={mask(value)}"
        elif flag and not word.startswith("-") and _is_hidden(flag, word):
            yield mask(word)
            if flag.endswith("s"):  # it may have several values
                continue
        else:
            yield in_text(word, mask)
        flag = ""
        if word.startswith("-") and not is_given:
            flag = word


def hide_in(value: object, name: str = "") -> object:
    """Hide the secrets in a JSON value, and all text below a name that suggests one."""
    if isinstance(value, Mapping):
        below = {key: name if _is_secret_member(name) else str(key) for key in value}
        return {key: child if key in _REASONS else hide_in(child, below[key]) for key, child in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(child, str) for child in value) and not _is_secret_member(name):
            return hide_arguments(value)
        return [hide_in(child, name) for child in value]
    if not isinstance(value, str):
        return value
    if _is_secret_member(name) and _is_hidden(name, value):
        return HIDDEN
    return hide_in_text(value)


def _is_secret_member(name: str) -> bool:
    return name not in _BARE and _suggests_secret(name)


class _Known:
    """Values that were secret where they were read."""

    def __init__(self) -> None:
        self.values: set[str] = set()
        self._num_compiled = 0
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> str:
        """Remember a value, unless it is too common to be hidden everywhere."""
        for text in (value, *value.split("\n"), value.partition(":")[2]):
            if _is_uncommon(text):
                self.values |= {text, shlex.quote(text), json.dumps(text)[1:-1]}
        return HIDDEN

    @property
    def pattern(self) -> "re.Pattern[str] | None":
        """Matches each of them as a whole word."""
        if self._num_compiled != len(self.values):
            longest_first = sorted(self.values, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(_as_word, longest_first)))
            self._num_compiled = len(self.values)
        return self._pattern


def _as_word(value: str) -> str:
    before = r"(?<!\w)" if value[0].isalnum() else ""
    after = r"(?!\w)" if value[-1].isalnum() else ""
    return f"{before}{re.escape(value)}{after}"


_KNOWN = _Known()


class Fingerprints(NamedTuple):
    """Salted hashes of secrets, by which they are recognized where they are not known any more."""

    salt: str
    digests: Mapping[int, Sequence[str]]
    """Number of characters → hashes of the secrets of that length."""

    @classmethod
    def of(cls, salt: str, digests: Mapping[str, Sequence[str]]) -> "Fingerprints":
        """Take them from a record; raise ValueError for a damaged one."""
        lengths = {int(length): known for length, known in digests.items()}
        if len(bytes.fromhex(salt)) > _LONGEST_SALT or max(lengths, default=0) > _LONGEST_FINGERPRINT:
            raise ValueError("damaged")
        return cls(salt, {length: known for length, known in lengths.items() if length > 1})

    def hide(self, text: str, mask: _Mask) -> str:
        """Hide what has one of the hashes."""
        for length, digests in self.digests.items():
            tags = {digest[:_TAG_CHARACTERS] for digest in digests}
            word = rf"(?<!\w)(?=(\w[^\s'\"`]{{{length - 2}}}\w)(?!\w))"
            for candidate in sorted(set(re.findall(word, text))):
                if not _is_uncommon(candidate) or _tag(self.salt, candidate) not in tags:
                    continue
                if _digest(self.salt, candidate) in digests:
                    text = text.replace(candidate, mask(candidate))
        return text


_PRINTS: list[Fingerprints] = []


@lru_cache(maxsize=1 << 16)
def _digest(salt: str, value: str) -> str:
    from hashlib import pbkdf2_hmac  # ranks import this module, and hash nothing

    slow = pbkdf2_hmac("sha256", value.encode("utf-8", "surrogateescape"), bytes.fromhex(salt), _ROUNDS)
    return _tag(salt, value) + slow.hex()


def _tag(salt: str, value: str) -> str:
    from hashlib import blake2b

    quick = blake2b(value.encode("utf-8", "surrogateescape"), key=bytes.fromhex(salt), digest_size=2)
    return quick.hexdigest()[:_TAG_CHARACTERS]


def _is_uncommon(text: str) -> bool:
    return re.fullmatch(_COMMON, text) is None and re.fullmatch(_NO_SECRET, text) is None


def fingerprints() -> Fingerprints:
    """Take the fingerprints of all that is secret here, with a salt of their own."""
    salt, digests = os.urandom(16).hex(), dict[int, list[str]]()
    words = {word for value in _KNOWN.values for word in re.findall(_IN_A_WORD, value)}
    for word in sorted(filter(_is_uncommon, words)):
        if len(word) >= _LEAST_FINGERPRINT:
            digests.setdefault(len(word), []).append(_digest(salt, word))
    return Fingerprints(salt, digests)


def remember_fingerprints(prints: Fingerprints) -> None:
    """Hide from now on what has these fingerprints."""
    if prints.digests and prints not in _PRINTS:
        _PRINTS.append(prints)


def remember(value: object, name: str = "") -> None:
    """Remember the secrets in variables, in a ds_config or in a record, so that no text shows them."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            remember(child, name if _is_secret_member(name) else str(key))
    elif isinstance(value, list | tuple):
        remember_arguments([word for word in value if isinstance(word, str)])
        for child in value:
            remember(child, name)
    elif isinstance(value, str):
        if _suggests_secret(name):
            _KNOWN.add(value)
        elif _VALUE.search(value) is not None:
            _hide_unknown(value, _KNOWN.add)


def remember_arguments(words: Sequence[str]) -> None:
    """Remember the secrets among the words of a command."""
    for _ in _without_secrets(words, _hide_unknown, _KNOWN.add):
        pass
