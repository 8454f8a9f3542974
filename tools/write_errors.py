"""Write docs/errors.md from the rules: `python tools/write_errors.py`."""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Rule
from zlaunch.errors import Severity

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

HEAD = """# What `zlaunch config validate` finds

This page is written by `make docs` from the rules themselves.

| severity | what happens if it is left |
|---|---|
"""

SEVERITIES: Mapping[Severity, str] = {
    Severity.ERROR: "DeepSpeed refuses the config when it reads it, in every rank",
    Severity.LATE: "the job fails after the model is loaded, or at its first step",
    Severity.SILENT: "the job runs, and does something else than the config says",
    Severity.ADVICE: "it works, and there is a better way",
}

GENERAL: Mapping[str, str] = {
    "unknown-key": "DeepSpeed does not know a key. In some sections it refuses the config, in others it says "
    "nothing. The nearest name is offered, or the place where the key belongs.",
    "removed-key": "The key was removed, and its mere presence is refused, even when it is switched off.",
    "newer-key": "The key came with a later release than the one that was asked about with `--deepspeed`.",
    "missing-key": "A section cannot do without this key.",
    "bad-type": "A value has the wrong type: text for a number, a number for a switch, null where DeepSpeed "
    "crashes on it.",
    "bad-value": "A value is out of range, or a word that DeepSpeed does not know there.",
    "auto-not-here": 'Nobody fills in "auto" for this key. The Trainer stops at it, DeepSpeed takes its '
    "default.",
    "float-for-whole": "A whole number is written as `1e3` in a place where the Trainer's reader makes a "
    "fraction of it and DeepSpeed insists on an integer.",
    "duplicate-key": "A key stands twice in one object. DeepSpeed refuses both, the Trainer takes the last.",
    "misread-value": "DeepSpeed's reader takes something for text that was meant otherwise, such as `True`, "
    "`.5`, or a word without quotes before a comma.",
    "comment": "Comments are read by DeepSpeed, but not by transformers or accelerate. So are "
    "`trailing-comma`, `single-quotes`, `bare-key`, `no-quotes`, `missing-comma`, `no-braces`, `loose-text` "
    "(a tab or an odd escape in a string), `odd-space` and `byte-order-mark`. With "
    "`--for trainer` they are late.",
    "not-json": "The text breaks off here, even for the most patient reader.",
    "not-text": "The file is not UTF-8 text.",
    "no-deepspeed": "The accelerate config that was named does not use DeepSpeed at all.",
    "deepspeed-refuses": "Only with `--deep`: DeepSpeed itself refuses the config for a reason that zlaunch "
    "does not know.",
}
"""Codes of what is no rule between keys."""

ELSEWHERE: Mapping[str, str] = {
    "cannot-read": "The file that was named is not there, or cannot be read.",
    "bad-argument": "An argument of the Trainer has a value of the wrong type.",
    "removed-argument": "transformers 5 took an argument of the Trainer away.",
    "both-precisions": "`--bf16` and `--fp16` exclude each other.",
    "not-python": "The training script is no Python.",
    "no-optimizer": "The script's own loop trains an engine of DeepSpeed that neither the script nor the "
    "ds_config gives an optimizer.",
    "own-config": "The script's own loop gives DeepSpeed a ds_config of its own: zlaunch's is not used.",
    "not-accelerate-config": "A YAML file is no accelerate config; DeepSpeed itself reads no YAML.",
    "not-yaml": "The YAML breaks off here, or uses what accelerate does not.",
    "yaml-number": "YAML takes `2e8` for text.",
    "beside-a-file": "accelerate refuses a field beside the ds_config file that decides it.",
    "ignored-field": "accelerate ignores a field, as the rest of its config is.",
    "lost-nvme-path": "accelerate does not hand the NVMe directory on.",
    "no-equivalent": "`config translate`: zlaunch has nothing that does the same.",
    "no-model-type": "A model's config.json has no `model_type`, so nobody can tell how the model is built.",
    "unknown-model-type": "The installed transformers knows no model of this type.",
    "own-code": "A model brings its own code, and is estimated as transformers' own of the same type, "
    "which a script without `trust_remote_code` loads.",
    "absurd-size": "A size in a model's config.json is none that a model can have.",
    "sequence-too-long": "A sequence is longer than the positions of the model.",
    "counted-otherwise": "An estimate leaves something out, or counts it in a way that one would not expect.",
    "cannot-tell": "Neither a rehearsal nor a formula can tell how much memory the job takes.",
    "cannot-resume": "The job may start and save, but what it saved cannot be resumed in the same memory.",
    "deepspeed-gives-up": "DeepSpeed itself gave up when it took two steps of the job without memory.",
    "not-rehearsed": "The rehearsal itself broke; it says nothing about the job.",
    "does-not-fit": "The job needs more memory than the GPUs or their host have.",
    "gpu-busy": "Before a start: somebody is on a GPU of the job. Late if what is left cannot hold it.",
    "host-memory-short": "Before a start: the ranks of a machine take more memory than is available, or "
    "than their control group leaves. Late if swap does not help either.",
    "shm-too-small": "Before a start: /dev/shm is too small for what passes data through it. Late if there "
    "is nothing left for a rank.",
    "memlock-too-small": "Before a start: a process may not lock the buffers of an offload to NVMe, for "
    "which DeepSpeed calls mlock whatever `pin_memory` says; or what NCCL sends over InfiniBand.",
    "disk-too-small": "Before a start: a file system has no room for the record of the run, one checkpoint, "
    "or what is offloaded to NVMe.",
    "not-shared": "Before a start: another host does not see the script, the directory on NVMe, or the "
    "place of the run directory. Advice if what it sees there seems to be another directory.",
    "build-lock": "Before a start: a build of a native op was killed on another host, and its lock is left.",
    "monitor-missing": "Before a start: a monitor is switched on whose package is not installed.",
    "unknown-monitor": "`--report_to` names something that transformers does not report to.",
    "unknown-model": "transformers cannot make a model to train from this config.json.",
    "model-without-sizes": "A model's config.json does not say how large the model is.",
    "not-as-it-was": "`runs rerun`: something that the run depended on is not what it was: the script, its "
    "git commit or uncommitted changes, a package, the Python, the GPUs.",
    "bad-host-line": "A line of the hostfile is not `HOST slots=N`.",
    "duplicate-host": "The hostfile names a host twice.",
    "no-hosts": "The hostfile names no host.",
    "no-slots": "A host of the hostfile has no slots.",
    "too-many-slots": "A host has fewer GPUs than the hostfile says.",
}
"""Codes about other files and about arguments."""


def page() -> str:
    """Write the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD + "\n".join(f"| {severity.value} | {does} |" for severity, does in SEVERITIES.items())
    for title, codes in (("Text, keys and values", GENERAL), ("Arguments and other files", ELSEWHERE)):
        yield f"\n## {title}\n\n| code | meaning |\n|---|---|"
        yield from (f"| `{code}` | {meaning} |" for code, meaning in codes.items())
    for room, rules in itertools.groupby(RULES, key=lambda rule: rule.check.__module__):
        yield f"\n## {(sys.modules[room].__doc__ or '').strip().splitlines()[0].rstrip('.')}"
        for rule in rules:
            yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    why = " ".join(rule.why.split())
    yield f"\n### {rule.code}\n\n*{rule.severity.value}.* {why}"
    yield f"\n    {json.dumps(rule.case.broken)}\n"
    repairs = [_repair(where, value) for where, value in rule.case.repair.items()]
    yield f"Mended by {' and '.join(repairs)}." if repairs else "It depends on the rest of the job."


def _repair(where: str, value: Any) -> str:
    return f"leaving out `{where}`" if value is None else f"`{where}`: `{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
