"""Recognize files that are given as a training script but are not Python, and say what to type instead."""

import json
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Refused, WrongUsage
from zlaunch.files import typed
from zlaunch.job.recipes import recipe_path, similar_recipe
from zlaunch.other_values import LLAMA_FACTORY

_SHELL = r"#!.*\b(ba|da|k|z)?sh\b"
_SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
_STARTS_RANKS = (
    r"(?<![\w.-])(torchrun|deepspeed|accelerate[ -]launch|trl|llamafactory-cli|lmf|axolotl|swift"
    r"|python[\d.]* (-\S+ )*-m (torch|deepspeed|accelerate)\.\S+)\s"
)
_STARTS_ZLAUNCH = r"(?<![\w.-])zlaunch (train|runs)\b"
_STARTS_PYTHON = r"(?<![\w.-])python[\d.]* (?P<program>(-m )?[\w./-]+)"
_CONFIGS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"): (
        "a ds_config",
        "pass the script, and add `--ds-config {}`",
    ),
    ("compute_environment", "distributed_type"): (
        "an accelerate config",
        "`zlaunch config translate {} -- SCRIPT` writes the command of zlaunch",
    ),
    ("base_model",): ("a config of axolotl", "`zlaunch train -m axolotl.cli.train -- {}`"),
    ("finetuning_type",): ("a config of LLaMA-Factory", f"`{LLAMA_FACTORY} {{}}`"),
}
"""Keys, one of which each such file has → what it is, and what to type."""
_OF_OTHERS = ("an accelerate config", "a config of axolotl", "a config of LLaMA-Factory")
OF_ANOTHER_PROGRAM = "of-another-program"
"""The code of a finding about one of these."""
_ANY_CONFIG = ("a config", "pass the program that reads it: `zlaunch train SCRIPT -- {}`")


def refuse_other_files(path: Path) -> None:
    """Raise WrongUsage for a path that is no file, or a config; a missing file is not an error here."""
    if str(path) == "-":
        raise _pipe(path)
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise _directory(path)
    if not stat.S_ISREG(mode):
        raise _pipe(path)
    if (explain := _JSON.get(path.suffix)) is not None:
        raise explain(path)


def refuse_other_languages(path: Path) -> None:
    """Raise WrongUsage for a file that is no Python source, if it is known what it is."""
    if _is_shell_script(path):
        raise _shell_script(path)


def similar_scripts(path: Path) -> str | None:
    """Suggest a script or a recipe for one that does not exist."""
    names = [file.name for file in path.parent.glob("*.py")]
    full = [name for name in names if name == f"{path.name}.py"]
    if not full and recipe_path(path.stem) is not None:
        recipe = path.stem
        return f"`zlaunch train {recipe}` starts the recipe, `zlaunch recipes copy {recipe}` copies it here"
    if close := full or get_close_matches(path.name, names, 1):
        return f"did you mean `{path.with_name(close[0])}`?"
    if path.name == str(path) and (similar := similar_recipe(path.name)):
        return f"did you mean the recipe `{similar}`?"
    if path.parent.is_dir() and not names:
        return "`zlaunch recipes list` shows programs to begin with"
    return None


def _pipe(path: Path) -> WrongUsage:
    return WrongUsage(
        f"`{path}` is not a file, and every rank reads the script",
        "write it to a file first, such as `cat > train.py`",
    )


def _directory(path: Path) -> WrongUsage:
    message = f"`{path}` is a directory, not a training script"
    main = path / "__main__.py"
    if main.exists():
        program = shlex.quote(str(main))
        if (path / "__init__.py").exists() and all(map(str.isidentifier, path.parts)):
            program = f"-m {'.'.join(path.parts)}"
        return WrongUsage(message, f"`zlaunch train {program}`")
    scripts = sorted(path.glob("*.py"), key=lambda file: ("train" not in file.name, file.name))
    if not scripts:
        return WrongUsage(message)
    return WrongUsage(message, f"name a script in it: {', '.join(f'`{file}`' for file in scripts[:3])}")


def _notebook(path: Path) -> WrongUsage:
    script = path.with_suffix(".py")
    return WrongUsage(
        f"`{path}` is a notebook, not a training script",
        f"`jupyter nbconvert --to script {shlex.quote(str(path))}` writes `{script}`: give that to zlaunch",
    )


def _config(path: Path) -> WrongUsage:
    _, keys = _read_other(path)
    what, hint = _of_keys(keys) or _ANY_CONFIG
    return WrongUsage(f"`{path}` is {what}, not a training script", hint.format(shlex.quote(str(path))))


def _of_keys(keys: Collection[str]) -> tuple[str, str] | None:
    """Return what a config with these keys is, and what to type for it; None if that is not known."""
    return next((texts for some, texts in _CONFIGS.items() if not {*some}.isdisjoint(keys)), None)


def kind_of_config(keys: Collection[str]) -> str | None:
    """Say what a config with these keys is, such as `a ds_config`; None if that is not known."""
    known = _of_keys(keys)
    return known and known[0]


def config_of_other_program(
    file: str, keys: Collection[str], expected: str = "a ds_config"
) -> Finding | None:
    """Find that a config is of another program, by its keys, with what to type; None for any other.

    `expected` is what it was taken for.
    """
    known = _of_keys(keys)
    if known is None or known[0] not in _OF_OTHERS:
        return None
    what, hint = known
    return Finding(OF_ANOTHER_PROGRAM, f"`{file}` is {what}, not {expected}", hint.format(shlex.quote(file)))


def ds_config_in_yaml(file: str, text: str, value: Mapping[str, object]) -> Finding | None:
    """Find that a file is a ds_config with sections as only YAML has them, and what makes JSON of it.

    `value` is what YAML reads. DeepSpeed's reader takes a file without such sections as YAML does.
    """
    if DsConfig.model_fields.keys().isdisjoint(value):
        return None
    try:
        read_as_json = parse(text, file).value
    except Refused:
        if text.lstrip().startswith("{"):
            return None
        read_as_json = {}
    sections = {name for name, part in value.items() if isinstance(part, dict | list)}
    if all(isinstance(read_as_json.get(name), dict | list) for name in sections):
        return None
    program = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, indent=2)"
    command = f"python -c '{program}' < {typed(Path(file))} > {typed(Path(file).with_suffix('.json'))}"
    message = f"`{file}` is a ds_config written as YAML, but DeepSpeed reads JSON"
    return Finding("not-accelerate-config", message, f"`{command}`")


def read_ds_config(name: Path) -> Document:
    """Read a ds_config as `dsconfig.read` does; raise WrongUsage for a config of another kind."""
    document: Document | None = None
    if name.suffix in (".yaml", ".yml"):
        text, keys = _read_other(name)
    else:
        document = read(name)
        text, keys = "", document.value
    other = config_of_other_program(str(name), keys)
    if other is None and document is None:
        other = ds_config_in_yaml(str(name), text, keys)
    if other is not None:
        raise WrongUsage(other.message, other.hint)
    return document or read(name)


def _read_other(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the object of a JSON or YAML file; both empty if it cannot be read."""
    import yaml  # takes as long as the rest of a dry run's imports

    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        text = path.read_text("utf-8", "replace")
        read = yaml.safe_load
        if path.suffix == ".json":
            read = json.loads
        value = read(text)
        if isinstance(value, dict):
            return text, {str(key): part for key, part in value.items()}
    return "", {}


def _is_shell_script(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline(256)
    except OSError:
        return False
    if line.startswith("#!"):
        return bool(re.match(_SHELL, line))
    return path.suffix in _SHELL_SUFFIXES


def _shell_script(path: Path) -> WrongUsage:
    hint = f"run `bash {shlex.quote(str(path))}`"
    if change := _change_in(path):
        hint = f"{change}, and {hint}"
    return WrongUsage(f"`{path}` is a shell script, not a training script", hint)


def _change_in(path: Path) -> str:
    """Say which line of a shell script must start zlaunch; nothing if one does."""
    lines = [*_commands(path)]
    if any(re.search(_STARTS_ZLAUNCH, line) for _, line in lines):
        return ""
    for number, line in lines:
        if re.search(_STARTS_RANKS, line):
            return (
                f"translate the command in line {number} with `zlaunch config translate -- COMMAND`, "
                "put the result in its place"
            )
    for number, line in lines:
        if start := re.search(_STARTS_PYTHON, line):
            return f"in line {number}, write `zlaunch train {start['program']} -- …` for `{start[0]} …`"
    return "start zlaunch in it: `zlaunch train SCRIPT -- ARGS`"


def _commands(path: Path) -> Iterator[tuple[int, str]]:
    """Return the commands of a shell script, each with the number of its first line."""
    start, command = 0, ""
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        if not command:
            start = number
        command += line.removesuffix("\\") + " "
        if not line.endswith("\\"):
            yield start, command
            command = ""


_JSON: Mapping[str, Callable[[Path], WrongUsage]] = {
    ".ipynb": _notebook,
    **dict.fromkeys((".json", ".yaml", ".yml", ".toml"), _config),
}
"""Suffixes of files that may be valid Python, as JSON is, but are meant as something else."""
