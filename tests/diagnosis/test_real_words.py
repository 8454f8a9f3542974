"""The installed packages still say what the signatures look for."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.diagnosis.deaths import run
from tests.each import each
from tests.running import ROOT
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import ErrorEvidence, RankEvidence

pytestmark = pytest.mark.job
PROGRAM = ROOT / "tests" / "diagnosis" / "really.py"
PROVOKED = re.findall(r"^def (\w+)\(\) -> None:", PROGRAM.read_text("utf-8"), re.MULTILINE)[:-1]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    folder: Path = tmp_path_factory.mktemp("said")
    command = [sys.executable, str(PROGRAM), str(folder)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    found: Mapping[str, Mapping[str, str]] = json.loads((folder / "said.json").read_text("utf-8"))
    return found


@each("provoked", PROVOKED)
def test_a_death_that_was_really_provoked_is_known(
    provoked: str, said: Mapping[str, Mapping[str, str]]
) -> None:
    if provoked not in said:
        pytest.skip("this machine does not die of it")
    error = ErrorEvidence(**said[provoked])  # type: ignore[arg-type]
    verdict = diagnose(run(RankEvidence(0, returncode=1, error=error)))
    assert verdict.code == provoked.partition("__")[0].replace("_", "-")
    logged = diagnose(run(RankEvidence(0, returncode=1, log=error.traceback)))
    assert logged.code == verdict.code
