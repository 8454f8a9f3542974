"""The table of releases, by what is known of them."""

import pytest

from tests.each import each
from zlaunch.dsconfig.releases import NEWEST, RELEASES, REMOVED, Release, history, newer_than_known, release
from zlaunch.errors import WrongUsage

OFFLOADS = ("offload_param", "offload_optimizer")


def test_the_names_are_those_of_the_table() -> None:
    from zlaunch.dsconfig.releases import _table

    assert list(_table()["releases"]) == list(RELEASES)


@pytest.mark.parametrize("text", ["0.16", "0.16.4", "v0.16", " 0.16.9 ", "0.16.4+cu121", "0.16.0.dev3"])
def test_a_release_is_found_by_any_of_its_names(text: str) -> None:
    assert release(text) == Release("0.16")


@pytest.mark.parametrize("text", ["0.20", "0.100.1", "1.0"])
def test_what_is_newer_than_all_is_taken_for_the_newest(text: str) -> None:
    assert release(text) == NEWEST


@pytest.mark.parametrize("text", ["0.20", "0.100.1", "v9.9"])
def test_it_is_said_for_what_a_newer_release_is_taken(text: str) -> None:
    assert newer_than_known(text) == f"zlaunch knows DeepSpeed up to {NEWEST.name}, and takes {text} for that"


@pytest.mark.parametrize("text", ["0.19", "0.19.8", "0.14", "foo"])
def test_nothing_is_said_of_a_known_release(text: str) -> None:
    assert newer_than_known(text) is None


@pytest.mark.parametrize("text", ["0.13", "0.9.5"])
def test_a_release_older_than_all_is_refused_with_what_can_be_typed(text: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        release(text)
    assert refused.value.hint == "write one of `0.14`, `0.15`, `0.16`, `0.17`, `0.18`, `0.19`"


@pytest.mark.parametrize("text", ["", "latest", "16", "0.x", "0.16rc", "-0.16"])
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is not a DeepSpeed release"):
        release(text)


def test_zenflow_came_with_0_17() -> None:
    assert history(("zero_optimization", "zenflow")).since == "0.17"


def test_no_release_before_0_17_knows_a_key_of_zenflow() -> None:
    path = ("zero_optimization", "zenflow", "topk_ratio")
    assert [name for name in RELEASES if release(name).knows(path)] == ["0.17", "0.18", "0.19"]


def test_a_section_is_unknown_before_it_came() -> None:
    assert not release("0.16").knows_section(("zero_optimization", "zenflow"))


def test_a_key_that_was_always_there_has_no_beginning() -> None:
    assert history(("zero_optimization", "stage")).since is None


def test_a_key_that_is_still_there_has_no_end() -> None:
    assert history(("zero_optimization", "zenflow")).until is None


def test_the_default_of_gradient_clipping_changed_in_0_19() -> None:
    assert history(("gradient_clipping",)).changes == (("0.14", 0.0), ("0.19", 1.0))


@pytest.mark.parametrize("offload", OFFLOADS)
def test_memory_is_pinned_by_default_from_0_19_on(offload: str) -> None:
    path = ("zero_optimization", offload, "pin_memory")
    assert [release(name).default(path) for name in RELEASES] == [False] * 5 + [True]


def test_a_default_can_change_to_nothing() -> None:
    assert history(("steps_per_print",)).changes == (("0.14", 10), ("0.15", None))


def test_a_default_can_change_and_change_back() -> None:
    changes = history(("bf16", "immediate_grad_update")).changes
    assert changes == (("0.14", False), ("0.16", True), ("0.17", False))


def test_a_section_has_no_default_and_no_changes() -> None:
    assert history(("zero_optimization", "offload_param")).changes == ()


def test_both_names_of_a_key_are_known() -> None:
    names = ("stage3_prefetch_bucket_size", "prefetch_bucket_size")
    assert [release("0.14").default(("zero_optimization", name)) for name in names] == [50_000_000] * 2


def test_a_key_that_was_renamed_ends_where_the_other_begins() -> None:
    old, new = history(("aio", "thread_count")), history(("aio", "intra_op_parallelism"))
    assert (old.until, new.since) == ("0.15", "0.16")


def test_amp_was_last_read_by_0_18() -> None:
    assert history(("amp",)).until == "0.18"


def test_amp_is_refused_from_0_19_on() -> None:
    assert history(("amp",)).refused == "0.19"


@each("key", REMOVED)
def test_what_to_do_is_known_only_for_keys_that_the_newest_release_refuses(key: str) -> None:
    assert NEWEST.refuses(tuple(key.split(".")))


def test_a_key_that_no_release_read_can_still_be_refused() -> None:
    eigenvalue = history(("eigenvalue",))
    assert (eigenvalue.known, eigenvalue.refused) == ((), "0.19")


def test_a_key_that_never_was_has_no_history() -> None:
    assert history(("zero_optimisation",)).known == ()


def test_below_a_section_that_is_handed_on_everything_is_known() -> None:
    assert release("0.18").knows(("amp", "opt_level"))


@pytest.mark.parametrize("section", ["optimizer", "scheduler"])
def test_the_arguments_of_constructors_are_known_in_all_releases(section: str) -> None:
    assert all(release(name).knows((section, "params", "lr")) for name in RELEASES)


def test_beside_the_arguments_nothing_else_is_known() -> None:
    assert not release("0.16").knows(("optimizer", "param"))


def test_keys_written_flat_are_not_keys_in_a_section() -> None:
    assert not NEWEST.knows(("zero_optimization.stage",))


def test_fp16_refuses_unknown_keys_from_0_17_on() -> None:
    assert [name for name in RELEASES if release(name).is_closed(("fp16",))] == ["0.17", "0.18", "0.19"]


def test_the_top_level_ignores_unknown_keys() -> None:
    assert not NEWEST.refuses(("zero_optimisation",))


def test_a_closed_section_refuses_a_key_that_came_later() -> None:
    assert release("0.16").refuses(("zero_optimization", "zenflow"))


def test_a_section_that_ignores_unknown_keys_does_not_refuse_one() -> None:
    assert not NEWEST.refuses(("aio", "thread_count"))
