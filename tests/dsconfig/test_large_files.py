"""Large files: the time for a ds_config grows with its length, and no faster."""

import json
import time
from collections.abc import Callable

from tests.each import each
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.schema_check import MOST_UNKNOWN
from zlaunch.dsconfig.text.parser import parse

BATCH = '"train_micro_batch_size_per_gpu": 1'
KINDS: dict[str, Callable[[int], str]] = {
    "unknown keys": lambda number: json.dumps({f"key_{n}": n for n in range(number)}, indent=1),
    "unknown keys of ZeRO": lambda number: json.dumps(
        {"zero_optimization": {f"stage3_key_{n}": n for n in range(number)}}
    ),
    "arguments": lambda number: json.dumps(
        {"optimizer": {"type": "AdamW", "params": {f"arg_{n}": 0.5 for n in range(number)}}}
    ),
    "objects": lambda number: json.dumps({f"key_{n}": {"a": [{"b": n}]} for n in range(number)}),
    "comments": lambda number: "{" + BATCH + "\n// mine" * number + "\n}",
    "duplicates": lambda number: "{" + ", ".join([BATCH] * number) + "}",
    "words of Python": lambda number: "{" + ",\n".join(f'"key_{n}": True' for n in range(number)) + "}",
    "no commas": lambda number: "{" + "\n".join(f'"key_{n}": 1' for n in range(number)) + "}",
}


def seconds(kind: str, number: int) -> float:
    text = KINDS[kind](number)
    began = time.process_time()
    validate_document(parse(text, "ds.json"))
    return time.process_time() - began


@each("kind", KINDS)
def test_four_times_as_many_keys_take_about_four_times_as_long(kind: str) -> None:
    seconds(kind, 100)
    small, large = (min(seconds(kind, number) for _ in range(2)) for number in (400, 1600))
    assert large < 8 * small + 0.05


def test_unknown_keys_are_counted_from_the_hundredth_on() -> None:
    document = parse(
        "{" + BATCH + "".join(f', "key_{n}": 1' for n in range(MOST_UNKNOWN + 7)) + "}", "ds.json"
    )
    *first, last = validate_document(document)
    assert (len(first), last.message.split(",")[0]) == (
        MOST_UNKNOWN,
        "7 more keys at the top level are none of DeepSpeed's",
    )
