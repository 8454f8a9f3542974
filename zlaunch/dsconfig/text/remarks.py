"""What a text has that not everybody reads, and the edits that would make it strict JSON."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from zlaunch.dsconfig.text.document import Edit, KeyPath, dotted, place_at
from zlaunch.dsconfig.text.tokens import Token
from zlaunch.errors import Finding, Fix, FixKind, Place, Severity

_PLAIN = Fix(FixKind.PLAIN)


@dataclass
class ParseRemarks:
    """What one reading of one text finds."""

    file: str
    text: str
    findings: list[Finding] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    def space(self, match: re.Match[str]) -> None:
        """Say what looks like a space and is none to JSON."""
        odd = re.search(r"[^ \t\r\n\ufeff]+", match.group())
        if odd is not None:
            start = match.start() + odd.start()
            self.remark("odd-space", "a space of another alphabet is", start)
            self.edits.append(Edit(start, match.start() + odd.end(), " "))

    def no_number(self, token: Token) -> None:
        """Report what is text for DeepSpeed and a number for others; which one was meant is a choice."""
        self.findings.append(
            Finding(
                code="misread-value",
                message=f"JSON has no `{token.text}`: DeepSpeed takes it for text, the Trainer for a number",
                hint="write a number",
                place=self._at(token),
            )
        )

    def duplicate(self, path: KeyPath, token: Token, first_offset: int) -> None:
        """Report a key that stands a second time in its object."""
        first = place_at(self.file, self.text, first_offset)
        self.findings.append(
            Finding(
                code="duplicate-key",
                where=dotted(path),
                message=f"`{path[-1]}` stands here a second time; the first is on line {first.line}. "
                "DeepSpeed refuses both, the Trainer takes the last",
                hint="keep one of the two",
                place=self._at(token),
            )
        )

    def comment(self, start: int, end: int) -> None:
        """Drop a comment, with its line if nothing else is on it."""
        self.remark("comment", "a comment is", start)
        line_start = self.text.rfind("\n", 0, start) + 1
        begin = start - len(self.text[line_start:start]) + len(self.text[line_start:start].rstrip(" \t"))
        alone = begin == line_start and self.text[end : end + 1] in ("\n", "")
        self.edits.append(Edit(begin, end + 1 if alone else end, ""))

    def lenient(self, code: str, what: str, token: Token, value: str) -> None:
        """Put a piece of text into double quotes."""
        self.remark(code, what, token.start)
        self.edits.append(Edit(token.start, token.end, json.dumps(value, ensure_ascii=False)))

    def remark(self, code: str, what: str, offset: int) -> None:
        """Say once for each kind what only DeepSpeed reads."""
        if any(remark.code == code for remark in self.findings):
            return
        self.findings.append(
            Finding(
                code=code,
                message=f"{what} read by DeepSpeed, but not by transformers or accelerate",
                hint="write strict JSON, or start the job with `zlaunch train`, which does",
                severity=Severity.ADVICE,
                place=place_at(self.file, self.text, offset),
                mending=_PLAIN,
            )
        )

    def misread(self, token: Token, meant: Any, why: str) -> None:
        """Report what DeepSpeed does not read as it was meant."""
        written = json.dumps(meant, ensure_ascii=False)
        self.edits.append(Edit(token.start, token.end, written))
        self.findings.append(
            Finding(
                code="misread-value",
                message=f"`{token.text}` {why}",
                hint=f"write `{written}`",
                place=self._at(token),
                mending=_PLAIN,
            )
        )

    def _at(self, token: Token) -> Place:
        return place_at(self.file, self.text, token.start, len(token.text))
