"""What the codes of findings mean, apart from those of rules, which say it themselves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from zlaunch.config.rules import RULES

FILE: Final = Path(__file__).with_name("codes.json")
_TABLE: Final[Mapping[str, Any]] = json.loads(FILE.read_text("utf-8"))

LENIENT: Final[tuple[str, ...]] = tuple(_TABLE["lenient"])
"""Deviations from JSON that only DeepSpeed reads, besides comments."""

GENERAL: Final[Mapping[str, str]] = _TABLE["keys_and_values"]
"""Codes for single keys and values."""

ELSEWHERE: Final[Mapping[str, str]] = _TABLE["elsewhere"]
"""Codes for arguments and other files."""


def meaning(code: str) -> str:
    """Explain a code in a sentence or two; an unknown one by its own words."""
    of_rules = {rule.code: " ".join(rule.why.split()) for rule in RULES}
    lenient = dict.fromkeys(
        LENIENT, "DeepSpeed reads this, but it is not JSON: transformers and accelerate do not."
    )
    return {**of_rules, **GENERAL, **ELSEWHERE, **lenient}.get(code, code.replace("-", " "))
