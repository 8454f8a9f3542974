"""Random mutants of valid ds_configs get the verdict of the real DeepSpeed. `bench/config_fuzz.py` tries 10,000."""

import functools

from bench.config_fuzz import Verdict, verdicts

NUM_MUTANTS, SEED = 400, 11


@functools.cache
def compared() -> list[Verdict]:
    return list(verdicts(NUM_MUTANTS, SEED))


def test_no_mutant_that_deepspeed_refuses_passes() -> None:
    assert [(one.mutant.text, one.refusal) for one in compared() if one.is_missed] == []


def test_hardly_any_mutant_that_deepspeed_accepts_is_called_an_error() -> None:
    false = [(one.mutant.text, one.codes) for one in compared() if one.is_false]
    assert len(false) <= 0.005 * NUM_MUTANTS, false


def test_the_mutants_are_of_all_kinds() -> None:
    kinds = {(one.refusal is None, one.worst) for one in compared()}
    assert {(True, "valid"), (True, "ignored"), (True, "misspelled"), (False, "error")} <= kinds
