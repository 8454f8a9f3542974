"""Read a model's `config.json`, and the sizes that the ds_config depends on."""

import json
import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, InputMissing, Place, Refused, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.transformer import with_default_sizes

MODEL_FLAGS = ("model", "model_name_or_path", "model_id", "model_name", "model_path", "base_model")
"""Names of the flag for a model in training scripts."""

LENGTHS = (
    *("max_seq_length", "max_seq_len", "seq_length", "seq_len", "sequence_length", "sequence_len"),
    *("block_size", "cutoff_len", "model_max_length", "max_source_length"),
)
"""Names that scripts give to the argument for the sequence length, and to nothing else."""

SEQ_LEN_FLAGS = (*LENGTHS, "max_length")
"""With the name that trl has for it, and that other programs have for what they generate."""

HUB_ID = r"\w[\w.-]*(?:/\w[\w.-]*)?"
"""The name of a model on the hub."""

FILE: Final = Path(__file__).with_name("hidden_sizes.json")


@dataclass(frozen=True)
class ModelConfig:
    """A model's config.json."""

    value: Mapping[str, Any]
    text: str
    file: str
    """Its file, or the one of that name on the hub."""
    hub_error: ZlaunchError | None = None
    """Why it is the one that is bundled with zlaunch, and not the hub's; None if it is not bundled."""

    @property
    def is_bundled(self) -> bool:
        """Whether it comes with zlaunch."""
        return self.hub_error is not None

    @property
    def source(self) -> str:
        """Where it comes from, for messages."""
        if self.is_bundled:
            return f"{self.file} as bundled with zlaunch"
        return self.file

    @property
    def name(self) -> str:
        """The directory or the hub id of the model."""
        return self.file.removesuffix("/config.json")

    @property
    def kind(self) -> str:
        """The `model_type`; empty if it is missing or not a string."""
        kind = self.value.get("model_type")
        if not isinstance(kind, str):
            return ""
        return kind

    @property
    def sections(self) -> Iterator[Mapping[str, Any]]:
        """The top-level keys, then those of `text_config`."""
        yield self.value
        text = self.value.get("text_config")
        if isinstance(text, Mapping):
            yield text

    def first(self, *keys: str) -> Any:
        """Return the first of these keys that has a value, in the model or in its text model; else None."""
        for section in self.sections:
            for key in keys:
                if section.get(key) is not None:
                    return section[key]
        return None

    @property
    def num_positions(self) -> int | None:
        """The maximum number of positions; None if the config has none."""
        number = self.first(
            "max_position_embeddings", "n_positions", "max_sequence_length", "max_target_positions"
        )
        if isinstance(number, int) and number > 0:
            return number
        return None

    @cached_property
    def hidden_size(self) -> int | None:
        """The width like `transformers.integrations.deepspeed`: of the model, then of its text model.

        None if config.json does not have it; whether transformers has one then is `lacks_width`.
        """
        as_loaded = (with_default_sizes(section) for section in self.sections)  # they may be left out
        for section in chain(self.sections, as_loaded):
            for key in _width_keys(section):
                if size := _largest(section.get(key)):
                    return size
        return None

    @property
    def lacks_width(self) -> bool:
        """Whether transformers has no width for this model type, from which the Trainer fills in "auto"."""
        return self.kind in _recorded_widths()["none"] and self.hidden_size is None

    @property
    def largest_parameter(self) -> int | None:
        """Elements of the largest matrix, according to config.json."""
        values = ChainMap(*(dict(section) for section in self.sections))
        widest = max((_largest(values.get(key)) or 0) for key in ("vocab_size", "intermediate_size"))
        if not self.hidden_size or not widest:
            return None
        return self.hidden_size * widest

    def locate(self, finding: Finding) -> Finding:
        """Add the position in the file to a finding."""
        return parse(self.text, self.file).locate(finding)


def model_flag(args: ScriptArgs) -> str | None:
    """Return the model that a script's command line names; None if there is none."""
    values = {flag.name: flag.value for flag in args.flags if flag.value is not None}
    return next((values[name] for name in MODEL_FLAGS if name in values), None)


def read_model(directory: Path) -> ModelConfig:
    """Read a local model; raise InputMissing without a config.json, Refused if it is not a JSON object."""
    file = directory
    if not directory.is_file():
        file = directory / "config.json"
    try:
        data = file.read_bytes()
    except OSError:
        raise InputMissing(
            f"the model directory `{directory}` has no config.json",
            "use a directory written by `save_pretrained`, or a hub id",
        ) from None
    return parse_model(data, str(file), os.path.relpath(file))


def read_processor(model: ModelConfig) -> Mapping[str, Any]:
    """Read how images are prepared, if that is beside a local config.json; empty if it is not there."""
    folder = Path(model.file).parent
    if model.is_bundled or not Path(model.file).is_file():
        return {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        with suppress(OSError, ValueError, RecursionError):
            value = json.loads((folder / name).read_text("utf-8"))
            section = value.get("image_processor", value) if isinstance(value, dict) else None
            if isinstance(section, dict):
                return section
    return {}


def parse_model(data: bytes, file: str, source: str) -> ModelConfig:
    """Parse a config.json; raise Refused if it is not a JSON object."""
    problem: tuple[str, int] | None = None
    try:
        text = data.decode()
        value = json.loads(text)
    except ValueError as error:
        problem = f"not JSON: {error}", getattr(error, "lineno", 1)
    except RecursionError:
        problem = "nested too deeply", 1
    else:
        if isinstance(value, dict):
            return ModelConfig(value, text, source)
        problem = "the config of a model must be one JSON object", 1
    message, line = problem
    raise Refused([Finding("not-json", message, place=Place(file, line, 1))]) from None


def _width_keys(section: Mapping[str, Any]) -> Sequence[str]:
    kind, recorded = str(section.get("model_type")), _recorded_widths()
    if kind in recorded["none"]:
        return ("hidden_size", "hidden_sizes")
    if kind in recorded["keys"]:
        return ("hidden_size", recorded["keys"][kind])
    return ("hidden_size", "hidden_sizes", "n_embd", "d_model")


@cache
def _recorded_widths() -> Mapping[str, Any]:
    """Read where transformers has the width of a model, by its type.

    `keys`: what it maps to `hidden_size`, if that is none of the usual keys; `none`: types that have
    neither `hidden_size` nor `hidden_sizes` nor a `text_config` with one.
    """
    recorded: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))
    return recorded


def _largest(size: object) -> int | None:
    """Return a size, or the largest of sizes for each layer."""
    sizes = [size]
    if isinstance(size, list):
        sizes = size
    return max((number for number in sizes if isinstance(number, int)), default=None)
