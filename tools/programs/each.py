"""Try each program of the table, in each way in which DeepSpeed trains under zlaunch; keep the results."""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.programs.gather import gather
from tools.programs.hub import hub
from tools.programs.program import Program, Way
from tools.programs.run import Places, environment_of, run_words, set_up, words_of
from tools.programs.table import MEASURED, PROGRAMS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Trial:
    """A program, one way to start it, and what it needs."""

    program: Program
    way: Way
    places: Places
    source: Path
    environment: dict[str, str]

    @property
    def job(self) -> str:
        """The options of the way, and the program."""
        target = self.program.script.rpartition("/")[2]
        if self.program.script.startswith("-m "):
            target = self.program.script
        return f"{self.way.options} {target}"

    @property
    def arguments(self) -> str:
        """What follows `--`."""
        handed = self.way.bare if self.way.zlaunch is None else self.way.zlaunch
        return f"-- {self.program.arguments} {handed}"

    def set_up(self) -> None:
        """Make a fresh copy of the folder of the program."""
        set_up(self.program, self.source, self.places)

    def run(self, text: str, **variables: str) -> tuple[int, str, str]:
        """Run a command in the folder; return its status and output."""
        return run_words(words_of(text, self.places), self.places.run, self.environment | variables)


def try_each(tool: str, inputs: str, trial: Callable[[Trial], "DataclassInstance"]) -> dict[str, Any]:
    """Try what the command line asks for; return all results, by the key of the program and the way."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.programs.{tool}")
    parser.add_argument("work", type=Path, help="folder for environments, sources and runs")
    parser.add_argument("--only", default="", help="part of the name of a program, such as `TRL: dpo`")
    parser.add_argument("--missing", action="store_true", help="only what has no result")
    parser.add_argument("--gathered", action="store_true", help="fetch nothing")
    asked = parser.parse_args()
    work = asked.work.resolve()
    if not asked.gathered:
        gather(work)
    file, folder = work / f"{tool}.json", work / inputs
    with hub(folder / "hub") as url:
        for program, way in measured():
            key = program.key(way)
            if asked.only not in key or (asked.missing and key in _read(file)):
                continue
            run = work / tool / re.sub(r"[^0-9a-zA-Z]", "-", key)
            places = Places(url, folder / "data", folder / "ds", folder / "hub/models", run)
            source = work / "checkouts" / program.source.folder
            python = work / f"venv-{program.needs}/bin/python"
            environment = environment_of(program, source, python, url)
            environment["HF_HOME"] = str(work / inputs.replace("inputs", "huggingface"))
            result = trial(Trial(program, way, places, source, environment))
            file.write_text(json.dumps({**_read(file), key: asdict(result)}, indent=1))
            print(f"{key}: {result}", flush=True)
    return _read(file)


def measured() -> Iterator[tuple[Program, Way]]:
    """Yield the programs of the table, in each way in which DeepSpeed trains under zlaunch."""
    for program in PROGRAMS:
        for way in program.ways:
            is_plain = program.project == "accelerate" and not way.options
            if program.title in MEASURED and not is_plain:
                yield program, way


def options_of(way: Way) -> str:
    """Write how a program is started, for a table."""
    if not way.options:
        return way.label
    return f"`{way.options.removesuffix(' --precision fp32')}`"


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    results: dict[str, Any] = json.loads(file.read_text())
    return results
