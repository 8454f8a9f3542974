"""A training script: how it takes a ds_config, and which defaults it sets."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zlaunch.errors import Finding, Place
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.evaluating_source import Evaluation
from zlaunch.job.script_traps import Trap
from zlaunch.job.source import Source
from zlaunch.job.trainer_args import Argument, TrainerArgs, read_arguments
from zlaunch.job.trainer_releases import TrainerRelease, Value


class ConfigInterface(Enum):
    """What reads the ds_config in a script."""

    TRAINER = "trainer"
    DEEPSPEED = "deepspeed"
    """`deepspeed.initialize`."""
    ACCELERATE = "accelerate"
    NONE = "none"
    """It does not use DeepSpeed."""


class Handover(Enum):
    """How the ds_config of a plan reaches a script."""

    ARGUMENTS = "arguments"
    """As arguments, such as `--deepspeed FILE`."""
    ACCELERATE = "accelerate"
    """In the variables of accelerate, which the Trainer reads too."""
    VARIABLE = "variable"
    """In `$ZLAUNCH_DS_CONFIG`, which the script reads."""
    NOT = "not"
    """Not at all: the script has its own, or does not use DeepSpeed."""


FSDP = "FullyShardedDataParallel"
"""What a script trains with if its Trainer uses FSDP."""

LOCAL_RANK_FLAGS = ("--local_rank", "--local-rank")
"""What DeepSpeed's launcher adds to the arguments of a script, and torch.distributed.launch since torch 2."""

RESUME = "--resume_from_checkpoint"
"""The argument by which the Trainer and most other scripts take a checkpoint."""

DS_CONFIG_VARIABLE = "ZLAUNCH_DS_CONFIG"
"""Where a script without a flag for it finds the path of its ds_config."""

RANK_DIVIDERS = (
    "PipelineModule",
    "LayerSpec",
    "mpu",
    "mesh_param",
    "ParallelismConfig",
    "parallelism_config",
)
"""Words of a script whose ranks are in groups: stages of a pipeline, or those that share a sequence."""
_NO_DIVIDERS = re.compile(r"^\s*#.*$|\bmpu\s*=\s*None\b", re.MULTILINE)
"""Where these words divide nothing: in a line that is a comment, and in the default of an argument."""

_CREATES_ARGUMENTS = r"\b((Seq2Seq)?TrainingArguments|(SFT|DPO|GRPO)Config)\("

Setting = Literal["argument", "key"]
"""How a setting of the training reaches a script: an argument of the Trainer, or a key of the ds_config."""


def setting_of(interface: ConfigInterface, handover: Handover) -> Setting | None:
    """Tell how zlaunch can change the micro-batch and the like; None if only the script can."""
    if interface is ConfigInterface.TRAINER and handover is Handover.ARGUMENTS:
        return "argument"
    if interface is ConfigInterface.DEEPSPEED and handover is not Handover.NOT:
        return "key"
    return None


class OwnConfig(NamedTuple):
    """A ds_config that a script brings along."""

    where: str
    """The place in the source, or the call that gets it."""
    value: Mapping[str, Any] | str | None
    """The config, its file, or None if it is not known before the script runs."""
    place: Place | None = None


class OwnOptimizer(NamedTuple):
    """An optimizer that a script creates and gives to `deepspeed.initialize`."""

    name: str
    """Its class in torch.optim."""
    place: Place


class OwnSetting(NamedTuple):
    """An argument in the code of a script that sets what a ds_config sets, too."""

    call: str
    """The class of accelerate, or its method."""
    name: str
    value: Value | None
    """None if it is computed."""
    path: tuple[str, ...]
    """The key of a ds_config for the same."""
    where: str
    """File and line."""


@dataclass(frozen=True)
class Script:
    """A training script, as its source and its own answer describe it."""

    path: Path
    source: str
    interface: ConfigInterface
    is_sure: bool = True
    """Whether it is certain how the script takes a ds_config."""
    defaults: Mapping[str, Argument] = field(default_factory=dict)
    """Arguments of the Trainer that the script sets, or all of them if it was asked."""
    reported: ScriptArgs | None = None
    """Its arguments as flags of the Trainer, if the script itself reported them."""
    own_config: OwnConfig | None = None
    has_own_plugin: bool = False
    """Whether it gives accelerate a ds_config that is written in its source."""
    config_flags: tuple[str, ...] = ()
    """Arguments before the path of the ds_config; empty if it takes none."""
    default_config: OwnConfig | None = None
    """The ds_config that it uses without these arguments."""
    wants_optimizer: Place | None = None
    """Where it creates and trains an engine without an optimizer, from a ds_config that it receives."""
    ignores_arguments: bool = False
    """Whether it certainly reads none, and nothing does that it imports."""
    wants_config: Place | None = None
    """Where it creates an engine without a ds_config."""
    own_optimizer: OwnOptimizer | None = None
    """What all its engines certainly train with."""
    without_deepspeed: str = ""
    """What it trains with instead of DeepSpeed, if that is known."""
    constants: Mapping[str, Value] = field(default_factory=dict)
    """Arguments of the Trainer that it names once, to set them."""
    settings: tuple[OwnSetting, ...] = ()
    """What it gives accelerate that a ds_config can set."""
    own_output_dir: str | None = None
    """Default of `output_dir`, if it sets one."""
    imported: frozenset[str] = frozenset()
    """The top-level packages that it imports; `.` for its own."""
    has_other_modules: bool = False
    """Whether it imports modules that zlaunch does not know; they may define arguments of it."""
    loads: frozenset[str] = frozenset()
    """Arguments that it certainly passes to `from_pretrained` of a model class, such as `model`."""
    trusts_code: bool = False
    """Whether it passes `trust_remote_code=True` for models."""
    resume_flag: str = ""
    """The argument of its own parser that takes the directory of a checkpoint; empty if there is none."""
    launcher: str | None = None
    """The launcher by which it certainly starts ranks itself, so that it is none of them."""
    switches: frozenset[str] = frozenset()
    """Flags of its own parser that take no value, such as `--deepspeed`."""
    save_flag: str = ""
    """The argument of its own parser that takes the directory to save to; empty if there is none."""
    adapts_by_option: bool = False
    """Whether an argument of its own parser, off by default, is what makes it train adapters."""
    seq_len: int | None = None
    """Tokens in each sequence, unless an argument says otherwise; by its source, or by its own answer."""
    evaluations: tuple[Evaluation, ...] = ()
    """Where its Trainer certainly evaluates, without a training before if `do_train` is off."""
    local_rank_flag: str = ""
    """The argument from which alone it knows its local rank; empty if it reads the environment."""
    traps: tuple[Trap, ...] = ()
    """What DeepSpeed does not do as its source expects, with some ds_configs."""

    @property
    def wants_local_rank(self) -> bool:
        """Whether it wants the argument that DeepSpeed's launcher adds, which `--local-rank` is not."""
        return self.local_rank_flag == LOCAL_RANK_FLAGS[0]

    @property
    def handover(self) -> Handover:
        """How a ds_config reaches the script."""
        if self.interface is ConfigInterface.NONE or self.own_config is not None:
            return Handover.NOT
        if self.config_flags:
            return Handover.ARGUMENTS
        if self.interface is ConfigInterface.DEEPSPEED:
            return Handover.VARIABLE
        return Handover.ACCELERATE

    @property
    def takes_trainer_args(self) -> bool:
        """Whether arguments of the Trainer can be added to its command line."""
        return self.interface is ConfigInterface.TRAINER and self.handover is Handover.ARGUMENTS

    @property
    def sets_where_it_saves(self) -> bool:
        """Whether its source has the arguments of its Trainer, with the directory of the checkpoints."""
        if self.interface is not ConfigInterface.ACCELERATE or "output_dir" not in self.constants:
            return False
        return re.search(_CREATES_ARGUMENTS, self.source) is not None

    def trainer_args(self, typed: ScriptArgs, release: TrainerRelease) -> tuple[TrainerArgs, list[Finding]]:
        """Return the Trainer arguments for a command line, with what is wrong with it."""
        if self.reported is None:
            args, findings = read_arguments(typed, self.defaults, release)
            if self.interface is not ConfigInterface.TRAINER:
                findings = []
            return args, findings
        arguments = dict(self.defaults)
        if self.config_flags:
            for flag in typed.flags:
                if (known := self.defaults.get(flag.name)) is not None:
                    source = Source.argument(flag.name, flag.place)
                    arguments[flag.name] = Argument(known.value, source, given=True)
        return TrainerArgs(arguments, release), []

    def trainer_flags(self, typed: ScriptArgs) -> ScriptArgs:
        """Return its arguments as flags of the Trainer: its command line, or all that it reported."""
        if self.reported is None:
            return typed
        return self.reported

    def mentions(self, word: str) -> bool:
        """Whether the source contains a word or flag, with `-` and `_` as the same."""
        return num_mentions(word, self.source) > 0

    def said(self, typed: ScriptArgs, name: str, default: str) -> str | None:
        """Return an argument of its Trainer as text, or the default; None if only the script knows it."""
        value = self.trainer_flags(typed).value(name)
        if value is not None:
            return value
        if self.reported is not None or not self.mentions(name):
            return default
        if name not in self.constants:
            return None
        return str(self.constants[name])

    @property
    def divides_ranks(self) -> bool:
        """Whether it may decide itself which ranks share a batch."""
        source = _NO_DIVIDERS.sub("", self.source)
        return any(num_mentions(word, source) > 0 for word in RANK_DIVIDERS)

    def may_define(self, flag: str) -> bool:
        """Whether it may have a flag, also if argparse takes `flag` for an abbreviation of it."""
        name = _spelling(flag.removeprefix("--"))
        is_here = re.search(rf"--{name}|^\s*{name}\w*\s*:", self.source, re.MULTILINE)
        return self.has_other_modules or is_here is not None

    def output_dir(self, typed: ScriptArgs) -> Path:
        """Return where its Trainer writes checkpoints, given its command line."""
        given = self.trainer_flags(typed).value("output_dir")
        return Path(given or self.own_output_dir or "trainer_output")

    @property
    def how_to_save(self) -> str:
        """What to do so that it is known where it saves."""
        if self.save_flag or self.takes_trainer_args:
            return "`--save DIR` names a directory"
        return "have the script save now and then, with `engine.save_checkpoint(DIR)`: zlaunch sees where"

    def known_output_dir(self, typed: ScriptArgs) -> Path | None:
        """Return where it certainly saves, given its command line; None if only the script knows."""
        given = self.trainer_flags(typed)
        own = given.value(self.save_flag)
        if own is not None:
            return Path(own).absolute()
        is_trainer = self.interface is ConfigInterface.TRAINER
        if given.value("output_dir") or self.own_output_dir or is_trainer:
            return self.output_dir(typed).absolute()
        return None


def num_mentions(word: str, source: str) -> int:
    """Count a word or flag in a source, with `-` and `_` as the same."""
    if re.fullmatch(r"[\w-]+", word):
        return _mentioned(source)[word.replace("-", "_")]
    return len(re.findall(rf"(?<![\w-])-{{0,2}}{_spelling(word)}(?![\w-])", source))


@lru_cache(maxsize=16)
def _mentioned(source: str) -> Counter[str]:
    """Count all words and flags of a source, flags also without their dashes, with `_` in place of `-`."""
    counts = Counter[str]()
    for word, number in Counter(re.findall(r"[\w-]+", source)).items():
        for dashes in ("", "-", "--"):
            if word.startswith(dashes):
                counts[word[len(dashes) :].replace("-", "_")] += number
    return counts


def _spelling(word: str) -> str:
    """Write a pattern for a word, with `-` and `_` as the same."""
    return re.escape(word).replace("_", "[_-]").replace(r"\-", "[_-]")
