"""Hooks of `make site`: pages that are outside of `docs/`, and links to files of the repository.

Pages link to each other as files do, so that they also read well in the repository. On the site, README.md is
the first page, and a file that is no page is copied to it.
"""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
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

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")

_CHINESE_BREAK: Final = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
"""The end of a line within a sentence, which browsers show as a space."""


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
