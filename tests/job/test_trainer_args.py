import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, TrainerArgs, flags, read_arguments, take_ds_config
from zlaunch.job.trainer_releases import DEFAULTS

DS_FLAGS = ["--deepspeed", "--deepspeed_config", "--deepspeed-config"]

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: "deepspeed" not in name)
values = st.text("abc0189./,-=", max_size=6).filter(lambda text: not text.startswith("--"))
others = st.lists(names.map("--{}".format) | values | st.builds("--{}={}".format, names, values), max_size=6)


def _read(*argv: str) -> TrainerArgs:
    return read_arguments(argv)[0]


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
    assert read_arguments(["--max_steps", "5"], own)[0]["max_steps"].value == 5


def test_a_scripts_default_goes_before_the_trainers() -> None:
    own = Argument(9, Source(SourceKind.SCRIPT, "`max_steps` in train.py:3"))
    assert read_arguments([], {"max_steps": own})[0]["max_steps"] == own


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
    assert [finding.message.endswith(kind) for finding in read_arguments(argv)[1]] == [True]


def test_an_argument_of_the_wrong_type_keeps_its_default() -> None:
    assert _read("--max_steps", "many")["max_steps"].value == -1


def test_an_argument_that_does_not_matter_here_is_no_finding() -> None:
    assert read_arguments(["--dataset", "x", "--seed", "many"])[1] == []


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--a"], [("a", None)]),
        (["--a", "--b"], [("a", None), ("b", None)]),
        (["--a-b", "1"], [("a_b", "1")]),
        (["--a=", "x"], [("a", "")]),
        (["--a=b=c"], [("a", "b=c")]),
        (["x", "--", "-y"], []),
        (["--a", "-1"], [("a", "-1")]),
    ],
)
def test_a_command_line_is_split_into_flags(argv: list[str], found: list[tuple[str, str | None]]) -> None:
    assert flags(argv) == found


@given(st.lists(st.tuples(names, st.none() | values, st.booleans())))
def test_flags_are_read_as_they_were_written(written: list[tuple[str, str | None, bool]]) -> None:
    argv: list[str] = []
    for name, value, joined in written:
        argv += [f"--{name}={value}"] if value is not None and joined else [f"--{name}"]
        argv += [value] if value is not None and not joined else []
    assert flags(argv) == [(name, value) for name, value, _ in written]


@given(st.lists(st.text() | st.sampled_from([f"--{name}" for name in DEFAULTS])))
def test_any_command_line_is_arguments_and_findings(argv: list[str]) -> None:
    args, _ = read_arguments(argv)
    assert {name: type(args[name].value) for name in DEFAULTS} == {
        name: type(default) for name, default in DEFAULTS.items()
    }


@pytest.mark.parametrize("flag", DS_FLAGS)
def test_a_ds_config_is_taken_out_of_a_command_line(flag: str) -> None:
    assert take_ds_config(["--a", flag, "ds.json", "b"]) == (("--a", "b"), "ds.json")


@pytest.mark.parametrize("flag", DS_FLAGS)
def test_a_ds_config_may_be_written_in_one_word(flag: str) -> None:
    assert take_ds_config([f"{flag}=ds.json", "b"]) == (("b",), "ds.json")


@pytest.mark.parametrize(
    "argv", [["--deepspeed"], ["--deepspeed", "--a"], ["--deepspeed", "--deepspeed", "--a"]]
)
def test_a_switch_alone_names_no_ds_config(argv: list[str]) -> None:
    assert take_ds_config(argv)[1] is None


def test_a_switch_may_go_before_the_ds_config() -> None:
    argv = ["--deepspeed", "--deepspeed_config", "ds.json", "--a", "1"]
    assert take_ds_config(argv) == (("--a", "1"), "ds.json")


def test_a_switch_may_go_after_the_ds_config() -> None:
    assert take_ds_config(["--deepspeed_config", "ds.json", "--deepspeed"]) == ((), "ds.json")


def test_a_word_after_a_switch_stays_an_argument() -> None:
    argv = ["--deepspeed", "data", "--deepspeed_config", "ds.json"]
    assert take_ds_config(argv) == (("data",), "ds.json")


@given(others)
def test_a_command_line_without_a_ds_config_stays_as_it_is(argv: list[str]) -> None:
    assert take_ds_config(argv) == (tuple(argv), None)


@given(others, others, st.sampled_from(DS_FLAGS), st.booleans())
def test_taking_the_ds_config_takes_nothing_else(
    before: list[str], after: list[str], flag: str, joined: bool
) -> None:
    words = [f"{flag}=ds.json"] if joined else [flag, "ds.json"]
    assert take_ds_config([*before, *words, *after]) == ((*before, *after), "ds.json")


@given(others, names.map("--{}".format), others)
def test_taking_a_switch_takes_nothing_else(before: list[str], flag: str, after: list[str]) -> None:
    assert take_ds_config([*before, "--deepspeed", flag, *after])[0] == (*before, flag, *after)


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 400, "1e400", "9223372036854775808"])
def test_a_number_that_no_trainer_can_count_to_is_a_finding(text: str) -> None:
    args, findings = read_arguments(("--max_steps", text))
    assert [(one.code, one.where) for one in findings] == [("bad-argument", "--max_steps")]
    assert args["max_steps"].value == -1
