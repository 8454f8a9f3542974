"""`zlaunch config schema`: write a JSON Schema of ds_configs, for editors."""

import json

from zlaunch import console
from zlaunch.cli.options import Output, Release
from zlaunch.config.asked_release import asked_release
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.files import write_new


def schema(deepspeed: Release = None, output: Output = None) -> None:
    """Write a JSON Schema of ds_configs, for editors.

    Editors use it to complete and explain keys. It checks each key on its own; `zlaunch config validate`
    also checks how keys work together.
    """
    text = json.dumps(catalog(asked_release(deepspeed)).schema, indent=2)
    if output is None:
        console.data(text)
    else:
        write_new(output, f"{text}\n")
        console.say(f"wrote {output}")
