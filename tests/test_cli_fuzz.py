"""A small part of the fuzzing of the command line; `python -m bench.cli_fuzz` does the rest."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.cli_fuzz import VERBS, inputs, run

SLOW = {"plan", "estimate"}
"""Verbs that may rehearse."""


@pytest.mark.job
def test_malformed_inputs_end_without_a_traceback() -> None:
    verbs = [verb for verb in VERBS if verb not in SLOW]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, inputs(60, 1, verbs)))
    assert [(one.input, one.argv, one.wrong) for one in results if one.wrong] == []
    assert {one.status for one in results} >= {0, 2, 65, 66}
