"""Guess the intended key behind one that DeepSpeed does not have.

People write names from other tools, from older releases and from other sections. What is known by name comes
before what is similar: `micro_batch_size` is spelled like `train_batch_size`, but means something else.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from zlaunch.dsconfig.keys.lookup import field_at, fields, known_keys, section_in
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, value_at
from zlaunch.errors import Fix, FixKind

SURE = 0.88
"""Similarity above which a rename is applied by `--fix`."""

FILE: Final = Path(__file__).with_name("intended.json")

KeyPaths = tuple[KeyPath, ...]

REMARKS = ("comment", "comments", "description", "note", "notes")
"""Names of keys in which people write remarks, because JSON has no comments."""

_SWITCHES = ("enabled", "enable")
_BROAD = frozenset(
    {
        *("autotuning", "bfloat16", "compile", "data_efficiency", "expert_parallel"),
        *("hybrid_engine", "pipeline", "tensor_parallel"),
    }
)
"""Sections whose keys have names that could mean anything at another place."""


class OtherNames(NamedTuple):
    """Names that people write into ds_configs, and what each stands for."""

    keys_elsewhere: Mapping[str, KeyPaths]
    """Key that DeepSpeed does not have → the key or keys for the same."""
    words_of_others: Mapping[str, KeyPaths]
    """Names from other tools, or in the wrong section → where DeepSpeed reads the setting."""
    classes_elsewhere: Mapping[str, Mapping[str, str]]
    """`optimizer.type` or `scheduler.type` → names of other tools, in lower case, and the nearest type."""
    not_in_a_ds_config: Mapping[str, str]
    """Key that means something, for which a ds_config has no key → what to do."""
    superfluous: Mapping[str, str]
    """The same for keys that can be deleted, because nothing is lost without them."""


@cache
def other_names() -> OtherNames:
    """Read the names from `intended.json`."""
    table = json.loads(FILE.read_text("utf-8"))
    return OtherNames(
        _paths(table["keys_elsewhere"]),
        _paths(table["words_of_others"]),
        {key: _in_lower_case(kinds) for key, kinds in table["classes_elsewhere"].items()},
        table["not_in_a_ds_config"],
        table["superfluous"],
    )


def _in_lower_case(names: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): kind for name, kind in names.items()}


def _paths(names: Mapping[str, str | list[str]]) -> dict[str, KeyPaths]:
    paths: dict[str, KeyPaths] = {}
    for name, keys in names.items():
        dotted_keys = [keys] if isinstance(keys, str) else keys
        paths[name] = tuple(tuple(key.split(".")) for key in dotted_keys)
    return paths


class Intention(NamedTuple):
    """What was probably meant by an unknown key."""

    hint: str
    fix: Fix | None = None
    """None if it is only a guess."""
    path: KeyPath | None = None
    """The intended key, if there is one."""
    is_key: bool = False
    """Whether a key of a ds_config was meant, so that the key is a mistake."""
    is_remark: bool = False
    """Whether it is a comment, which is fine wherever DeepSpeed ignores it."""


def intended(whole: dict[str, object], path: KeyPath) -> Intention:
    """Guess what was meant by the unknown key at `path`."""
    guesses = (
        *(
            _nested_config,
            _moved,
            _into_params,
            _by_name,
            _remark,
            _flat,
            _written_together,
            _intended_switch,
        ),
        *(_misspelled, _part_of_key, _misplaced, _argument),
    )
    intentions = (guess(whole, path[:-1], str(path[-1])) for guess in guesses)
    return next((intention for intention in intentions if intention is not None), None) or _unknown(path[:-1])


_WRAPPERS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_params", "config")


def _nested_config(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a whole ds_config below one key, as the files of other tools have it."""
    inside = whole.get(key)
    if parent or key not in _WRAPPERS or not isinstance(inside, dict):
        return None
    if inside.keys().isdisjoint(DsConfig.model_fields) or not whole.keys().isdisjoint(DsConfig.model_fields):
        return None
    fix = None
    if whole.keys() == {key}:
        fix = Fix(FixKind.UNWRAP)
    return Intention(f"write what is in `{key}` as the whole file", fix, is_key=True)


def _moved(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a key of the top level, or of `zero_optimization`."""
    if parent and key in DsConfig.model_fields and _fits(whole, (key,), value_at(whole, (*parent, key))):
        return Intention(f"move `{key}` to the top level", Fix(FixKind.MOVE, ""), (key,), is_key=True)
    if not parent and key in known_keys(whole, (ZERO,)):
        move = None
        if isinstance(whole.get(ZERO, {}), dict):
            move = Fix(FixKind.MOVE, ZERO)
        return Intention(f"move `{key}` into `{ZERO}`", move, (ZERO, key), is_key=True)
    return None


_OF_EVERY_OPTIMIZER = ("lr", "betas", "eps", "weight_decay")


def _into_params(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize an argument of the optimizer or the scheduler that is beside its `params`."""
    params = (*parent, "params")
    known = known_keys(whole, params)
    if parent == ("optimizer",):
        known += _OF_EVERY_OPTIMIZER
    elif parent == ("scheduler",):
        known += chain(*(known_keys({"scheduler": {"type": kind}}, params) for kind in DEEPSPEED_SCHEDULERS))
    if params not in _CONSTRUCTORS or key not in known:
        return None
    move = None
    if isinstance(value_at(whole, params) or {}, dict):
        move = Fix(FixKind.MOVE, dotted(params))
    return Intention(f"move `{key}` into `{dotted(params)}`", move, (*params, key), is_key=True)


def _fits(whole: Mapping[str, object], path: KeyPath, value: object) -> bool:
    """Whether a value can be meant for a key: only an object for a section."""
    info = field_at(whole, path)
    return info is not None and (section_in(info.annotation, value) is None or isinstance(value, dict))


def _by_name(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a name of another tool, or of an older release."""
    known, where = other_names(), dotted((*parent, key))
    if where in known.superfluous:
        return Intention(known.superfluous[where], Fix(FixKind.DELETE))
    name = where if where in known.keys_elsewhere or where in known.not_in_a_ds_config else key
    if hint := known.not_in_a_ds_config.get(name):
        return Intention(hint)
    targets = [path for path in _targets(parent, key) if _can_be_at(whole, path)]
    return _at(whole, parent, key, targets)


def _can_be_at(whole: Mapping[str, object], path: KeyPath) -> bool:
    """Whether a key is known at a path, or any key is allowed there."""
    known = known_keys(whole, path[:-1])
    return not known or path[-1] in known


def _targets(parent: KeyPath, key: str) -> KeyPaths:
    known = other_names()
    return known.keys_elsewhere.get(dotted((*parent, key)), known.words_of_others.get(key, ()))


def _at(
    whole: Mapping[str, object], parent: KeyPath, key: str, targets: Sequence[KeyPath]
) -> Intention | None:
    """Point to the intended key, or to several if the name can mean each of them."""
    targets = [target for target in targets if target[:-1] == parent] or [*targets]
    if not targets or any(target in ((*parent, key), parent[: len(target)]) for target in targets):
        return None
    hint = f"the key in a ds_config is {_or(map(dotted, targets))}"
    if len(targets) > 1:
        return Intention(hint, is_key=True)
    (path,) = targets
    fits = path[:-1] == parent and _fits(whole, path, value_at(whole, (*parent, key)))
    return Intention(hint, _rename(key, str(path[-1])) if fits else None, path, is_key=True)


def _rename(key: str, name: str) -> Fix | None:
    is_sure = difflib.SequenceMatcher(None, key, name).ratio() >= SURE
    if is_sure:
        return Fix(FixKind.RENAME, name)
    return None


def _or(names: Iterable[str]) -> str:
    *first, last = [f"`{name}`" for name in names]
    if first:
        return f"{', '.join(first)} or {last}"
    return last


def _remark(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a comment, for which no key was meant."""
    is_remark = not key.strip() or key.startswith(("_", "//", "#")) or key.lower() in REMARKS
    if is_remark:
        return Intention("delete it: JSON has no comments", is_remark=True)
    return None


def _flat(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    if parent or "." not in key:
        return None
    return Intention("nest the keys: a ds_config has no dotted keys", is_key=True)


def _written_together(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize the names of a section and its key in one: `offload_optimizer_device`."""
    return _at(whole, parent, key, _joined().get(key, ()))


@cache
def _joined() -> Mapping[str, tuple[KeyPath, ...]]:
    joined: dict[str, tuple[KeyPath, ...]] = {}
    for path, _ in fields():
        name = "_".join(map(str, path[-2:]))
        joined.setdefault(name, ())
        if len(path) > 1:
            joined[name] += (path,)
    return joined


def _intended_switch(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    known = known_keys(whole, parent)
    if not parent or key not in _SWITCHES or not known or {*_SWITCHES} & {*known}:
        return None
    return Intention(f"delete it: `{parent[-1]}` has no switch")


def _misspelled(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    close = difflib.get_close_matches(key, known_keys(whole, parent), n=1, cutoff=0.75)
    return _did_you_mean(parent, key, close)


def _did_you_mean(parent: KeyPath, key: str, names: Sequence[str]) -> Intention | None:
    if len(names) != 1:
        return None
    (name,) = names
    return Intention(f"did you mean `{name}`?", _rename(key, name), (*parent, name), is_key=True)


def _part_of_key(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize the first or last words of one key; at the top, one word could be the script's own key."""
    if not parent and "_" not in key:
        return None
    known = known_keys(whole, parent)
    return _did_you_mean(parent, key, [name for name in known if f"_{name}_".find(f"_{key}_") >= 0])


def _misplaced(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Recognize a key of another section."""
    return _at(whole, parent, key, [*_places_elsewhere(parent, key)])


_CONSTRUCTORS = (("optimizer", "params"), ("scheduler", "params"))


def _places_elsewhere(parent: KeyPath, key: str) -> Iterator[KeyPath]:
    """Find a key in other sections; names of one word could mean anything, except in a section around."""
    names = {key, f"stage3_{key}", f"zero_{key}"}
    for path, _ in fields():
        is_below = bool(parent) and path[: len(parent)] == parent
        is_clear = "_" in key and path[0] not in _BROAD and "zenflow" not in path
        if path[-1] in names and (is_below or is_clear):
            yield path


def _argument(whole: Mapping[str, object], parent: KeyPath, key: str) -> Intention | None:
    """Name the schedulers with an argument, or the arguments of the class that is used."""
    known = known_keys(whole, parent)
    if parent not in _CONSTRUCTORS or not known:
        return None
    section = str(parent[0])
    kinds = DEEPSPEED_SCHEDULERS if section == "scheduler" else ()
    names = {key, *(str(target[-1]) for target in _targets(parent, key) if target[:-1] == parent)}
    have = [kind for kind in kinds if names & {*known_keys({section: {"type": kind}}, parent)}]
    if have:
        takes = "takes" if len(have) == 1 else "take"
        return Intention(f"use {_or(have)}, which {takes} it, or delete it")
    return Intention(f"{value_at(whole, (section, 'type'))} takes {', '.join(known)}")


def _unknown(parent: KeyPath) -> Intention:
    command = "zlaunch config explain" + (f" {dotted(parent)}" if parent else "")
    return Intention(f"`{command}` lists the keys")
