"""A small part of the fuzzing of the command line; `python -m bench.cli_fuzz` does the rest."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.cli_fuzz import VERBS, harm, inputs, run

SLOW = {"plan", "estimate"}
"""Verbs that may rehearse."""


@pytest.mark.job
def test_malformed_inputs_end_without_a_traceback() -> None:
    verbs = [verb for verb in VERBS if verb not in SLOW]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, inputs(60, 1, verbs)))
    assert [(one.input, one.argv, one.wrong) for one in results if one.wrong] == []
    assert {one.status for one in results} >= {0, 2, 65, 66}


@pytest.mark.parametrize(
    ("verb", "status", "after", "said"),
    [
        ("checkpoint universal", 0, {"out/a": b"1", "new/a": b"2"}, ""),
        ("checkpoint universal", 69, {"out/a": b"1", "new/a": b"2"}, "it left new/a"),
        ("checkpoint universal", 0, {"out/a": b"1", ".new.partial": None}, "it left .new.partial"),
        ("checkpoint universal", 0, {"out/a": b"2"}, "it changed out/a"),
        ("checkpoint export", 65, {}, "it changed out/a"),
        ("checkpoint verify", 0, {"out/a": b"1", "new": None}, "it left new"),
        ("checkpoint prune", 0, {}, ""),
    ],
)
def test_a_conversion_may_only_add_what_it_has_completed(
    verb: str, status: int, after: dict[str, bytes | None], said: str
) -> None:
    assert harm(verb, status, {"out/a": b"1"}, after) == said
