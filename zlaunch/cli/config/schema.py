"""`zlaunch config schema`: what can stand in a ds_config, for editors."""

from zlaunch import console
from zlaunch.cli.config.options import Output, Release
from zlaunch.dsconfig.json_schema import json_schema, to_text
from zlaunch.dsconfig.releases import release
from zlaunch.files import write_new


def schema(deepspeed: Release = None, output: Output = None) -> None:
    """Write the JSON Schema of a ds_config: editors then complete keys and explain them.

    It knows keys and values; `zlaunch config validate` also knows what they mean together.
    """
    text = to_text(json_schema(release(deepspeed)))
    if output is None:
        console.data(text.rstrip("\n"))
    else:
        write_new(output, text)
        console.say(f"wrote {output}")
