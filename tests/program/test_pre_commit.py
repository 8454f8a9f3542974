"""The hooks for other repositories, run by pre-commit itself in a repository of its own."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.abilities import unable
from tests.environments import LIGHT
from tests.running import ACTIVATED, ROOT, Result, run
from tools.gather_wheels import with_requirements

INSTALLED_BY_PIP = (
    "zlaunch",
    "recipes",
    "configs",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
)
HOOKS = ".pre-commit-hooks.yaml"
FAULTY = '{\n  "zero_optimisation": {"stage": 2},\n  "train_batch_size": 8,\n}\n'
FIXED = '{\n  "zero_optimization": {"stage": 2},\n  "train_batch_size": 8\n}\n'
CONFIG = "repos:\n- repo: {}\n  rev: {}\n  hooks:\n  - id: zlaunch-config-validate{}\n  - id: zlaunch-config-fix{}\n"
NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ProxyError|ConnectTimeoutError")


def git(*words: str, cwd: Path) -> str:
    result = run("git", "-c", "user.name=me", "-c", "user.email=me@here", *words, cwd=cwd)
    assert result.status == 0, result.err
    return result.out.strip()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """This project as a repository that others name."""
    copy = tmp_path / "zlaunch-repository"
    copy.mkdir()
    for name in (*INSTALLED_BY_PIP, HOOKS):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, copy / name)
    git("init", "-q", cwd=copy)
    git("add", "-A", cwd=copy)
    git("commit", "-q", "-m", "release", cwd=copy)
    return copy


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository, with a ds_config and another JSON file."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "ds_config.json").write_text(FAULTY)
    (folder / "package.json").write_text("{,}")
    git("init", "-q", cwd=folder)
    return folder


def commit_hook(repository: Path, hook: str) -> Result:
    git("add", "-A", cwd=repository)
    env = {**ACTIVATED, "PRE_COMMIT_HOME": str(repository.parent / "cache")}
    result = run(sys.executable, "-m", "pre_commit", "run", hook, "--all-files", cwd=repository, env=env)
    if NO_NETWORK.search(result.out + result.err):
        unable("PyPI cannot be reached")
    return result


@pytest.mark.job
@pytest.mark.parametrize(
    "kind", [pytest.param("-system", id="system"), pytest.param("", id="own", marks=pytest.mark.full)]
)
def test_the_hooks_report_mistakes_by_line_and_fix_them(kind: str, published: Path, repository: Path) -> None:
    config = CONFIG.format(published, git("rev-parse", "HEAD", cwd=published), kind, kind)
    (repository / ".pre-commit-config.yaml").write_text(config)
    refused = commit_hook(repository, f"zlaunch-config-validate{kind}")
    assert (refused.status, "\nds_config.json:2:3: " in refused.out) == (1, True), refused
    assert "hint: did you mean `zero_optimization`?" in refused.out
    assert "package.json" not in refused.out
    fixed = commit_hook(repository, f"zlaunch-config-fix{kind}")
    assert (fixed.status, "files were modified by this hook" in fixed.out) == (1, True), fixed
    assert (repository / "ds_config.json").read_text() == FIXED
    passed = commit_hook(repository, f"zlaunch-config-validate{kind}")
    assert (passed.status, passed.out.strip()[-6:]) == (0, "Passed")
    assert [*repository.parent.glob("cache/**/site-packages/torch")] == []


def test_an_environment_of_its_own_has_all_that_the_light_packages_need() -> None:
    hooks: list[dict[str, Any]] = yaml.safe_load((ROOT / HOOKS).read_text())
    listed = [hook["additional_dependencies"] for hook in hooks if hook["language"] == "python"]
    needed = sorted(with_requirements(LIGHT), key=str.lower)
    assert listed == [["--no-deps", "--constraint=constraints.txt", *needed]] * 2
