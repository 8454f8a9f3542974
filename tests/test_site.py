import html
import re

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.running import ROOT
from tools.site import typed

pytestmark = pytest.mark.program


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the site; return the elements of each page by its address."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return {str(page.relative_to(folder)): page.read_text("utf-8") for page in folder.rglob("*.html")}


def links(page: str, rel: str) -> list[str]:
    """Find where a page's links of a kind lead."""
    return re.findall(rf'<link rel="{rel}" href="([^"]*)"', page)


def is_chinese(address: str) -> bool:
    """Tell by the name."""
    return address.endswith(".zh.html")


def test_every_page_says_its_language(pages: dict[str, str]) -> None:
    says = {address for address, page in pages.items() if '<html lang="zh"' in page}
    assert says == set(filter(is_chinese, pages))
    assert len(says) > 2


def test_a_page_in_two_languages_leads_to_itself_in_the_other(pages: dict[str, str]) -> None:
    assert links(pages["train.html"], "alternate") == ["train.html", "train.zh.html"]
    assert links(pages["train.zh.html"], "alternate") == ["train.html", "train.zh.html"]
    assert links(pages["learn/README.zh.html"], "alternate") == ["index.html", "README.zh.html"]


def test_a_page_in_one_language_has_no_alternate(pages: dict[str, str]) -> None:
    assert links(pages["gpu.html"], "alternate") == []


def test_the_next_page_is_in_the_same_language(pages: dict[str, str]) -> None:
    leads_away = [
        (address, link)
        for address, page in pages.items()
        for link in links(page, "next") + links(page, "prev")
        if is_chinese(link) != is_chinese(address)
    ]
    assert leads_away == []


def test_no_copy_button_copies_a_prompt(pages: dict[str, str]) -> None:
    copied: list[str] = []
    for page in pages.values():
        for block in re.findall(r'<div class="highlight".*?</code>', page, re.DOTALL):
            given = re.search(r'data-copy="([^"]*)"', block)
            copied.append(html.unescape(given[1] if given else re.sub("<[^>]*>", "", block)))
    assert len(copied) > 100
    assert [text for text in copied if re.search(r"^\$ ", text, re.MULTILINE)] == []


def test_a_copied_command_has_its_further_lines_and_no_output() -> None:
    example = "$ zlaunch estimate gpt2 \\\n    --no-levers\n…\n  GiB\n$ zlaunch tour\n"
    assert typed(example) == "zlaunch estimate gpt2 \\\n    --no-levers\nzlaunch tour"
