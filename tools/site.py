"""Hooks of `make site`: pages that are outside of `docs/`, links to files of the repository, and languages.

Pages link to each other as files do, so that they also read well in the repository. On the site, README.md is
the first page, and a file that is no page is copied to it. `NAME.zh.md` is `NAME.md` in Chinese.
"""

import html
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
_AS_NAMED: Final = ("CONTRIBUTING.md", "CHANGELOG.md", "bench/RESULTS.md")
OUTSIDE: Final = {
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    **{name: name for name in _AS_NAMED},
}
"""File of the repository → page of the site."""
COPIED: Final = "files"
"""Directory of the site with the other files that pages link to."""

LANGUAGES: Final = {"en": "English", "zh": "中文"}

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")

_CHINESE_BREAK: Final = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
"""The end of a line within a sentence, which browsers show as a space."""

_BLOCK: Final = re.compile(r'<div class="highlight">(?=<pre>.*?<code>(.*?)</code></pre>)', re.DOTALL)
_PROMPT: Final = "$ "


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside of `docs/`."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for source in [file for file in files if file.is_documentation_page()]:
        text = Path(source.abs_src_path or "").read_text("utf-8")
        for target in sorted({_target(source.src_uri, link) for link, _ in _LINK.findall(text)}):
            if _is_copied(target) and files.get_file_from_path(f"{COPIED}/{target}") is None:
                files.append(File.generated(config, f"{COPIED}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Let the next page be one in the same language."""
    for language in LANGUAGES:
        _link_in_order([page for page in nav.pages if language_of(page.file.src_uri) == language])


def _link_in_order(pages: list[Page]) -> None:
    for page, before, after in zip(pages, [None, *pages], [*pages[1:], None], strict=False):
        page.previous_page, page.next_page = before, after


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation) -> None:
    """Show a page in its language, with a link to the same page in the other one."""
    config.theme["language"] = language_of(page.file.src_uri)
    config.extra["alternate"] = alternates(page, nav.pages)


def language_of(name: str) -> str:
    """Tell the language of a page by the name of its file."""
    if name.endswith(".zh.md"):
        return "zh"
    return "en"


def alternates(page: Page, pages: Iterable[Page]) -> list[dict[str, str]]:
    """List the addresses of a page in all languages; nothing if it has only one."""
    base = page.file.src_uri.removesuffix(".md").removesuffix(".zh")
    by_name = {other.file.src_uri: other for other in pages}
    names = {"en": f"{base}.md", "zh": f"{base}.zh.md"}
    if not by_name.keys() >= set(names.values()):
        return []
    return [
        {"name": LANGUAGES[code], "link": by_name[name].url, "lang": code} for code, name in names.items()
    ]


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the copy buttons of examples copy the commands, without prompts and outputs."""
    return _BLOCK.sub(_with_commands, content)


def _with_commands(block: re.Match[str]) -> str:
    commands = typed(html.unescape(re.sub("<[^>]*>", "", block[1])))
    if not commands:
        return block[0]
    return f'<div class="highlight" data-copy="{html.escape(commands)}">'


def typed(example: str) -> str:
    """Find what is typed in an example: lines after a prompt, and the lines that continue them."""
    commands = []
    continues = False
    for line in example.splitlines():
        if line.startswith(_PROMPT) or continues:
            commands.append(line.removeprefix(_PROMPT))
            continues = line.endswith("\\")
    return "\n".join(commands)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to the pages and files of the site."""
    own = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        target, anchor = _target(own, found[1]), found[2] or ""
        place = _place(target)
        return posixpath.relpath(place, posixpath.dirname(own) or ".") + anchor

    if own.endswith(".zh.md"):
        markdown = _CHINESE_BREAK.sub("", markdown)
    return _LINK.sub(moved, markdown)


def _target(page: str, link: str) -> str:
    """Return the file of the repository that a link of a page means."""
    source = next((name for name, other in OUTSIDE.items() if other == page), f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _is_copied(target: str) -> bool:
    return target not in OUTSIDE and not target.startswith("docs/") and (ROOT / target).is_file()


def _place(target: str) -> str:
    """Return where the site has a file of the repository."""
    if target in OUTSIDE:
        return OUTSIDE[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{COPIED}/{target}"
