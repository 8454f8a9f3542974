"""Programs that answer as `kubectl` and `ray` do: each call takes the next answer, and is recorded."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SOURCE = """#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
text = sys.stdin.read() if "-" in words else ""
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps([words, text]) + "\\n")
for key, answers in json.loads((folder / "answers").read_text()).items():
    if all(word in words for word in key.split()):
        count = folder / key.replace(" ", "-").replace("/", "-")
        number = int(count.read_text()) if count.exists() else 0
        count.write_text(str(number + 1))
        print(answers[min(number, len(answers) - 1)].replace("<last>", words[-1]))
        sys.exit(0)
sys.exit("no answer to " + " ".join(words))
"""


def program(folder: Path, name: str, answers: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Write a program; the words of a call choose the answers, `<last>` is the last one. Return a PATH that begins with it."""
    (folder / "bin").mkdir()
    texts = {
        key: [one if isinstance(one, str) else json.dumps(one) for one in all_]
        for key, all_ in answers.items()
    }
    (folder / "answers").write_text(json.dumps(texts))
    file = folder / "bin" / name
    file.write_text(_SOURCE.format(python=sys.executable, folder=str(folder)))
    file.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


def calls(folder: Path) -> list[tuple[list[str], str]]:
    """List the words and the input of each call."""
    return [(words, text) for words, text in map(json.loads, (folder / "calls").read_text().splitlines())]
