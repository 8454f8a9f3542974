"""Collect deviations from strict JSON, and the edits that remove them."""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

from zlaunch.dsconfig.text.document import Edit, KeyPath, Lines, dotted
from zlaunch.dsconfig.text.tokens import Token
from zlaunch.errors import Finding, Fix, FixKind, Place, Severity

_PLAIN = Fix(FixKind.PLAIN)


@dataclass
class ParseRemarks:
    """Findings and edits from one pass over a text."""

    file: str
    text: str
    findings: list[Finding] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    comments: list[Edit] = field(default_factory=list)
    """The edits that delete comments."""
    _reported: set[str] = field(default_factory=set)
    """The codes of which a remark was made."""

    @cached_property
    def lines(self) -> Lines:
        """The places of the text."""
        return Lines(self.file, self.text)

    def space(self, match: re.Match[str]) -> None:
        """Report a character that looks like a space but is not whitespace in JSON."""
        odd = re.search(r"[^ \t\r\n\ufeff]+", match.group())
        if odd is not None:
            start = match.start() + odd.start()
            self.remark("odd-space", "a non-ASCII space is", start)
            self.edits.append(Edit(start, match.start() + odd.end(), " "))

    def no_number(self, token: Token) -> None:
        """Report `NaN` and the like, which DeepSpeed reads as text and other readers as a number."""
        message = f"JSON has no `{token.text}`: DeepSpeed reads it as text, the Trainer as a number"
        self.findings.append(Finding("misread-value", message, "write a number", place=self._at(token)))

    def duplicate(self, path: KeyPath, token: Token, first_offset: int) -> None:
        """Report a duplicate key."""
        line = self.lines.place(first_offset).line
        message = f"duplicate key `{path[-1]}`; the first is on line {line}. DeepSpeed refuses duplicates, "
        message += "the Trainer uses the last"
        place = self._at(token)
        self.findings.append(
            Finding("duplicate-key", message, "keep one of the two", dotted(path), place=place)
        )

    def comment(self, start: int, end: int) -> None:
        """Report a comment; the edit deletes it, with its line if it is alone on it."""
        self.remark("comment", "a comment is", start, end, fix=Fix(FixKind.UNCOMMENT))
        line_start = self.text.rfind("\n", 0, start) + 1
        begin = start - len(self.text[line_start:start]) + len(self.text[line_start:start].rstrip(" \t"))
        line_end = re.match(r"\r?\n|\Z", self.text[end : end + 2])
        if begin == line_start and line_end is not None:
            end += line_end.end()
        self.comments.append(Edit(begin, end, ""))

    def lenient(self, code: str, what: str, token: Token, value: str) -> None:
        """Report text that is not in double quotes; the edit quotes it."""
        self.remark(code, what, token.start, token.end)
        self.edits.append(Edit(token.start, token.end, json.dumps(value, ensure_ascii=False)))

    def remark(self, code: str, what: str, offset: int, end: int | None = None, fix: Fix = _PLAIN) -> None:
        """Report what only DeepSpeed reads, once for each kind."""
        if code in self._reported:
            return
        self._reported.add(code)
        message = f"{what} accepted by DeepSpeed, but not by transformers or accelerate"
        hint = "write strict JSON, or start the job with `zlaunch train`, which writes it"
        first_line = self.text[offset : end or offset + 1].splitlines()[:1]
        place = self.lines.place(offset, max(1, len("".join(first_line))))
        self.findings.append(Finding(code, message, hint, "", Severity.ADVICE, place, fix=fix))

    def misread(self, token: Token, meant: object, why: str) -> None:
        """Report a value that DeepSpeed reads differently from what was meant."""
        written = json.dumps(meant, ensure_ascii=False)
        self.edits.append(Edit(token.start, token.end, written))
        message, hint = f"`{token.text}` {why}", f"write `{written}`"
        self.findings.append(Finding("misread-value", message, hint, place=self._at(token), fix=_PLAIN))

    def _at(self, token: Token) -> Place:
        return self.lines.place(token.start, len(token.text))
