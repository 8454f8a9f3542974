"""The wheel that is built from the sdist, installed into environments of its own, far from this repository."""

import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.environments import LIGHT, site_of
from tests.running import ACTIVATED, ROOT, Result, run, the_run
from tools import bare_python
from tools.build_ops import op_cache

pytestmark = pytest.mark.job

BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
OF_A_RUN = ("list", "show", "why", "logs")


def built(kind: str, source: Path, folder: Path) -> Path:
    result = run(sys.executable, "-c", BUILD, f"build_{kind}", folder, cwd=source)
    assert result.status == 0, result.err
    return folder / result.out.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(built("sdist", ROOT, folder)) as sdist:
        sdist.extractall(folder, filter="data")
    (source,) = (one for one in folder.iterdir() if one.is_dir())
    return built("wheel", source, folder)


def install(wheel: Path, home: Path) -> Path:
    """Install the wheel as pip does; return the program."""
    pip = ("-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    result = run(sys.executable, *pip, cwd=home)
    assert result.status == 0, result.err
    return home / "bin" / "zlaunch"


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """zlaunch in an environment that sees all packages installed here; but not this repository."""
    home = tmp_path_factory.mktemp("full")
    shared = [entry for entry in sys.path if entry.endswith("-packages")]
    bare_python.make(home, (), "--without-pip")
    (site_of(home) / "shared.pth").write_text("\n".join(shared))
    return install(wheel, home)


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """zlaunch in an environment that has only what configs and runs need."""
    home = tmp_path_factory.mktemp("light")
    bare_python.make(home, LIGHT, "--without-pip")
    return install(wheel, home)


@pytest.fixture(scope="module")
def trained(full: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One step of the default job, and the folder in which it was started."""
    folder = tmp_path_factory.mktemp("elsewhere")
    path = os.pathsep.join([str(full.parent), ACTIVATED["PATH"]])
    env = {"PATH": path, "TORCH_EXTENSIONS_DIR": str(op_cache().folder)}
    return folder, run(full, "train", "--", "--max_steps", "1", cwd=folder, env=env)


def test_the_wheel_has_the_recipes_and_configs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    files = [file for name in ("recipes", "configs") for file in (ROOT / name).rglob("*.*")]
    files = [file for file in files if "__pycache__" not in file.parts]
    assert files
    assert [
        file for file in files if packed.get(f"zlaunch/{file.relative_to(ROOT)}") != file.read_bytes()
    ] == []


def test_the_wheel_has_the_files_of_pages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"zlaunch/cli/views/run_page.{kind}" for kind in ("py", "html", "js")} <= {*names}


def test_an_installed_wheel_trains(trained: tuple[Path, Result], full: Path) -> None:
    folder, result = trained
    assert result.status == 0, result.out + result.err
    assert f"{ROOT}/" not in (the_run(folder) / "job.json").read_text()
    assert str(full.parents[1]) in (the_run(folder) / "job.json").read_text()


@pytest.mark.parametrize("command", OF_A_RUN)
def test_a_copied_run_can_be_read_without_torch(
    command: str, trained: tuple[Path, Result], full: Path, light: Path
) -> None:
    folder, _ = trained
    shutil.copytree(folder / "runs", folder / command / "runs")
    expected, found = (run(one, "runs", command, cwd=folder / command) for one in (full, light))
    assert found == expected
    assert (found.status, bool(found.out)) == (0, True)
