import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.diagnosis.deaths import printed, raised, run
from tests.diagnosis.table import DEATHS
from tests.each import each
from zlaunch.config.validate import validate_mapping
from zlaunch.diagnosis.diagnose import SIGNATURES, diagnose
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.render import LINES, height, verdict_lines
from zlaunch.units import duration, gib

CASES = [
    pytest.param(code, evidence, id=f"{code}-{number}")
    for code, evidences in DEATHS.items()
    for number, evidence in enumerate(evidences)
]


@each(("code", "evidence"), CASES)
def test_each_death_is_known_by_its_signs(code: str, evidence: Evidence) -> None:
    assert diagnose(evidence).code == code


def test_a_collective_that_timed_out_is_blamed_on_the_rank_that_fell_behind() -> None:
    """Of a watchdog's messages, that is the rank with the lowest number of the collective."""
    blamed = [diagnose(evidence).rank for evidence in DEATHS["collective-timeout"]]
    assert blamed[3] == 1


def test_an_argument_that_zlaunch_added_is_not_blamed_on_the_user() -> None:
    usage = "sft.py: error: argument --bf16: expected one argument\n"
    died = run(printed(usage, 2, phase="starting"), job={"appended": ("--bf16", "--deepspeed", "ds.json")})
    verdict = diagnose(died)
    assert verdict is not None
    assert "zlaunch added `--bf16`; the other arguments are yours" in verdict.facts


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("ModuleNotFoundError", "No module named 'trl.gone'", "`trl` has no module `trl.gone`"),
        (
            "ModuleNotFoundError",
            "No module named 'datasets.load'; 'datasets' is not a package",
            "`datasets` is a file, so there is no `datasets.load`",
        ),
        ("ModuleNotFoundError", "No module named 'trl'", "`trl` is not installed in the Python of rank 0"),
        (
            "OSError",
            "/data/llama does not appear to have a file named config.json. Checkout https://huggingface.co",
            "`/data/llama` exists, but has no file `config.json`",
        ),
        (
            "EmptyDatasetError",
            "The directory at /data/sft doesn't contain any data files",
            "the folder `/data/sft` exists, but has no data files that `datasets` reads",
        ),
    ],
)
def test_what_is_there_is_not_called_missing(kind: str, message: str, cause: str) -> None:
    verdict = diagnose(run(raised(kind, message)))
    assert verdict is not None
    assert verdict.cause == cause


FROM = "\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"


def test_a_missing_module_is_named_though_another_error_was_raised_from_it() -> None:
    within = f"ModuleNotFoundError: No module named 'httpx'{FROM}"
    verdict = diagnose(run(raised("ModuleNotFoundError", "Could not import module 'Trainer'.", within)))
    assert verdict
    assert (verdict.cause.split()[0], verdict.advice) == ("`httpx`", ("`pip install httpx`",))


def test_an_exception_is_told_with_the_one_it_was_raised_from() -> None:
    verdict = diagnose(run(raised("ValueError", "bad data", f"KeyError: 'text'{FROM}")))
    assert verdict
    assert "caused by KeyError: 'text'" in verdict.facts


def test_every_signature_has_a_death() -> None:
    assert {one.code for one in SIGNATURES} == {*DEATHS}


def test_no_two_signatures_share_a_code() -> None:
    assert len({one.code for one in SIGNATURES}) == len(SIGNATURES)


@each("one", SIGNATURES, ids=lambda one: one.code)
def test_every_signature_says_in_a_line_what_the_death_is(one: object) -> None:
    assert len(one.what) > 15  # type: ignore[attr-defined]


@each(("code", "evidence"), CASES)
def test_no_verdict_is_longer_than_ten_lines(code: str, evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    assert height(verdict) <= LINES
    told = "".join("".join(verdict_lines(verdict, "failed after 3 min 05 s", 80)).split())
    assert [text for text in (*verdict.facts, *verdict.advice) if "".join(text.split()) not in told] == []


def numbers_of(evidence: Evidence) -> Iterator[str]:
    """Every number of the evidence, in each way of writing it."""
    for text in re.findall(r"\d+\.?\d*", repr(evidence)):
        yield text
        number = float(text)
        yield from (gib(number), *duration(number).split(), str(int(number)), str(int(number) >> 20))


@each(("code", "evidence"), CASES)
def test_every_number_of_a_fact_is_found_in_the_evidence(code: str, evidence: Evidence) -> None:
    known = {*numbers_of(evidence), *map(str, range(len(evidence.ranks) + 1)), gib(3 << 30)}
    found = [number for fact in diagnose(evidence).facts for number in re.findall(r"\d+\.?\d*", fact)]
    assert [number for number in found if number.rstrip(".") not in known] == []


@each(("code", "evidence"), CASES)
def test_advice_is_never_canned_for_what_is_already_on(code: str, evidence: Evidence) -> None:
    advice = " ".join(diagnose(evidence).advice)
    assert f"--stage {evidence.job.stage}`" not in advice
    assert not ("optimizer" in evidence.job.offload and "optimizer:cpu`: the optimizer's" in advice)


@each(("code", "evidence"), CASES)
def test_a_cause_is_a_sentence_without_its_full_stop(code: str, evidence: Evidence) -> None:
    assert not diagnose(evidence).cause.endswith(".")


@each(("code", "evidence"), CASES)
def test_a_verdict_can_be_written_as_json(code: str, evidence: Evidence) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(diagnose(evidence))))["code"] == code


def test_a_death_that_a_rule_foresees_is_told_as_the_rule_tells_it() -> None:
    """The rule speaks of the job's own numbers."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 3},
        },
    }
    (foreseen,) = (one for one in validate_mapping(config) if one.code == "too-few-buffers")
    (evidence, _) = DEATHS["too-few-buffers"]
    died = replace(evidence, job=replace(evidence.job, config=config))
    assert diagnose(died).cause == foreseen.message
