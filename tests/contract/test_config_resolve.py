"""`zlaunch config resolve`, from a file to its answer, against the installed transformers and accelerate."""

import json
from pathlib import Path
from typing import Any

from tests.contract.test_accelerate import PLUGIN_FILLS, ZERO, autos, plugin_fills
from tests.contract.test_trainer import ARGUMENTS, CELLS, leaves
from tests.contract.trainer_side import all_auto, trainer_fills
from tests.each import each
from tests.running import CONFIGS, zlaunch
from zlaunch.cli.views.resolved_config import as_json
from zlaunch.config.report import context_of
from zlaunch.config.resolve.lr_schedule import schedule_of
from zlaunch.config.resolve.resolve import batch_equation, resolve_file
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import dotted
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface


def told(
    config: dict[str, Any],
    argv: list[str],
    job: tuple[int, int],
    folder: Path,
    interface: ConfigInterface = ConfigInterface.TRAINER,
) -> Any:
    """Answer as the verb does."""
    hidden, ranks = job
    file, model = folder / "ds_config.json", folder / "config.json"
    file.write_text(json.dumps(config))
    model.write_text(json.dumps({"hidden_size": hidden}))
    context, findings = context_of(ScriptArgs.of(argv), ranks, model, interface.value, None)
    assert not findings
    resolved = resolve_file(read(file), context)
    batch = batch_equation(resolved.values, context)
    return json.loads(
        "".join(as_json(resolved, batch, schedule_of(resolved, interface, ScriptArgs.of(argv))))
    )


@CELLS
def test_every_value_told_is_the_one_the_trainer_fills_in(
    given: str, stage: int, hidden: int, ranks: int, tmp_path: Path
) -> None:
    argv, config = ARGUMENTS[given].split(), all_auto(stage)
    ours = told(config, argv, (hidden, ranks), tmp_path)
    model_config = type("Config", (), {"hidden_size": hidden})
    theirs = leaves(trainer_fills(config, argv, world_size=ranks, model_config=model_config).config)
    known = {key: value for key, value in leaves(ours["config"]).items() if key not in ours["open"]}
    assert known == {key: value for key, value in theirs.items() if key not in ours["open"]}


@each("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
@each("given", ["nothing", "everything"])
def test_a_shipped_config_is_told_as_the_trainer_fills_it_in(given: str, file: Path, tmp_path: Path) -> None:
    argv, config = ARGUMENTS[given].split(), json.loads(file.read_text())
    ours = told(config, argv, (64, 2), tmp_path)
    model_config = type("Config", (), {"hidden_size": 64})
    theirs = trainer_fills(config, argv, world_size=2, model_config=model_config).config
    assert leaves(ours["config"]) == leaves(theirs)


@each("path", PLUGIN_FILLS, ids=dotted)
def test_a_default_of_accelerate_is_told_as_the_plugin_fills_it_in(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    values = autos((ZERO, "stage"), path)
    ours = told(values.config(), [], (64, 2), tmp_path, ConfigInterface.ACCELERATE)
    assert ours["filled"][dotted(path)]["value"] == plugin_fills(values)[path]


def test_the_program_tells_the_same(tmp_path: Path) -> None:
    config = CONFIGS / "zero2.json"
    ours = told(json.loads(config.read_text()), ["--bf16"], (64, 2), tmp_path)
    model = tmp_path / "config.json"
    flags = ("--world-size", 2, "--model", model, "--format", "json")
    done = zlaunch("config", "resolve", config, *flags, "--", "--bf16", cwd=tmp_path)
    assert json.loads(done.out)["config"] == ours["config"]
