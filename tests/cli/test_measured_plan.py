"""Command lines of `zlaunch plan` that are refused before anything runs."""

from pathlib import Path

import pytest

from zlaunch.cli import program
from zlaunch.errors import WrongUsage


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("plan", "nothing to plan", "or a script, with `--measure`"),
        ("plan m --top 2", "`--top` has no effect without `--measure`", "add `--measure`"),
        ("plan m --budget 5m", "`--budget` has no effect without `--measure`", "add `--measure`"),
        ("plan own_loop --on L40", "`own_loop` is a program", "`--measure` runs its best configurations"),
        ("plan --measure", "nothing to measure", "name one script"),
        ("plan own_loop --measure --on L40", "`--measure` runs on this machine", "leave out `--on`"),
        ("plan own_loop --measure --set zero_optimization.stage=1", "`zlaunch plan` chooses it", "leave out"),
        ("plan own_loop --measure -- --deepspeed_config c.json", "does not read one", "leave out"),
        ("plan config.json --measure -- --deepspeed_config c.json", "does not read one", "leave out"),
        ("plan own_loop --measure --lora 8", "own_loop.py decides itself how it trains", "change the script"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WrongUsage) as raised:
        program(words.split(), prog_name="zlaunch", standalone_mode=False)
    assert message in raised.value.message
    assert hint in str(raised.value.hint)
