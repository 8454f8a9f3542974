"""A check as text, in 80 columns."""

from dataclasses import dataclass

import pytest

from zlaunch.cli.views.check import lines_of
from zlaunch.parity.verdict import Comparison, Distance, ParityVerdict, judge

SHORT = "layers.0.mlp.up_proj.weight"
LONG = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"


@dataclass(frozen=True)
class Checked:
    comparison: Comparison
    verdict: ParityVerdict
    steps: int = 3
    unchecked: tuple[str, ...] = ()


def shown(name: str) -> list[str]:
    distances = (
        Distance("gradient norm", 1, 0.5, 0.0),
        Distance("gradient", 1, 0.5, 0.0, name),
        Distance("update", 2, 0.26, 0.0, name, ratio=0.744),
    )
    comparison = Comparison(distances, 1, 1, "ZeRO")
    return list(lines_of(Checked(comparison, judge(distances, "fp32")), [("model", "m")]))


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_parameter_and_its_numbers_are_in_one_line() -> None:
    (line,) = (line for line in shown(SHORT) if line.startswith(SHORT) and "update" in line)
    assert line.split() == [SHORT, "update", "2", "2.6e-01", "1.0e-05", "0.744", "x"]


def test_a_long_name_has_a_line_of_its_own_and_none_is_wider_than_the_terminal() -> None:
    lines = shown(LONG)
    assert max(map(len, lines)) <= 80
    update = next(number for number, line in enumerate(lines) if line.startswith("  update"))
    assert lines[update - 1] == LONG
    assert lines[update].split() == ["update", "2", "2.6e-01", "1.0e-05", "0.744", "x"]
