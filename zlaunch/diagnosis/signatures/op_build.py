"""Native ops of DeepSpeed could not be built or loaded."""

import re

from zlaunch.diagnosis.advice import named_in
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import RankEvidence
from zlaunch.diagnosis.log_text import compiler_error, matching_line
from zlaunch.diagnosis.root_cause import RankRole, roles
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.rundir import phases
from zlaunch.units import duration

_FAILED = re.compile(
    r"Error building extension '(\w+)'|requires the (\w+) op, which failed to build"
    r"|JIT load the (\w+) op"
)
_AFTERWARDS = r"object has no attribute 'ds_opt_\w+'"
_BUILDS = re.compile(r"subprocess\.py|_run_ninja_build|selectors\.py")
"""Where a rank is while it waits for its own compiler."""
_FILELOCK = re.compile(r"filelock/_api\.py|_core/_acquire\.py")
"""Where a rank waits for a process that has locked a file, as torch after 2.13 does."""
_ROOT = r"Using (\S+) as PyTorch extensions root"


@signature("stale-build-lock", "no progress in `building ops`, or after `as PyTorch extensions root...`")
def stale_build_lock(case: Case) -> Reading | None:
    """All ranks wait for a build that does not end: it hangs, or it was killed and left its lock."""
    stall = case.evidence.stall
    failed = any(role in {RankRole.FAILED, RankRole.LOST} for role in roles(case.evidence).values())
    if stall is None or failed or any(_BUILDS.search(place) for place in stall.where.values()):
        return None
    ranks = case.evidence.ranks
    if not ranks or not all(_waits_for_a_build(rank, stall.where.get(rank.rank, "")) for rank in ranks):
        return None
    first, advice = ranks[0], []
    cause = f"rank {first.rank} waits for a native op, but no process seems to build it"
    if any(_FILELOCK.search(place) for place in stall.where.values()):
        cause = f"rank {first.rank} waits for a native op: another process has locked its directory"
        advice.append("`lslocks` shows the processes that hold a `lock`: end the one that builds nothing")
    elif (root := named_in(first.log, _ROOT)) and len(root) < 120:
        advice.append(f"`find {root} -name lock -delete`, if no compiler is running")
    facts = (f"no progress for {duration(stall.seconds)}", matching_line(_ROOT, first.log))
    return Reading(cause, (*facts, stall.where.get(first.rank)), advice, rank=first)


def _waits_for_a_build(rank: RankEvidence, place: str) -> bool:
    _, mark, after = rank.log.rpartition("as PyTorch extensions root...")
    return rank.phase == phases.BUILDING or "file_baton.py" in place or (bool(mark) and not after.strip())


@signature("cuda-home-missing", "`CUDA_HOME does not exist`, `CUDA_HOME environment variable is not set`")
@quotes(r"CUDA_HOME does not exist|CUDA_HOME environment variable is not set", "story")
def cuda_home_missing(case: Case, line: str) -> Reading:
    """An op must be compiled for CUDA, but no CUDA toolkit was found."""
    advice = ("install the CUDA toolkit that matches torch, and set `CUDA_HOME` to its directory",)
    return Reading(f"{case.who} must compile an op for CUDA, but found no CUDA toolkit", (line,), advice)


@signature("cuda-mismatch", "`Installed CUDA version X does not match the version torch was compiled with Y`")
def cuda_mismatch(case: Case) -> Reading | None:
    """The CUDA toolkit has a different version than the one torch was compiled with."""
    match = re.search(
        r"Installed CUDA version ([\d.]+) does not match the version torch was compiled "
        r"with ([\d.]+\d)[^\n]*unable"
        r"|detected CUDA version \(([\d.]+)\) mismatches the version that was used to compile\s+"
        r"PyTorch \(([\d.]+)\)",
        case.story,
    )
    if match is None:
        return None
    installed, compiled = [part for part in match.groups() if part]
    facts = (f"toolkit {installed}, torch {compiled}",)
    advice = (f"install CUDA toolkit {compiled}, and set `CUDA_HOME` to its directory",)
    return Reading("torch was compiled with a different version of the CUDA toolkit", facts, advice)


@signature(
    "libaio-missing",
    "`please install the libaio-dev package`, `libaio.h: No such file`, async_io not loadable",
)
def libaio_missing(case: Case) -> Reading | None:
    """Offload to NVMe needs libaio and its headers."""
    printed = f"{case.story}\n{case.log}"
    needed = re.search(
        r"JIT load the async_io op|Error building extension 'async_io'|libaio\.h|-laio", case.story
    )
    line = matching_line(
        r"install the libaio\S* package|libaio\.h|cannot find -laio|libaio \.so object", printed
    )
    if needed is None or line is None:
        return None
    package = named_in(printed, r"install the (libaio\S*) package with (?:apt|yum|pacman)")
    tool = named_in(printed, r"install the libaio\S* package with (apt|yum|pacman)")
    advice = []
    if tool in {"apt", "yum"}:
        advice.append(f"`{tool} install {package}`")
    return Reading("offload to NVMe needs libaio and its headers", (line,), advice)


@signature("ninja-missing", "`Ninja is required to load C++ extensions`, `due to ninja not being installed`")
@quotes(r"Ninja is required to load|ninja not being installed", "story")
def ninja_missing(case: Case, line: str) -> Reading:
    """Compiling ops needs ninja, which is not installed."""
    return Reading("compiling ops needs ninja, which is not installed", (line,), ("`pip install ninja`",))


@signature("op-build-failed", "`Error building extension`, and the compiler's first error above it")
def op_build_failed(case: Case) -> Reading | None:
    """An op did not compile; later errors, such as one about `ds_opt_adam`, follow from it."""
    text = f"{case.story}\n{case.log}"
    followed = matching_line(_AFTERWARDS, case.story)
    failed = _FAILED.search(case.story)
    if failed is None and followed:
        failed = _FAILED.search(case.log)
    if failed is None and followed is None:
        return None
    facts = [
        compiler_error(text) or matching_line(r"/bin/sh: [^\n]*not found|No such file or directory: '", text),
        matching_line(r"(?m)^Unable to JIT load|compatible due to hardware", text),
    ]
    op = "of the optimizer"
    if failed is None:
        facts.append(followed)
    else:
        op = "".join(filter(None, failed.groups()))
    return Reading(f"the native op {op} could not be built", facts)


@signature(
    "op-not-loadable", "`undefined symbol`, `cannot open shared object file`, ops of another torch or CUDA"
)
@quotes(
    r"ImportError: [^\n]*(?:undefined symbol|cannot open shared object|version `GLIBC\S*' not found)"
    r"|(?:PyTorch|CUDA|HIP) version mismatch! DeepSpeed ops"
)
def op_not_loadable(case: Case, line: str) -> Reading:
    """A compiled library does not match the installed packages."""
    folder = named_in(line, r"((?:/[\w.+-]+)*/torch_extensions/[\w.+-]+/\w+)/\w+\.so")
    advice = []
    if folder:
        advice.append(f"`rm -r {folder}`: it will be rebuilt")
    return Reading(f"a compiled library does not match the packages that {case.who} uses", (line,), advice)
