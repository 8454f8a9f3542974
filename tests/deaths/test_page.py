"""The page about deaths says what the table says."""

from tests.deaths.deaths import TABLE
from tests.deaths.page import PAGE, page, seconds_in


def test_the_page_about_deaths_is_the_one_that_the_table_writes() -> None:
    written = PAGE.read_text("utf-8")
    assert written == page(seconds_in(written)), "run `make deaths`"


def test_every_death_on_the_page_really_happened() -> None:
    seconds = seconds_in(PAGE.read_text("utf-8"))
    took = [float(seconds[death.name, launcher]) for death in TABLE for launcher in death.launchers]
    assert max(took) <= 10.0


def test_no_two_deaths_have_one_name() -> None:
    assert len({death.name for death in TABLE}) == len(TABLE)
