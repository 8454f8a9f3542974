"""Programs in place of a training script: what to give zlaunch instead."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.each import each
from tests.running import ROOT
from zlaunch.config.translate.programs import LAUNCHERS, PROGRAMS, replacement

CONSOLE_SCRIPT = """#!/usr/bin/python3
# -*- coding: utf-8 -*-
import re
import sys
from {} import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""

LINES = {
    "trl sft --model m": "-m trl.scripts.sft -- --model m",
    "trl -- sft --model 'a b'": "-m trl.scripts.sft -- --model 'a b'",
    "trl --stage 3 -- dpo --config c.yaml": "--stage 3 -m trl.scripts.dpo -- --config c.yaml",
    "trl grpo": "-m trl.scripts.grpo",
    "trl sft --num_processes 4 --model m --accelerate_config=zero3": "--gpus 4 -m trl.scripts.sft -- --model m",
    "llamafactory-cli train sft.yaml lr=1e-4": "-m llamafactory.launcher -- sft.yaml lr=1e-4",
    "lmf train --stage sft": "-m llamafactory.launcher -- --stage sft",
    "axolotl train a.yaml": "-m axolotl.cli.train -- a.yaml",
    "axolotl train a.yaml --launcher torchrun -- --nproc_per_node=2": "--gpus 2 -m axolotl.cli.train -- a.yaml",
    "swift rlhf --rlhf_type dpo": "-m swift.cli.rlhf -- --rlhf_type dpo",
    "fabric run --devices=2 t.py --x 1": "--gpus 2 t.py -- --x 1",
    "composer -n 4 t.py --x 1": "--gpus 4 t.py -- --x 1",
    "composer -- -v -m pack.age -n 2": "-m pack.age -- -n 2",
    "-m llamafactory.cli train a.yaml": "-m llamafactory.launcher -- a.yaml",
    "python -m axolotl.cli.main train a.yaml": "-m axolotl.cli.train -- a.yaml",
    "python t.py --x": "t.py -- --x",
    "/nosuch/python3.12 -u -X dev -m pack.age --x": "-m pack.age -- --x",
}


@each("words", LINES)
def test_the_line_starts_what_a_program_runs_in_each_rank(words: str) -> None:
    found = replacement((), shlex.split(words))
    assert found is not None
    assert (found.line, found.launcher) == (f"zlaunch train {LINES[words]}", ())


def test_options_of_zlaunch_are_kept() -> None:
    found = replacement(["--stage", "3"], ["trl", "sft", "--model", "m"])
    assert found is not None
    assert found.line == "zlaunch train --stage 3 -m trl.scripts.sft -- --model m"


@each(
    ("words", "about"),
    [
        ("trl sft --num_processes 4 --model m", "--num_processes 4"),
        ("trl sft --accelerate_config zero3 --model m", "--accelerate_config zero3"),
        ("axolotl train a.yaml -- --num_processes=2", "--num_processes=2"),
        ("swift sft sft.yaml", "sft.yaml"),
        ("fabric run t.py --precision 16", "--precision 16"),
    ],
)
def test_what_the_module_does_not_take_gets_a_note(words: str, about: str) -> None:
    found = replacement((), words.split())
    assert found is not None
    assert [what for what, _ in found.notes] == [about]


@each(
    ("words", "launcher"),
    [
        ("torchrun --nproc-per-node 2 t.py", "torchrun --nproc-per-node 2 t.py"),
        ("torchrun -- --nproc-per-node 2 t.py -- --x", "torchrun --nproc-per-node 2 t.py -- --x"),
        ("accelerate launch t.py", "accelerate launch t.py"),
        ("deepspeed --num_gpus 2 t.py", "deepspeed --num_gpus 2 t.py"),
        ("ds t.py", "ds t.py"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run t.py"),
        ("-m deepspeed.launcher.runner t.py", "python -m deepspeed.launcher.runner t.py"),
    ],
)
def test_a_launcher_is_left_to_the_translator(words: str, launcher: str) -> None:
    found = replacement((), words.split())
    assert found is not None
    assert (shlex.join(found.launcher), found.line) == (launcher, None)


@each(
    "words",
    ["trl env", "trl", "llamafactory-cli webui", "accelerate config", "python -c x", "python", "python -"],
)
def test_what_trains_nothing_gets_a_hint_without_a_line(words: str) -> None:
    found = replacement((), words.split())
    assert found is not None
    assert (found.line, bool(found.hint), found.launcher) == (None, True, ())


@each(
    "words", ["train.py --x", "nosuch --x", "-m package.train --x", "dir/swift", "-m trl.scripts.sft", "-m"]
)
def test_scripts_and_modules_are_no_programs(words: str) -> None:
    assert replacement((), words.split()) is None


@each("module", [*PROGRAMS, *LAUNCHERS])
def test_the_file_of_a_program_is_recognized_under_any_name(
    tmp_path_factory: pytest.TempPathFactory, module: str
) -> None:
    file = tmp_path_factory.mktemp("bin") / "program"
    file.write_text(CONSOLE_SCRIPT.format(module))
    assert replacement((), [str(file), "launch", "t.py"]) is not None


@pytest.fixture
def other_environment(tmp_path: Path) -> Path:
    for name in ("trl", "torchrun", "python", "python3"):
        (tmp_path / name).write_text(
            CONSOLE_SCRIPT.format(f"{name}.cli" if name == "trl" else "torch.distributed.run")
        )
    return tmp_path


def test_a_program_of_another_environment_comes_with_its_python(other_environment: Path) -> None:
    env = other_environment
    for words, line in {
        f"{env}/trl sft": f"--python {env}/python -m trl.scripts.sft",
        f"{env}/python3 t.py": f"--python {env}/python3 t.py",
    }.items():
        found = replacement((), words.split())
        assert found is not None
        assert found.line == f"zlaunch train {line}"
    launcher = replacement((), [f"{env}/torchrun", "t.py"])
    assert launcher is not None
    assert launcher.options == ("--python", f"{env}/python")
    named = replacement(["--python", "mine"], [f"{env}/trl", "sft"])
    assert named is not None
    assert named.line == "zlaunch train --python mine -m trl.scripts.sft"


def test_a_script_with_the_name_of_a_program_is_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trl").write_text("#!/usr/bin/env python\nfrom trl import SFTTrainer\n")
    monkeypatch.chdir(tmp_path)
    assert replacement((), ["trl", "sft"]) is None


def test_an_installed_file_of_any_other_program_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "trainer").write_text(CONSOLE_SCRIPT.format("trainer.cli"))
    assert replacement((), [str(tmp_path / "trainer")]) is None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two console programs; one of their modules is made to run."""
    about = tmp_path / "trainer-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[console_scripts]\ntrainer = trainer.cli:main\ntrainer-x = trainer.x:main\ntrainer-y = trainer.y:start\nmy-trl = trl.cli:main\n"
    )
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text('def main(): ...\n\nif __name__ == "__main__":\n    main()\n')
    (package / "x.py").write_text("def main(): ...\n")
    (package / "y.py").write_text("from trainer.cli import main\nfrom .launch import start\n")
    (package / "launch.py").write_text("from torch.distributed.run import run\ndef start(): run()\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "trainer-x").write_text(CONSOLE_SCRIPT.format("trainer.x"))
    (programs / "trainer-x").chmod(0o755)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("PATH", str(programs))
    return programs


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trainer --x 1", "-m trainer.cli -- --x 1"),
        ("trainer -- --x 1", "-m trainer.cli -- --x 1"),
        ("trainer-x --x 1", "{}/trainer-x -- --x 1"),
        ("my-trl sft", "-m trl.scripts.sft"),
    ],
)
def test_the_entry_point_of_an_installed_program_names_its_module(
    installed: Path, words: str, line: str
) -> None:
    found = replacement((), words.split())
    assert found is not None
    assert found.line == f"zlaunch train {line.format(installed)}"


def test_a_program_that_can_start_ranks_is_told_with_its_module(installed: Path) -> None:
    found = replacement((), ["trainer-y", "train"])
    assert found is not None
    assert [why.partition(":")[0] for _, why in found.notes] == ["can start ranks itself, with torchrun"]


def test_the_launchers_that_are_installed_here_are_recognized_by_name_and_by_file() -> None:
    here = Path(sys.executable).parent
    named = {
        name: replacement((), [name, "launch", "t.py"]) for name in ("torchrun", "accelerate", "deepspeed")
    }
    files = {
        name: replacement((), [str(here / name), "launch", "t.py"])
        for name in named
        if (here / name).exists()
    }
    assert all(one is not None and one.launcher for one in (*named.values(), *files.values()))


def test_every_module_is_named_in_the_documentation() -> None:
    text = (ROOT / "docs" / "other-launchers.md").read_text()
    modules = {module for program in PROGRAMS.values() for module in program.modules.values()}
    families = {
        module.rpartition(".")[0] if module.startswith(("trl", "swift")) else module for module in modules
    }
    assert {one for one in families if one not in text} == set()
