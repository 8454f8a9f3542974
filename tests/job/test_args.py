import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.job.args import ScriptArgs

DS_FLAGS = ["--deepspeed", "--deepspeed_config", "--deepspeed-config"]

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: "deepspeed" not in name)
values = st.text("abc0189./,-=", max_size=6).filter(lambda text: not text.startswith("--"))
others = st.lists(names.map("--{}".format) | values | st.builds("--{}={}".format, names, values), max_size=6)


def _flags(argv: list[str]) -> list[tuple[str, str | None]]:
    return [(flag.name, flag.value) for flag in ScriptArgs.of(argv).flags]


def _split(argv: list[str]) -> tuple[tuple[str, ...], str | None]:
    rest, file = ScriptArgs.of(argv).take_ds_config()
    return rest.words, file


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
    assert _flags(argv) == found


@given(st.lists(st.tuples(names, st.none() | values, st.booleans())))
def test_flags_are_read_as_they_were_written(written: list[tuple[str, str | None, bool]]) -> None:
    argv: list[str] = []
    for name, value, joined in written:
        argv += [f"--{name}={value}"] if value is not None and joined else [f"--{name}"]
        argv += [value] if value is not None and not joined else []
    assert _flags(argv) == [(name, value) for name, value, _ in written]


@pytest.mark.parametrize("spelling", ["max_steps", "max-steps", "--max_steps", "--max-steps"])
def test_a_flag_is_found_by_its_name_in_any_spelling(spelling: str) -> None:
    assert ScriptArgs.of(["--max-steps", "3"]).value(spelling) == "3"


def test_the_last_of_several_flags_counts() -> None:
    assert ScriptArgs.of(["--lr", "1", "--lr", "2"]).value("lr") == "2"


@pytest.mark.parametrize(
    ("argv", "is_on"),
    [(["--a"], True), (["--a", "no"], False), (["--a=True"], True), (["--b", "--a", "0"], False), ([], None)],
)
def test_a_switch_is_on_unless_it_is_turned_off(argv: list[str], is_on: bool | None) -> None:
    assert ScriptArgs.of(argv).is_on("a", "c") is is_on


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--report_to", "wandb", "mlflow", "--seed", "1"], ("wandb", "mlflow")),
        (["--report-to=wandb"], ("wandb",)),
        (["--report_to", "a", "--report_to", "b"], ("b",)),
        (["--seed", "1"], ()),
    ],
)
def test_a_flag_may_have_several_words(argv: list[str], words: tuple[str, ...]) -> None:
    assert ScriptArgs.of(argv).words_of("report_to") == words


def test_a_flag_knows_where_it_was_typed() -> None:
    typed = ScriptArgs(("--bf16", "--lr", "1"), {"bf16": "zlaunch.yaml:4"})
    assert [(flag.index, flag.place) for flag in typed.flags] == [(0, "zlaunch.yaml:4"), (1, "")]


@pytest.mark.parametrize("flag", DS_FLAGS)
def test_a_ds_config_is_taken_out_of_a_command_line(flag: str) -> None:
    assert _split(["--a", flag, "ds.json", "b"]) == (("--a", "b"), "ds.json")


@pytest.mark.parametrize("flag", DS_FLAGS)
def test_a_ds_config_may_be_written_in_one_word(flag: str) -> None:
    assert _split([f"{flag}=ds.json", "b"]) == (("b",), "ds.json")


@pytest.mark.parametrize(
    "argv", [["--deepspeed"], ["--deepspeed", "--a"], ["--deepspeed", "--deepspeed", "--a"]]
)
def test_a_switch_alone_names_no_ds_config(argv: list[str]) -> None:
    assert _split(argv)[1] is None


def test_a_switch_may_go_before_the_ds_config() -> None:
    argv = ["--deepspeed", "--deepspeed_config", "ds.json", "--a", "1"]
    assert _split(argv) == (("--a", "1"), "ds.json")


def test_a_switch_may_go_after_the_ds_config() -> None:
    assert _split(["--deepspeed_config", "ds.json", "--deepspeed"]) == ((), "ds.json")


def test_a_word_after_a_switch_stays_an_argument() -> None:
    argv = ["--deepspeed", "data", "--deepspeed_config", "ds.json"]
    assert _split(argv) == (("data",), "ds.json")


@given(others)
def test_a_command_line_without_a_ds_config_stays_as_it_is(argv: list[str]) -> None:
    assert _split(argv) == (tuple(argv), None)


@given(others, others, st.sampled_from(DS_FLAGS), st.booleans())
def test_taking_the_ds_config_takes_nothing_else(
    before: list[str], after: list[str], flag: str, joined: bool
) -> None:
    words = [f"{flag}=ds.json"] if joined else [flag, "ds.json"]
    assert _split([*before, *words, *after]) == ((*before, *after), "ds.json")


@given(others, names.map("--{}".format), others)
def test_taking_a_switch_takes_nothing_else(before: list[str], flag: str, after: list[str]) -> None:
    assert _split([*before, "--deepspeed", flag, *after])[0] == (*before, flag, *after)


@given(others)
def test_sources_are_those_of_all_words_in_their_order(words: list[str]) -> None:
    assert [word for of_one, _ in ScriptArgs(tuple(words)).sources() for word in of_one] == words


def test_each_argument_has_its_source_wherever_others_are_added() -> None:
    typed = ScriptArgs(("in.txt", "--lr", "1", "2", "--bf16=True"), {"lr": "zlaunch.yaml:4"})
    added = typed.followed_by(("--seed", "5"), {"--seed": "a preset"}).preceded_by(
        ("--out", "x"), {"--out": "`--save`"}
    )
    assert [*added.sources()] == [
        (("--out", "x", "in.txt"), "`--save`"),
        (("--lr", "1", "2"), "`args.lr` in zlaunch.yaml:4"),
        (("--bf16=True",), "the command line"),
        (("--seed", "5"), "a preset"),
    ]
    assert next(typed.sources()) == (("in.txt",), "the command line")
