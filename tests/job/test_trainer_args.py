import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.job.args import ScriptArgs
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, TrainerArgs, read_arguments
from zlaunch.job.trainer_releases import DEFAULTS


def _read(*argv: str) -> TrainerArgs:
    return read_arguments(ScriptArgs.of(argv))[0]


@each("name", DEFAULTS)
def test_what_nobody_set_is_the_trainers_default(name: str) -> None:
    assert TrainerArgs()[name] == Argument(
        DEFAULTS[name], Source(SourceKind.TRAINER_DEFAULT, f"default of `--{name}`")
    )


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--learning_rate", "3e-4"], "learning_rate", 3e-4),
        (["--learning_rate=3e-4"], "learning_rate", 3e-4),
        (["--max-steps", "-1"], "max_steps", -1),
        (["--warmup_steps", "0.1"], "warmup_steps", 0.1),
        (["--optim", "adafactor"], "optim", "adafactor"),
        (["--bf16"], "bf16", True),
        (["--bf16", "--fp16"], "bf16", True),
        (["--bf16", "False"], "bf16", False),
        (["--bf16=yes"], "bf16", True),
        (["--max_steps", "5", "--max_steps", "6"], "max_steps", 6),
    ],
)
def test_an_argument_is_read_from_the_command_line(argv: list[str], name: str, value: object) -> None:
    assert repr(_read(*argv)[name].value) == repr(value)


def test_an_argument_on_the_command_line_was_given() -> None:
    assert _read("--max_steps", "5")["max_steps"] == Argument(5, Source.argument("max_steps"), given=True)


def test_an_argument_on_the_command_line_goes_before_the_scripts_default() -> None:
    own = {"max_steps": Argument(9, Source(SourceKind.SCRIPT, "`max_steps` in train.py:3"))}
    assert read_arguments(ScriptArgs.of(["--max_steps", "5"]), own)[0]["max_steps"].value == 5


def test_a_scripts_default_goes_before_the_trainers() -> None:
    own = Argument(9, Source(SourceKind.SCRIPT, "`max_steps` in train.py:3"))
    assert read_arguments(ScriptArgs.of([]), {"max_steps": own})[0]["max_steps"] == own


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["--max_steps", "many"], "an integer"),
        (["--max_steps", "1.5"], "an integer"),
        (["--max_steps"], "an integer"),
        (["--learning_rate", "fast"], "a number"),
        (["--bf16", "maybe"], "true or false"),
        (["--optim"], "a string"),
        (["--max_steps", "9" * 5000], "an integer"),
    ],
)
def test_an_argument_of_the_wrong_type_is_found(argv: list[str], kind: str) -> None:
    assert [finding.message.endswith(kind) for finding in read_arguments(ScriptArgs.of(argv))[1]] == [True]


def test_an_argument_of_the_wrong_type_keeps_its_default() -> None:
    assert _read("--max_steps", "many")["max_steps"].value == -1


def test_an_argument_that_does_not_matter_here_is_no_finding() -> None:
    assert read_arguments(ScriptArgs.of(["--dataset", "x", "--seed", "many"]))[1] == []


@given(st.lists(st.text() | st.sampled_from([f"--{name}" for name in DEFAULTS])))
def test_any_command_line_is_arguments_and_findings(argv: list[str]) -> None:
    args, _ = read_arguments(ScriptArgs.of(argv))
    assert {name: type(args[name].value) for name in DEFAULTS} == {
        name: type(default) for name, default in DEFAULTS.items()
    }


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 400, "1e400", "9223372036854775808"])
def test_a_number_that_no_trainer_can_count_to_is_a_finding(text: str) -> None:
    args, findings = read_arguments(ScriptArgs.of(("--max_steps", text)))
    assert [(one.code, one.where) for one in findings] == [("bad-argument", "--max_steps")]
    assert args["max_steps"].value == -1
