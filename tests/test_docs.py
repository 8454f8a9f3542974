import re

from tests.running import ROOT
from tools.write_errors import ELSEWHERE, GENERAL, PAGE, page
from zlaunch.config.rules import RULES


def test_the_page_about_errors_is_the_one_that_the_rules_write() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make docs`"


def test_every_code_that_is_written_in_the_source_is_explained() -> None:
    files = [file for file in (ROOT / "zlaunch").rglob("*.py") if file.parent.name != "rules"]
    text = "".join(file.read_text("utf-8") for file in files)
    found = {code for _, code in re.findall(r"[Ff]inding\(\s*(code=)?\"([a-z-]+)\"", text)}
    assert found - {*GENERAL, *ELSEWHERE, *(rule.code for rule in RULES)} == set()
