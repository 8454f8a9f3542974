"""`zlaunch config schema`: write a JSON Schema of ds_configs, for editors."""

from zlaunch import console
from zlaunch.cli.options import Output, Release
from zlaunch.dsconfig.json_schema import json_schema, to_text
from zlaunch.dsconfig.releases import release
from zlaunch.files import write_new


def schema(deepspeed: Release = None, output: Output = None) -> None:
    """Write a JSON Schema of ds_configs, for editors.

    Editors use it to complete and explain keys. It checks each key on its own; `zlaunch config validate`
    also checks how keys work together.
    """
    text = to_text(json_schema(release(deepspeed)))
    if output is None:
        console.data(text.rstrip("\n"))
    else:
        write_new(output, text)
        console.say(f"wrote {output}")
