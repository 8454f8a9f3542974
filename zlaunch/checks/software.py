"""Checks of the software of a host: Python, packages, compilers, and native ops."""

from collections.abc import Iterator

from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import TRAINING, Interpreter, stack_of
from zlaunch.hosts.machine.op_states import OpState
from zlaunch.job.file_kinds import OF_ANOTHER_PROGRAM
from zlaunch.job.stack import TESTED
from zlaunch.units import duration, numbers_of

SHOWN = ("huggingface_hub", "safetensors", "tokenizers", "bitsandbytes", "flash_attn", "mpi4py", "triton")
"""Packages that are shown if they are there, besides those that every description of a Python covers."""

_UNSHOWN = ("typer",)


def python(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Show the interpreter of the ranks."""
    yield CheckResult("Python", Status.OK, f"{facts.python.version}, {facts.python.executable}")


def packages(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Compare the packages with those that zlaunch was tested with."""
    for name in TESTED:
        yield _package(name, facts.python)
    others = []
    for name, package in facts.python.packages.items():
        if package is not None and name not in TESTED and name not in _UNSHOWN:
            others.append(f"{name} {package.version or ''}".strip())
    if others:
        yield CheckResult("other packages", Status.OK, ", ".join(others))


def _package(name: str, python: Interpreter) -> CheckResult:
    package, pip = python.packages[name], f"{python.executable} -m pip install"
    if package is None:
        status = Status.ERROR if name in TRAINING else Status.WARNING
        return CheckResult(name, status, "not installed", f"`{pip} {name}`")
    version = package.version or "unknown version"
    oldest, newest = TESTED[name]
    tested = newest if oldest == newest else f"{oldest} to {newest}"
    if stack_of(python).is_tested(name):
        return CheckResult(name, Status.OK, version)
    if numbers_of(version) > numbers_of(newest):
        text = f"{version}, newer than what zlaunch was tested with ({tested})"
        return CheckResult(name, Status.NOTE, text)
    text = f"{version}, older than what zlaunch was tested with ({tested})"
    status = Status.WARNING if name in {"deepspeed", "transformers"} else Status.NOTE
    return CheckResult(name, status, text, f"`{pip} --upgrade {name}`")


def compilers(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Look for what compiles native ops; without it, a job that needs them cannot start."""
    there, missing = facts.compilers, {}
    if there is None:
        return
    if there.cxx is None:
        missing["a C++ compiler"] = "`apt-get install g++`"
    if there.ninja is None:
        missing["ninja"] = f"`{facts.python.executable} -m pip install ninja`"
    if not there.has_python_headers:
        missing["the headers of Python"] = "`apt-get install python3-dev`"
    if not missing:
        yield CheckResult("compilers", Status.OK, f"C++ {there.cxx}, ninja {there.ninja}".replace(" ,", ","))
        return
    without, hint = f"without {', '.join(missing)}", ", ".join(missing.values())
    if any(op.state != "ready" for op in (facts.ops or {}).values()):
        text = f"{without}, the native ops of this job cannot be compiled"
        finding = Finding("no-compiler", text, hint, severity=Severity.FAILS_LATER)
        yield judged("compilers", text, finding)
    else:
        yield CheckResult("compilers", Status.WARNING, f"{without}, native ops cannot be compiled", hint)


def ds_config(_: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Name the ds_config at hand, its warnings, and its first mistake."""
    config = needs.config
    if config is None:
        return
    for warning in config.warnings:
        yield judged(warning.code.replace("-", " "), warning.message, warning)
    if not config.findings:
        yield CheckResult("ds_config", Status.OK, config.name)
        return
    first, *rest = config.findings
    more = f", and {len(rest)} more" if rest else ""
    hint: str | None = f"`{config.shown_by or f'zlaunch config validate {config.name}'}`"
    if not rest and first.code in _WHOLE_FILE:
        hint = first.hint or hint
    text = first.message
    if config.name not in text:
        text = f"{config.name}: {text}"
    yield judged("ds_config", f"{text}{more}", first, hint)


_WHOLE_FILE = (OF_ANOTHER_PROGRAM, "bad-option")
"""Codes of mistakes whose hint says all that there is to type."""


def ops(facts: MachineFacts, _: Requirements) -> Iterator[CheckResult]:
    """Tell the native ops that a start would have to compile, and builds that were killed."""
    for name, op in (facts.ops or {}).items():
        yield _op(name, op)


def _op(name: str, op: OpState) -> CheckResult:
    title = f"op {name}"
    match op.state:
        case "ready":
            return CheckResult(title, Status.OK, "compiled")
        case "missing":
            text = f"not compiled yet; the first start does it ({OPS[name].why})"
            return CheckResult(title, Status.NOTE, text)
        case "stale":
            return CheckResult(title, Status.NOTE, f"the first start compiles it again: {op.why}")
        case "locked":
            who = "another user, container or host" if op.holder is None else f"process {op.holder}"
            return CheckResult(title, Status.NOTE, f"{who} is compiling it, for {duration(op.age)} so far")
    text = f"its build was killed {duration(op.age)} ago; without zlaunch, ranks wait for the lock forever"
    return CheckResult(title, Status.WARNING, text, f"`rm {op.lock}`")
