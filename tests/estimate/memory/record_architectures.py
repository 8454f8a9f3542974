"""Rehearse architectures and write down the peaks and docs/closed-form.md: `python -m
tests.estimate.memory.record_architectures [ARCHITECTURE…]`, with `--docs` only the page, from what is written down.

It takes a quarter of an hour. What a rehearsal refuses is written down as its words.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.estimate.memory.architectures import FILE, HELD_OUT, SET, SETTINGS, Cell, cells, job, recorded
from zlaunch.errors import Refused
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.closed_form import KNOWN_ERROR, UNKNOWN_ERROR
from zlaunch.estimate.rehearse import rehearse

PAGE = Path(__file__).parents[3] / "docs" / "closed-form.md"

MOST_LAYERS = 8
_DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers"),
)
_OWN: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 1024, "n_layer": 8, "n_head": 16},
    "gpt_neo": {"num_layers": 8, "attention_types": [[["global", "local"], 4]]},
    "mpt": {"n_layers": 8, "d_model": 2048, "n_heads": 16},
    "deepseek_v3": {"num_hidden_layers": 6},
    "t5": {"decoder_start_token_id": 0, "pad_token_id": 0},
    "mt5": {"decoder_start_token_id": 0, "pad_token_id": 0},
    "umt5": {"decoder_start_token_id": 0, "pad_token_id": 0},
    "longt5": {"decoder_start_token_id": 0, "pad_token_id": 0},
}
"""What a default config lacks, or has too small or by other names."""


def config_of(kind: str) -> dict[str, Any]:
    """Take transformers' default config of a type, with few layers, and the class with its usual head."""
    import transformers
    from transformers.models.auto import modeling_auto

    cls = transformers.CONFIG_MAPPING[kind]
    default = cls().to_dict()
    depths = {key: min(default[key], MOST_LAYERS) for key in _DEPTHS if isinstance(default.get(key), int)}
    config = cls(**(_OWN.get(kind) or {cls.attribute_map.get(key, key): n for key, n in depths.items()}))
    tables = ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM")
    names = [getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").get(kind) for table in tables]
    config.architectures = [next(name for name in names if name)]
    return {**json.loads(config.to_json_string(use_diff=True)), "model_type": kind}


def entry_of(kind: str) -> dict[str, Any]:
    """Rehearse an architecture under every setting."""
    config = config_of(kind)
    try:
        found = rehearse([job(config, setting) for setting in SETTINGS])
    except Refused as error:
        return {"config": config, "peaks": dict.fromkeys(SETTINGS, error.findings[0].message)}
    return {"config": config, "peaks": dict(zip(SETTINGS, map(_peak, found), strict=True))}


def _peak(found: Forecast) -> int | str:
    words = found.late_error or found.why_not_rehearsed
    return " ".join(words.split())[:120] if words else found.peak("gpu")


def page() -> str:
    """Write the page of docs."""
    listed = cells()
    rows = {name: {cell.setting: cell for cell in listed if cell.architecture == name} for name in recorded()}
    head = ("architecture", "known", *SETTINGS)
    parts = [
        _INTRODUCTION.format(
            known=KNOWN_ERROR, factor=1 + UNKNOWN_ERROR, true=_share(listed), all=len(listed)
        ),
        *(
            _table(head, [_row(name, rows[name]) for name in names if rows.get(name)])
            for title, names in (("set", SET), ("held out", HELD_OUT))
        ),
    ]
    return "\n".join((parts[0], "## Set\n", parts[1], "## Held out\n", parts[2]))


_INTRODUCTION = """\
# How far off the closed form is

A closed form answers where a rehearsal cannot, and tells `zlaunch plan` what to rehearse. It knows some types of models
and takes any other for the known one most like it. It claims that a rehearsal would find a peak of GPU memory within
{known:.0%} for a type that it knows, and within a factor of {factor:g} for any other. Both claims were set on the first
table, half as wide again as the worst error in it; the second table took no part in that, and only tests them. What it
found beyond a claim was mended, and is in the first table now: `ernie4_5_moe`, whose experts were taken for none. Of
{all} cells, {true} lie within.

Each cell: the closed form, the rehearsal, both in GB of tensors at the peak, and how much the first is too high or
too low. The models are transformers' default configs with at most 8 layers, on eight ranks in bf16, with the buckets
that "auto" becomes. Stage 2: sequences of 2048 tokens, with activation checkpointing. Stage 3: four of 1024 tokens,
without. LoRA of rank 16 on all linear layers, at stage 1 two sequences of 512, at stage 3 two of 1024 with activation
checkpointing. Fewer tokens where a model has fewer positions. A `-`: no rehearsal, which mostly means that DeepSpeed,
transformers or PEFT refuses it.

`python -m tests.estimate.memory.record_architectures` rehearses all of it again and writes this page.
"""


def _share(listed: list[Cell]) -> int:
    return sum(cell.is_true for cell in listed)


def _row(name: str, of: dict[str, Cell]) -> tuple[str, ...]:
    known = any(not cell.found.notes for cell in of.values())
    return (name, "yes" if known else "no", *(_words(of.get(setting)) for setting in SETTINGS))


def _words(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mine, theirs = cell.found.peak("gpu") / 1e9, cell.peak / 1e9
    return f"{mine:.2f} / {theirs:.2f}, {cell.off:+.1%}{'' if cell.is_true else ' **beyond**'}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Rehearse the architectures that are named, or all, and write the page."""
    named = sys.argv[1:]
    known = recorded()
    for kind in [] if named == ["--docs"] else named or (*SET, *HELD_OUT):
        known[kind] = entry_of(kind)
        lines = (f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(kind, *known[kind]["peaks"].values(), flush=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
