"""Run ranks of a user's program in a process of zlaunch, as a rehearsal or a check of it."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Final

from zlaunch.config.resolve.compose import to_json
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.diagnosis.signatures.script import OTHER_EXCEPTION
from zlaunch.errors import Finding, Severity
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.launch.asked_program import ended_by_itself, error_of, first_rank, last_lines
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import PlanReporter
from zlaunch.process import Child, ours
from zlaunch.units import duration

_GRACE_SECONDS: Final = 2.0
_QUIET: Final = {
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONFAULTHANDLER": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
"""Trackers are off, nothing is downloaded, no thread of a tokenizer is there to fork, and git only reads."""


@dataclass(frozen=True)
class EndedProgram:
    """How the process ended, and what it printed."""

    returncode: int
    is_late: bool
    """Whether it was ended because it took too long."""
    log: Path

    def complete(self, error: str) -> str:
        """Add the last error that it printed to the error of a program that exited."""
        printed = error_of(last_lines(self.log))
        return f"{error}: {printed}" if printed else error

    @property
    def crash(self) -> str:
        """Why it left no result: an error in a package that ends Python itself."""
        lines = last_lines(self.log)
        if self.returncode >= 0:
            return error_of(lines) or f"its process ended with {self.returncode}"
        error = f"its process ended with signal {-self.returncode}"
        stack = [line for line in lines if line.lstrip().startswith('File "')]
        if stack:
            error += f" in {stack[0].strip()}"
        return error


@dataclass(frozen=True)
class ProgramProcess:
    """A process that runs ranks of the program of a plan."""

    plan: LaunchPlan
    directory: Path
    """Gets everything that it writes."""
    reporter: PlanReporter
    doing: str
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, module: str, order: Any, most_seconds: float) -> EndedProgram:
        """Give an order to a module of zlaunch, which writes results into the directory."""
        self.plan.layout.root.mkdir()
        if self.plan.ds_config.leaves:
            self.plan.layout.ds_config.write_text(to_json(self.plan.ds_config.config()), "utf-8")
        file, log = self.directory / "order.json", self.directory / "log"
        file.write_text(json.dumps(asdict(order)), "utf-8")
        argv = ours(module, str(file), str(self.directory), python=str(self.plan.python.executable))
        started = time.monotonic()
        is_late = False
        with log.open("wb") as output:
            child = Child(argv, self._environment(), output, _GRACE_SECONDS)

            def follow() -> None:
                nonlocal is_late
                took = time.monotonic() - started
                self.reporter.busy(self.doing, duration(took))
                if took > most_seconds:
                    is_late = True
                    child.end_within(0.0)

            returncode = ended_by_itself(child, follow)
        return EndedProgram(returncode, is_late, log)

    def _environment(self) -> Mapping[str, str]:
        """Give the process what the first rank would get; it uses no accelerator, and no other machine."""
        given = {name: variable.value for name, variable in self.plan.environment.items()}
        temporary = self.directory / "tmp"
        temporary.mkdir()
        return {
            **self.environ,
            **given,
            **first_rank(self.plan.topology),
            **ENVIRONMENT,
            **_QUIET,
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(free_port()),
            "TMPDIR": str(temporary),
        }


def argv_of(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the file of a program, or `-m` and its module, and its arguments as the first rank gets them."""
    program = [str(plan.script.path)]
    if plan.module is not None:
        program = ["-m", plan.module]
    if plan.script.local_rank_flag:
        program.append(f"{plan.script.local_rank_flag}=0")
    return (*program, *plan.args.words)


def refusal(facts: JobFacts, error: str, place: str | None) -> Finding:
    """Explain what DeepSpeed raised, as at the end of a run."""
    kind, _, message = error.partition(": ")
    script = facts.script
    evidence = Evidence(
        JobEvidence(interface=script.interface, handover=script.handover),
        (RankEvidence(0, has_started=True, returncode=1, error=ErrorEvidence(kind, message)),),
    )
    verdict, text = diagnose(evidence), f"DeepSpeed fails: {error}"
    if verdict.code != OTHER_EXCEPTION:
        text = verdict.cause
    if place is not None:
        text += f" ({place})"
    hint = "; or ".join(verdict.advice) or None
    return Finding("deepspeed-gives-up", text, hint, severity=Severity.FAILS_LATER)
