import re

from tests.running import ROOT
from tools.write_errors import GENERAL, PAGE, page
from zlaunch.rules import RULES


def test_the_page_about_errors_is_the_one_that_the_rules_write() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make docs`"


def test_every_code_that_a_check_of_a_config_can_give_is_explained() -> None:
    files = [*(ROOT / "zlaunch" / "dsconfig").glob("*.py"), ROOT / "zlaunch" / "inspection.py"]
    text = "".join(file.read_text("utf-8") for file in files)
    found = {code for _, code in re.findall(r"Finding\(\s*(code=)?\"([a-z-]+)\"", text)}
    assert found - {*GENERAL, *(rule.code for rule in RULES)} == {"not-yaml", "yaml-number"}
