from zlaunch.diagnosis.log_text import compiler_error
from zlaunch.diagnosis.render import LINES, ROW, height, shorten, verdict_lines
from zlaunch.diagnosis.verdict import Verdict

LONG = "word " * 200
FACT = "a fact of several words that is too long for a row of a terminal, and so takes two"
ADVICE = "`--set some.long.key=value --set some.other.key=value`: because of several good reasons"


def test_a_verdict_names_the_step_of_the_rank_that_failed() -> None:
    verdict = Verdict("code", "a cause", 1, "w1", "backward", when="in step 3")
    assert "  began     rank 1 on w1, backward, in step 3" in verdict_lines(verdict, "failed", 80)


def test_what_fits_is_left_as_it_is() -> None:
    short = Verdict("code", "a cause", 0, "w1", "training", ("a fact",), ("some advice",))
    assert shorten(short) == short


def test_a_long_verdict_is_brought_to_ten_lines() -> None:
    assert height(shorten(Verdict("code", LONG, facts=(LONG,) * 5, advice=(ADVICE,) * 3))) <= LINES


def test_facts_are_shortened_before_advice_is_left_out() -> None:
    made = shorten(Verdict("code", "a cause", facts=(FACT,) * 3, advice=(ADVICE,) * 2))
    assert made.advice == (ADVICE, ADVICE)
    assert made.facts == (FACT, *(made.facts[1:]))
    assert all(len(fact) <= ROW for fact in made.facts[1:])


def test_what_is_to_be_typed_is_never_cut() -> None:
    made = shorten(Verdict("code", LONG, facts=(FACT,) * 3, advice=(ADVICE,) * 3))
    assert made.advice
    assert {*made.advice} == {ADVICE}


def test_advice_without_a_downside_ends_the_shortening_too() -> None:
    advice = ("stop the other program; then start with `--stage 3`: it partitions the parameters",)
    assert height(shorten(Verdict("code", LONG, facts=(FACT,) * 3, advice=advice * 4))) <= LINES


def test_more_than_three_facts_are_too_many() -> None:
    assert shorten(Verdict("code", "a cause", facts=tuple("abcde"))).facts == ("a", "b", "c")


def test_of_a_compilers_error_the_words_are_kept_and_of_its_path_the_end() -> None:
    folders = "/home/ann/.venv/lib/python3.11/site-packages/deepspeed/ops/csrc"
    said = f"[1/3] c++ -c {folders}/a.cpp\n{folders}/includes/simd.h:3:32: error: 'x' was not declared\n"
    assert compiler_error(said) == "…/includes/simd.h:3:32: error: 'x' was not declared"
