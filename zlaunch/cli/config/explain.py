"""`zlaunch config explain`: explain a ds_config key."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, Release, completed
from zlaunch.cli.views.dump import to_json
from zlaunch.config.asked_release import asked_release
from zlaunch.config.explain import Explanation, RelatedRule, explain_auto, keys_below
from zlaunch.config.explain import explain as explained
from zlaunch.dsconfig.keys.intended import other_names
from zlaunch.dsconfig.keys.search import find, near
from zlaunch.errors import WrongUsage

NAME_COLUMNS = 30


def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Key, such as stage or offload_param.buffer_size (default: list the sections).",
            autocompletion=completed("keys"),
        ),
    ] = "",
    deepspeed: Release = None,
    as_json: AsJson = False,
) -> None:
    """Explain a ds_config key.

    Shows what the key means, when it is read, and how it affects memory and speed.
    """
    asked = asked_release(deepspeed)
    if not key:
        sections = list(keys_below(""))
        if as_json:
            console.data(to_json(sections))
        else:
            console.data(*_key_list(sections))
        return
    if key.strip("\"'") == "auto":
        explanation = explain_auto()
    else:
        explanation = explained(_only_key(key), asked)
    if as_json:
        console.data(to_json(explanation))
    else:
        console.data(*_explanation_lines(explanation))
        if key.lower() in other_names().words_of_others and not explanation.key.endswith(key.lower()):
            console.say(f"`{key}` is not a key of a ds_config: there it is `{explanation.key}`")


def _key_list(keys: Sequence[RelatedRule]) -> Iterator[str]:
    """List the sections, then the keys outside of sections."""
    for title, is_section in (("sections", True), ("\nkeys outside of sections", False)):
        yield title
        yield from _notes_on([key for key in keys if key.is_section is is_section])


def _notes_on(items: Sequence[RelatedRule]) -> Iterator[str]:
    """Write descriptions beside names, and below long names."""
    for item in items:
        is_long = len(item.name) > NAME_COLUMNS
        if is_long:
            yield f"  {item.name}"
        yield from console.notes([(f"{'' if is_long else item.name:<{NAME_COLUMNS}}", item.words)])


def _only_key(key: str) -> str:
    """Find the only key of that name; raise WrongUsage if there is none, or more than one."""
    match find(key):
        case [name]:
            return name
        case []:
            meant = " or ".join(f"`{name}`" for name in near(key))
            hint = "`zlaunch config explain` lists the sections"
            if meant:
                hint = f"did you mean {meant}?"
            hint = other_names().not_in_a_ds_config.get(key, hint)
            raise WrongUsage(f"DeepSpeed has no key `{key}`", hint)
        case names:
            listed = "".join(f"\n  {name}" for name in names)
            raise WrongUsage(f"`{key}` can mean {len(names)} keys:{listed}", "name one of them")


def _explanation_lines(explanation: Explanation) -> Iterator[str]:
    yield explanation.key
    yield from console.notes([("", explanation.meaning)], indent="")
    rows = [
        (name, getattr(explanation, name))
        for name in ("type", "default", "releases", "read", "auto", "memory", "speed")
        if getattr(explanation, name)
    ]
    rows += [("related" if number == 0 else "", name) for number, name in enumerate(explanation.related)]
    if rows:
        yield ""
        yield from console.table(rows)
    for title, items in (("keys below it", explanation.keys), ("rules about it", explanation.rules)):
        if items:
            yield f"\n{title}"
            yield from _notes_on(items)
    if explanation.example is not None:
        yield f"\nexample\n  {json.dumps(explanation.example)}"
