"""Native ops of several environments: real builds by DeepSpeed, torch and ninja, of a source of a few lines."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import environments
from tests.running import ROOT, run
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.process import ours

pytestmark = pytest.mark.job

OP = "deepspeed_shm_comm"
SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "deepspeed_shm_comm", nullptr, -1, nullptr};
extern "C" PyObject* PyInit_deepspeed_shm_comm() { return PyModule_Create(&module); }
"""


@dataclass(frozen=True)
class Environment:
    """An environment with a DeepSpeed of its own, whose op compiles in a second."""

    python: Path
    caches: Path

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([*inspect_python(self.python).programs, os.environ["PATH"]])
        return {"XDG_CACHE_HOME": str(self.caches), "PATH": path, "DS_ACCELERATOR": "cpu"}

    def make_ready(self, **env: str) -> tuple[str, Path]:
        """Make its op ready; return what a user is told, and the folder of the op."""
        argv = [sys.executable, "-m", "tests.op_builder", self.python, self.caches / "run"]
        done = run(*argv, cwd=ROOT, env={**self.env, **env})
        assert done.status == 0, done.err
        return done.err, Path(done.out.strip()) / OP

    def compile_bare(self) -> Path:
        """Let torch compile it where torch wants, as under a bare launcher."""
        done = run(*ours("zlaunch.worker.build_op", "ShareMemCommBuilder", python=str(self.python)),
                   cwd=self.caches, env=self.env)  # fmt: skip
        assert done.status == 0, done.err
        (folder,) = (self.caches / "torch_extensions").glob(f"*/{OP}")
        return folder


def environment(folder: Path, caches: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site, theirs = environments.site_of(folder), inspect_python(None).folder("deepspeed")
    (site / "packages.pth").write_text(f"{environments.packages()}\n")
    (info,) = theirs.parent.glob("deepspeed-*.dist-info")
    for one in (theirs, info):
        shutil.copytree(
            one, site / one.name, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.pyc")
        )
    for name, text in (("shm.cpp", "int nothing;\n"), ("shm_interface.cpp", SOURCE)):
        file = site / "deepspeed" / "ops" / "csrc" / "cpu" / "comm" / name
        file.unlink()
        file.write_text(text)
    caches.mkdir(exist_ok=True)
    return Environment(folder / "bin" / "python", caches)


def made(folder: Path) -> int:
    return (folder / f"{OP}.so").stat().st_mtime_ns


def test_environments_do_not_rebuild_each_others_ops_and_lost_objects_are_made_before_the_ranks(
    tmp_path: Path,
) -> None:
    mine, other = (environment(tmp_path / name, tmp_path / "caches") for name in ("mine", "other"))
    said, folder = mine.make_ready()
    assert f"compiling 1 native op, once; kept in {folder.parent}" in said
    assert "compiled in" in said
    before = made(folder)
    assert "compiled in" in other.make_ready()[0]
    assert (mine.make_ready(), made(folder)) == (("", folder), before)

    (folder / "shm.o").unlink()
    said, _ = mine.make_ready()
    assert f"{OP} (1 of 1): ranks on one CPU reduce through shared memory; its files have changed" in said
    assert "compiled in" in said
    assert made(folder) > before
    assert mine.make_ready()[0] == ""


def test_what_a_bare_launcher_compiled_is_taken_and_not_compiled_again(tmp_path: Path) -> None:
    mine = environment(tmp_path / "mine", tmp_path / "caches")
    bare = mine.compile_bare()
    said, folder = mine.make_ready()
    assert f"copied {OP} from {bare.parent}\nchecking 1 native op, once; kept in {folder.parent}\n" in said
    assert "loaded in" in said
    assert made(folder) == made(bare)
    assert mine.make_ready()[0] == ""


@pytest.mark.full
def test_a_directory_of_the_users_is_built_again_for_each_environment_and_that_is_said(
    tmp_path: Path,
) -> None:
    mine, other = (environment(tmp_path / name, tmp_path / "caches") for name in ("mine", "other"))
    chosen = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "chosen")}
    assert mine.make_ready(**chosen)[1] == tmp_path / "chosen" / OP
    said, folder = other.make_ready(**chosen)
    assert "its library was built for another environment" in said
    assert (folder, "compiled in" in said) == (tmp_path / "chosen" / OP, True)
