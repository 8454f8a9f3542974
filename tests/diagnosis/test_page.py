from tools.write_endings import PAGE
from zlaunch.diagnosis.diagnose import SIGNATURES


def test_every_code_stands_on_the_page_once() -> None:
    written = PAGE.read_text("utf-8")
    assert [one.code for one in SIGNATURES if written.count(f"| `{one.code}` |") != 1] == []
