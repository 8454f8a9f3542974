"""A page in headless Chromium, as a person sees it: what it became, how long that took, and what it looks like."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.abilities import unable

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WATCHED = """<script>
window.failed = [];
addEventListener("error", (event) => failed.push(event.message));
addEventListener("load", () => {
  document.body.offsetHeight;
  document.documentElement.dataset.took = performance.now();
  document.documentElement.dataset.failed = failed.join("; ");
});
</script>"""
"""Added to a copy of a page: its errors, and the milliseconds until it is drawn and laid out."""


def chromium() -> str:
    """Find the browser."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        unable("chromium is not installed: `make system-packages`")
    return str(found)


def browse(where: str, home: Path, *options: str) -> str:
    """Open a page and return its elements once it is loaded. A window is at least 500 wide."""
    own = (f"--user-data-dir={home / 'chromium'}", "--no-sandbox", "--disable-gpu", "--no-first-run")
    argv = [chromium(), "--headless=new", *own, "--hide-scrollbars", "--window-size=1280,900", *options]
    done = subprocess.run([*argv, where], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def dom(page: Path, *options: str) -> str:
    """Load a page file; return its elements."""
    return browse(page.as_uri(), page.parent, "--dump-dom", *options)


def watched_copy(page: Path) -> Path:
    """Copy a page with a script that notes its errors and its time; its own policy would not let it run."""
    text = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', lambda _: WATCHED, page.read_text("utf-8")
    )
    copy = page.with_name(f"watched-{page.name}")
    copy.write_text(text, "utf-8")
    return copy


def noted(elements: str, name: str) -> str:
    """Read a note of the watching script."""
    found = re.search(rf'<html[^>]* data-{name}="([^"]*)"', elements)
    assert found is not None, elements[:500]
    return found[1]
