"""Ask the installed DeepSpeed about a ds_config, in a process of its own."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.config.resolve.resolve import resolve_file
from zlaunch.config.resolve.values import AUTO
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import Document
from zlaunch.errors import Finding, Unavailable
from zlaunch.hosts.machine.interpreter import TRAINING, check_packages, inspect_python
from zlaunch.job.source import Source
from zlaunch.process import ours, output_of
from zlaunch.units import plural

_PROGRAM = "zlaunch.config.deepspeed_check"
_SECONDS = 120.0


def second_opinion(document: Document, context: Context, python: Path | None) -> list[Finding]:
    """Ask the installed DeepSpeed about the resolved config.

    Batch sizes that only the script knows count as one sample per rank. Raise Unavailable if it does not
    answer.
    """
    world = context.world_size or 1
    values = resolve_file(document, replace(context, world_size=world)).values
    if AUTO in (values[TOTAL], values[MICRO], values[ACCUMULATION]):
        one_sample = Source.computed("one sample per rank")
        values = values.without(TOTAL).without(ACCUMULATION).put(MICRO, 1, one_sample)
    check_packages(interpreter := inspect_python(python), TRAINING)
    argv = ours(_PROGRAM, str(world), python=interpreter.executable)
    # On stdin: everyone on this machine can read command lines, and the config may have secrets.
    answer = output_of(argv, _SECONDS, json.dumps(values.config()))
    if answer is None:
        raise Unavailable(
            "the installed DeepSpeed could not check the config",
            f"run `echo {{}} | {shlex.join(ours(_PROGRAM, '1', python=interpreter.executable))}` to see why",
        )
    refusal = json.loads(answer)
    if refusal is None:
        return []
    message = f"DeepSpeed itself, for {plural(world, 'rank')}: {refusal}"
    return [document.locate(Finding("deepspeed-refuses", message, "fix what it names"))]
