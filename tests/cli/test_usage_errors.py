"""What Typer's parser refuses, in the words of zlaunch."""

from typing import Any

import pytest
import typer

from zlaunch.cli import program
from zlaunch.cli.usage_errors import as_wrong_usage

PARSER_ERROR: Any = typer.BadParameter.__base__


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("train --stage 4", "`--stage 4`: expected 0, 1, 2, 3 or auto", "see `zlaunch train --help`"),
        ("train --on-stall sotp", "`--on-stall sotp`: expected report or stop", "did you mean `stop`?"),
        ("train --max-restarts x", "`--max-restarts`: expected a whole number", "see `zlaunch train --help`"),
        ("estimate m --nodes 0", "`--nodes`: expected at least 1", "see `zlaunch estimate --help`"),
        ("train --stage", "`--stage` needs a value", None),
        ("runs rerun", "`zlaunch runs rerun` needs ID", "see `zlaunch runs rerun --help`"),
        (
            "runs show a b",
            "`zlaunch runs show` takes no further argument: b",
            "see `zlaunch runs show --help`",
        ),
        ("frobnicate", "no such command 'frobnicate'", "see `zlaunch --help`"),
        ("doctor --prot 1", "zlaunch doctor has no option `--prot`", "did you mean `--port`?"),
        (
            "estimate m --no-ask",
            "zlaunch estimate has no option `--no-ask`",
            "it is an option of `zlaunch train`",
        ),
        (
            "plan m --no-levers",
            "zlaunch plan has no option `--no-levers`",
            "it is an option of `zlaunch estimate`",
        ),
        (
            "estimate m --optim adafactor",
            "zlaunch estimate has no option `--optim`",
            "arguments of the script go after `--`: `zlaunch estimate … -- --optim …`",
        ),
    ],
)
def test_a_usage_error_says_what_is_expected(words: str, message: str, hint: str | None) -> None:
    with pytest.raises(PARSER_ERROR) as caught:
        program(words.split(), prog_name="zlaunch", standalone_mode=False)
    error = as_wrong_usage(caught.value)
    assert (error.message, error.hint) == (message, hint)
