"""Native ops are compiled on every host whose cache lacks them, before any rank starts."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.ways import losses, words
from tests.running import Result, zlaunch
from zlaunch.hosts.machine.build_lock import locks_by_file
from zlaunch.hosts.machine.interpreter import inspect_python

pytestmark = pytest.mark.hosts

OP = "deepspeed_shm_comm"


def train(bed: Bed, folder: Path, variables: Mapping[str, str]) -> Result:
    """Train where each login has more variables; `{host}` in one stands for its host."""
    (programs := folder / "bin").mkdir()
    options = " ".join(f"{name}={value.format(host='$host')}" for name, value in variables.items())
    (programs / "ssh").write_text(
        "#!/bin/sh\nfor word; do case $word in zlnode?) host=$word;; esac; done\n"
        f'exec {bed.programs}/ssh -o "SetEnv={options}" "$@"\n'
    )
    (programs / "ssh").chmod(0o755)
    env = bed.environment()
    env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    return zlaunch("train", *words(2), "--hostfile", bed.hostfile, cwd=folder, env=env)


def fill(cache: Path) -> None:
    """Put what was compiled here without zlaunch into a cache; where nothing was, the hosts compile it."""
    own, package = Path.home() / ".cache" / "torch_extensions", find_spec("deepspeed")
    assert package is not None
    assert package.origin is not None
    source = str(Path(package.origin).parent)
    marks = own.glob(f"*/{OP}/zlaunch.txt")
    fitting = [one for one in marks if f"I{source}" in one.with_name("build.ninja").read_text()]
    for built in fitting[:1]:
        kept = cache / "torch_extensions" / built.parents[1].name.partition("-")[0] / OP
        shutil.copytree(built.parent, kept)
        (kept / built.name).unlink()


def said_of(result: Result, name: str) -> list[str]:
    """What a host said of how it made the op ready."""
    return re.findall(rf"^{name}: {OP} \(1 of 1\): (?:compiled|loaded) in", result.err, re.MULTILINE)


def test_each_host_makes_the_ops_of_its_own_cache_ready_before_ranks_start(bed: Bed, tmp_path: Path) -> None:
    for name in NAMES:
        fill(tmp_path / name)
    result = train(bed, tmp_path, {"XDG_CACHE_HOME": f"{tmp_path}/{{host}}"})
    assert result.status == 0, result.err
    for rank, name in enumerate(NAMES):
        assert len(said_of(result, name)) == 1, result.err
        (mark,) = (tmp_path / name).glob(f"torch_extensions/*/{OP}/zlaunch.txt")
        started = json.loads((tmp_path / "r" / "ranks" / f"rank-{rank}.json").read_text())["started"]
        assert mark.stat().st_mtime < started
        assert len(losses(tmp_path / "r", rank)) == 4


@pytest.mark.full
def test_of_hosts_that_share_a_cache_one_makes_it_ready(bed: Bed, tmp_path: Path) -> None:
    fill(cache := tmp_path / "cache")
    own = (Path.home() / ".cache" / "torch_extensions").glob("*-*")
    for name in {folder.name for folder in own}:  # that it is one directory shows only where it exists
        (cache / "torch_extensions" / name).mkdir(parents=True)
    result = train(bed, tmp_path, {"XDG_CACHE_HOME": str(cache)})
    assert result.status == 0, result.err
    assert [len(said_of(result, name)) for name in NAMES] == [1, 0], result.err


@pytest.mark.full
def test_a_host_where_nothing_compiles_is_named_and_nothing_starts(bed: Bed, tmp_path: Path) -> None:
    result = train(bed, tmp_path, {"XDG_CACHE_HOME": f"{tmp_path}/{{host}}", "CXX": "/no/c++"})
    said = " ".join(result.err.split())
    assert (result.status, f"{OP} cannot be compiled" in said) == (69, True), result.err
    assert any(f"error: {name}: {OP}" in said for name in NAMES)
    assert not [*(tmp_path / "r" / "ranks").glob("rank-*")]


@pytest.mark.full
def test_the_lock_that_a_killed_build_has_left_on_another_host_keeps_no_job_waiting(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed there where torch would wait for it; then the build fails at once, for want of a compiler."""
    lock = tmp_path / OP / "lock"
    lock.parent.mkdir()
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    result = train(bed, tmp_path, {"CXX": "/no/c++"})
    is_removed = f"removed the lock {lock}" in " ".join(result.err.split())
    assert (result.status, is_removed) == (69, locks_by_file(inspect_python(None))), result.err
    assert lock.exists() != is_removed
