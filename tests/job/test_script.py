import ast
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.making import script
from zlaunch.errors import InputMissing, Place, Refused, WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument

TRAINER = "args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()"
ACCELERATE = "accelerator = Accelerator()"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def _own(file: Path, source: str) -> tuple[int, object]:
    own = _read(file, source).own_config
    assert own is not None
    assert own.place is not None
    return own.place.line, own.value


def _read(file: Path, source: str) -> Script:
    file.write_text(source, "utf-8")
    return read_script(file)


@each(
    ("source", "interface"),
    [
        ("", ConfigInterface.NONE),
        (TRAINER, ConfigInterface.TRAINER),
        ("TrlParser((SFTConfig,))", ConfigInterface.ACCELERATE),
        (
            "parser.add_argument('--deepspeed')\nTrainingArguments(deepspeed=args.deepspeed)",
            ConfigInterface.ACCELERATE,
        ),
        ("deepspeed.add_config_arguments(parser)", ConfigInterface.DEEPSPEED),
        ("parser.add_argument('--deepspeed_config')", ConfigInterface.DEEPSPEED),
        (ACCELERATE, ConfigInterface.ACCELERATE),
        ("accelerate.Accelerator()", ConfigInterface.ACCELERATE),
        ("TrainingArguments(output_dir='x')", ConfigInterface.ACCELERATE),
        (f"{TRAINER}\n{ACCELERATE}", ConfigInterface.TRAINER),
        ("# deepspeed.add_config_arguments(parser)", ConfigInterface.NONE),
        ("deepspeed.initialize(model=model)\nSFTTrainer(model).train()", ConfigInterface.ACCELERATE),
        ("import torch, json, tqdm\ntorch.optim.Adam(model.parameters())", ConfigInterface.NONE),
        ("from mine import train\ntrain()", ConfigInterface.ACCELERATE),
    ],
)
def test_the_source_tells_how_a_script_takes_a_ds_config(
    file: Path, source: str, interface: ConfigInterface
) -> None:
    assert _read(file, source).interface is interface


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        ("deepspeed.add_config_arguments(parser)", ("--deepspeed", "--deepspeed_config")),
        ("parse.add_argument('--deepspeed_config')", ("--deepspeed_config",)),
        ("parse.add_argument('-c', '--deepspeed_config', type=str, default=None)", ("--deepspeed_config",)),
        (
            "add_argument('--deepspeed', action='store_true')\nadd_argument('--deepspeed_config')",
            ("--deepspeed", "--deepspeed_config"),
        ),
        ("add_argument('--deepspeed')\ndeepspeed.initialize(config=args.deepspeed)", ("--deepspeed",)),
        ("@click.option('--deepspeed_config')\ndef main(deepspeed_config): pass", ("--deepspeed_config",)),
        ("engine, *_ = deepspeed.initialize(model=model, config=os.environ['ZLAUNCH_DS_CONFIG'])", ()),
        ("deepspeed.initialize(args=get_args(), config=os.environ['ZLAUNCH_DS_CONFIG'])", ()),
        ("deepspeed.initialize(model=model, config={'train_batch_size': 8})", ()),
        ("deepspeed.initialize(args=None, model=model, config={'train_batch_size': 8})", ()),
    ],
)
def test_the_source_tells_where_a_loop_of_its_own_takes_a_ds_config(
    file: Path, source: str, flags: tuple[str, ...]
) -> None:
    script = _read(file, source)
    assert (script.interface, script.config_flags) == (ConfigInterface.DEEPSPEED, flags)


@each(
    "source",
    [
        "TrainingArguments('out')",
        "TrlParser((SFTConfig,))",
        "HfArgumentParser(args_of())\nparser.parse_args_into_dataclasses()",
        "HfArgumentParser(SFTConfig).parse_args_into_dataclasses()",
        "HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()",
        "class A(SFTConfig): pass\nHfArgumentParser(A).parse_args_into_dataclasses()",
        "HfArgumentParser(TrainingArguments).parse_yaml_file('a.yaml')",
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(return_remaining_strings=True)",
        "p = HfArgumentParser(TrainingArguments)\np.set_defaults(bf16=True)\np.parse_args_into_dataclasses()",
        "(a,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\na.learning_rate *= ranks",
        "from mine import train\ntrain()",
        "from . import train",
        "import subprocess\nsubprocess.run(['train'])",
        "import torch\nexec(open('configurator.py').read())",
        "args = get_args()\ndeepspeed.initialize(args=args, config=args.deepspeed)",
        "args = get_args()\ndeepspeed.initialize(args=args, config=ds_config)",
        "args = get_args()\ndeepspeed.initialize(args, model)",
        "ds = json.load(open(args.deepspeed))\ndeepspeed.initialize(config=ds)",
        "parser = ArgumentParser()\ndeepspeed.initialize(model=net, config=ds_config())",
        "ds = {'train_micro_batch_size_per_gpu': size}\ndeepspeed.initialize(model=net, config=ds | more)",
    ],
)
def test_a_source_that_leaves_its_arguments_open_is_not_sure(file: Path, source: str) -> None:
    assert not _read(file, source).is_sure


@each(
    "source",
    [
        "add_argument('--deepspeed', action='store_true')\ndeepspeed.initialize(args, model=model)",
        "add_argument('--deepspeed', type=bool)\ndeepspeed.initialize(args, model=model)",
        "add_argument('--deepspeed', choices=['zero2', 'zero3'])\ndeepspeed.initialize(config=args.deepspeed)",
        "add_argument('--cfg', dest='deepspeed_config')\ndeepspeed.initialize(args, model=model)",
        "if '--deepspeed_config' in sys.argv: sys.exit()\ndeepspeed.initialize(config=args.config)",
        "add_argument('--deepspeed_config')\nTrainingArguments(deepspeed=args.deepspeed_config)",
        "add_argument('--deepspeed_config')\nAccelerator(deepspeed_plugin=plugin(args.deepspeed_config))",
        "HfArgumentParser(Mine).parse_args_into_dataclasses()\nTrainingArguments(bf16=True)",
        "HfArgumentParser(Mine).parse_args_into_dataclasses()\nTrainingArguments(deepspeed=args.deepspeed)",
    ],
)
def test_nothing_is_appended_for_a_parser_that_may_not_take_it(file: Path, source: str) -> None:
    script = _read(file, f"import argparse\nparser = argparse.ArgumentParser()\n{source}")
    assert (script.is_sure, script.config_flags) == (False, ())


@pytest.mark.parametrize(
    ("source", "default"),
    [
        ("add_argument('--deepspeed_config', default='ds.json')", "ds.json"),
        ("add_argument('--deepspeed_config', default=None)", None),
        ("add_argument('--deepspeed_config')", None),
        ("deepspeed.add_config_arguments(parser)", None),
    ],
)
def test_the_parser_of_a_script_may_name_a_ds_config(file: Path, source: str, default: str | None) -> None:
    found = _read(file, source).default_config
    assert (None if found is None else found.value) == default


@each(
    "source",
    [
        "",
        TRAINER,
        ACCELERATE,
        "class A(TrainingArguments): pass\nHfArgumentParser((A,)).parse_args_into_dataclasses()",
        "(a,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\na.seed = 1",
        "import torch\ntorch.nn.parallel.DistributedDataParallel(net)",
        "deepspeed.add_config_arguments(parser)",
        "engine, *_ = deepspeed.initialize(model=net, config=os.environ['ZLAUNCH_DS_CONFIG'])",
    ],
)
def test_a_source_that_settles_everything_is_sure(file: Path, source: str) -> None:
    assert _read(file, source).is_sure


@pytest.mark.parametrize(
    "source",
    [
        "TrainingArguments(max_steps=7)",
        "transformers.Seq2SeqTrainingArguments('out', max_steps=7)",
        "SFTConfig(max_steps=7)",
        "class A(TrainingArguments):\n    max_steps: int = 7",
        "class A(trl.GRPOConfig):\n    max_steps: int = 7",
    ],
)
def test_a_default_that_the_script_sets_is_found(file: Path, source: str) -> None:
    assert _read(file, source).defaults["max_steps"].value == 7


@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("parser.add_argument('--max-seq-len', type=int, default=4096)", 4096),
        ("class Data:\n    block_size: int = field(default=1024, metadata={})", 1024),
        ("class Data:\n    block_size: int | None = None", None),
        ("parser.add_argument('--block_size', type=int)", None),
        ("parser.add_argument('--max_length', default=20)", None),
    ],
)
def test_the_length_of_its_sequences_is_the_default_of_its_own_argument(
    file: Path, source: str, length: int | None
) -> None:
    assert _read(file, source).seq_len == length


def test_a_default_names_the_line_that_sets_it(file: Path) -> None:
    script = _read(file, "\nTrainingArguments(\n  max_steps=7)")
    assert script.defaults["max_steps"] == Argument(7, Source(SourceKind.SCRIPT, "`max_steps` in train.py:3"))


def test_a_negative_default_is_found(file: Path) -> None:
    assert _read(file, "TrainingArguments(max_steps=-1)").defaults["max_steps"].value == -1


@pytest.mark.parametrize(
    "source",
    [
        "TrainingArguments(max_steps=steps)",
        "TrainingArguments(max_steps=None)",
        "TrainingArguments(**more)",
        "TrainingArguments(output_dir='x')",
        "Other(max_steps=7)",
        "class A(Other):\n    max_steps: int = 7",
        "class A(TrainingArguments):\n    max_steps: int",
        "class A(TrainingArguments):\n    max_steps: int = field(default=7)",
    ],
)
def test_what_is_no_constant_of_the_arguments_is_no_default(file: Path, source: str) -> None:
    assert _read(file, source).defaults == {}


@pytest.mark.parametrize("value", ["'ds.json'", "{'zero_optimization': {}}"])
def test_a_ds_config_of_the_scripts_own_is_found(file: Path, value: str) -> None:
    assert _own(file, f"x = 1\nTrainingArguments(deepspeed={value})") == (2, ast.literal_eval(value))


@pytest.mark.parametrize(
    "source",
    [
        "TrainingArguments(deepspeed=args.ds)",
        "TrainingArguments(deepspeed=None)",
        "Other(deepspeed='ds.json')",
    ],
)
def test_a_script_that_leaves_the_ds_config_open_has_none_of_its_own(file: Path, source: str) -> None:
    assert _read(file, source).own_config is None


@pytest.mark.parametrize("word", ["num_gpus", "num-gpus"])
@pytest.mark.parametrize("source", ["args.num_gpus", "'--num_gpus'", "'--num-gpus'", "num_gpus: int = 1"])
def test_a_word_is_mentioned_in_either_spelling(word: str, source: str) -> None:
    assert script(source).mentions(word)


def test_a_flag_with_a_dot_is_mentioned() -> None:
    assert script("parser.add_argument('--model.base-path')").mentions("--model.base_path")


@pytest.mark.parametrize("source", ["", "my_num_gpus", "num_gpus_per_node", "--num-gpus-max", "numXgpus"])
def test_a_part_of_a_longer_word_is_no_mention(source: str) -> None:
    assert not script(source).mentions("num_gpus")


def test_a_missing_script_is_missing_input(file: Path) -> None:
    with pytest.raises(InputMissing, match=r"train\.py"):
        read_script(file)


@pytest.mark.parametrize(
    ("source", "line", "column"), [("def f(:", 1, 7), ("x = 1\ny = (", 2, 5), ("\0", 1, 1)]
)
def test_a_script_that_is_no_python_is_refused_with_its_place(
    file: Path, source: str, line: int, column: int
) -> None:
    with pytest.raises(Refused) as refused:
        _read(file, source)
    assert refused.value.findings[0].place == Place(str(file), line, column)


def test_a_ds_config_in_the_place_of_the_script_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text("{}")
    with pytest.raises(WrongUsage, match="not a training script"):
        read_script(tmp_path / "ds_config.json")


def test_a_script_may_begin_with_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfAccelerator()\n")
    assert read_script(file).interface is ConfigInterface.ACCELERATE


def test_a_script_need_not_be_utf_8(file: Path) -> None:
    file.write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\nAccelerator()\n")
    assert read_script(file).interface is ConfigInterface.ACCELERATE


@given(st.binary() | st.text("()[]{}:=.,'\"#\n abTrainingArguments0").map(str.encode))
def test_any_bytes_are_a_script_or_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.py"
    file.write_bytes(data)
    with suppress(Refused):
        read_script(file)


@pytest.mark.parametrize(
    ("source", "argv", "directory"),
    [
        ("", [], "trainer_output"),
        ("TrainingArguments(output_dir='x')", [], "x"),
        ("class A(TrainingArguments):\n    output_dir: str = 'out'", [], "out"),
        ("class A(TrainingArguments):\n    output_dir: str = 'out'", ["--output-dir", "mine"], "mine"),
        ("class A(Other):\n    output_dir: str = 'out'", [], "trainer_output"),
        ("TrainingArguments(output_dir=args.out)", [], "trainer_output"),
    ],
)
def test_the_trainer_writes_where_the_command_line_says_or_the_source(
    file: Path, source: str, argv: list[str], directory: str
) -> None:
    assert _read(file, source).output_dir(ScriptArgs.of(argv)) == Path(directory)


LOOP = "engine, *_ = deepspeed.initialize({})\nengine.backward(engine(x))\nengine.step()"
HANDED = "config=os.environ['ZLAUNCH_DS_CONFIG']"


@pytest.mark.parametrize(
    "given", [f"model=net, {HANDED}", "args=args, model=net", "model=net, config=args.deepspeed_config"]
)
def test_an_engine_that_gets_no_optimizer_from_its_script_is_found(file: Path, given: str) -> None:
    wanted = _read(file, f"import deepspeed\n{LOOP.format(given)}").wants_optimizer
    assert wanted is not None
    assert str(wanted) == f"{file}:2:14"


@pytest.mark.parametrize(
    "source",
    [
        LOOP.format(f"model=net, optimizer=adam, {HANDED}"),
        LOOP.format(f"None, net, adam, {HANDED}"),
        LOOP.format(f"{HANDED}, **more"),
        LOOP.format("*several, args=args"),
        LOOP.format("model=net, config=ds_config"),
        LOOP.format("model=net, config=with_adam(args.deepspeed_config)"),
        f"{LOOP.format(HANDED)}\ndeepspeed.initialize(optimizer=adam, {HANDED})",
        f"engine, *_ = deepspeed.initialize(model=net, {HANDED})\nengine(x)",
        f"args.deepspeed_config = 'mine.json'\n{LOOP.format('args=args')}",
        f"parser.set_defaults(deepspeed_config='mine.json')\n{LOOP.format('args=args')}",
        f"setattr(args, 'deepspeed_config', 'mine.json')\n{LOOP.format('args=args')}",
    ],
)
def test_an_engine_is_not_called_without_an_optimizer_where_that_is_not_sure(file: Path, source: str) -> None:
    assert _read(file, source).wants_optimizer is None


OWN_ADAM = "from torch import optim\nadam = optim.AdamW(net.parameters())\n"


@pytest.mark.parametrize(
    "source",
    [
        f"{OWN_ADAM}engine, adam, *_ = deepspeed.initialize(model=net, optimizer=adam, {HANDED})",
        f"{OWN_ADAM}deepspeed.initialize(None, net, adam)",
        "from torch.optim import AdamW\ndeepspeed.initialize(model=net, optimizer=AdamW(net.parameters()))",
    ],
)
def test_an_optimizer_of_torch_that_all_engines_get_is_found(file: Path, source: str) -> None:
    own = _read(file, f"import deepspeed\n{source}").own_optimizer
    assert own is not None
    assert own.name == "AdamW"


@pytest.mark.parametrize(
    "source",
    [
        f"{OWN_ADAM}if offloads:\n    adam = DeepSpeedCPUAdam(net.parameters())\ndeepspeed.initialize(optimizer=adam)",
        "from deepspeed.ops.adam import AdamW\ndeepspeed.initialize(optimizer=AdamW(net.parameters()))",
        f"{OWN_ADAM}def make(adam):\n    return deepspeed.initialize(optimizer=adam)",
        f"{OWN_ADAM}deepspeed.initialize(optimizer=adam)\ndeepspeed.initialize(model=net)",
        f"{OWN_ADAM}deepspeed.initialize(*several, optimizer=adam)",
    ],
)
def test_an_optimizer_is_not_said_to_be_the_scripts_own_where_that_is_not_sure(
    file: Path, source: str
) -> None:
    assert _read(file, f"import deepspeed\n{source}").own_optimizer is None


INITIALIZE = "engine, *_ = deepspeed.initialize({})"


@pytest.mark.parametrize(
    "source",
    [
        INITIALIZE.format("model=net, config='ds.json'"),
        INITIALIZE.format("model=net, config={'train_batch_size': size}"),
        INITIALIZE.format("model=net, config_params='ds.json'"),
        INITIALIZE.format(f"{'None, ' * 10}'ds.json'"),
        f"{INITIALIZE.format('model=net, config=ds')}\nds = 'ds.json'",
        f"{INITIALIZE.format('model=net, config=ds')}\nds = {{'train_batch_size': 8}}\nprint(ds['a'])",
        f"{INITIALIZE.format('config=ds')}\nds = 'ds.json'\nargparse.ArgumentParser().parse_args()",
    ],
)
def test_an_engine_with_a_ds_config_of_its_own_is_found(file: Path, source: str) -> None:
    own = _read(file, f"import deepspeed\n{source}").own_config
    assert own is not None
    assert str(own.place) == f"{file}:2:14"


@each(
    "source",
    [
        INITIALIZE.format(HANDED),
        INITIALIZE.format("args=args, model=net"),
        INITIALIZE.format("config=None"),
        INITIALIZE.format("config=''"),
        INITIALIZE.format("config=read()"),
        INITIALIZE.format("config={**read(), 'train_batch_size': 8}"),
        INITIALIZE.format("*several, 1, 2, 3, 4, 5, 6, 7, 8, 9, 'ds.json'"),
        INITIALIZE.format("config=ds"),
        f"ds = {{}}\n{INITIALIZE.format('config=ds')}",
        f"ds = read()\n{INITIALIZE.format('config=ds')}",
        f"ds = 'a.json'\nif other: ds = read()\n{INITIALIZE.format('config=ds')}",
        f"ds = 'a.json'\ndef main(ds):\n    {INITIALIZE.format('config=ds')}",
        f"ds = {{'a': 1}}\nds.update(read())\n{INITIALIZE.format('config=ds')}",
        f"{INITIALIZE.format(HANDED)}\ndeepspeed.initialize(model=teacher, config='teacher.json')",
        f"{INITIALIZE.format('args=args')}\ndeepspeed.initialize(model=teacher, config='teacher.json')",
        "deepspeed.initialize(model=teacher, config='teacher.json')\nTrainer(net, ref_model=teacher)",
        "deepspeed.initialize(model=teacher, config='teacher.json')\nAccelerator().prepare(net)",
        "deepspeed.initialize(config='ds.json' if args.deepspeed is None else args.deepspeed)",
        "deepspeed.initialize(config='ds.json')\nprint(args.deepspeed)",
    ],
)
def test_a_ds_config_is_not_called_the_scripts_own_where_that_is_not_sure(file: Path, source: str) -> None:
    assert _read(file, source).own_config is None


@pytest.mark.parametrize(
    ("source", "trusts"),
    [
        ("AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)", True),
        ("model = transformers.AutoModel.from_config(\n    config, trust_remote_code = True\n)", True),
        ("config = AutoConfig.from_pretrained(name, trust_remote_code=True)", True),
        ("AutoModel.from_pretrained(name)  # trust_remote_code=True", False),
        ("'trust_remote_code=True'", False),
        ("AutoModel.from_pretrained(name, trust_remote_code=False)", False),
        ("load_dataset(name, trust_remote_code=True)\nAutoModel.from_pretrained(name)", False),
        ("AutoTokenizer.from_pretrained(name, trust_remote_code=True)", False),
    ],
)
def test_a_script_trusts_the_code_of_a_model_only_where_it_loads_one(
    file: Path, source: str, trusts: bool
) -> None:
    assert _read(file, source).trusts_code is trusts


@pytest.mark.parametrize("known", ["", "import argparse, torch", "from transformers.utils import logging"])
def test_a_script_that_imports_known_packages_defines_its_own_arguments(file: Path, known: str) -> None:
    assert not _read(file, known).has_other_modules


@pytest.mark.parametrize("other", ["import mine", "from . import args", "from megatron.training import main"])
def test_a_module_that_a_script_imports_may_define_its_arguments(file: Path, other: str) -> None:
    assert _read(file, other).has_other_modules


@pytest.mark.parametrize(
    ("source", "loads"),
    [
        ("AutoModelForCausalLM.from_pretrained(args.model, dtype='auto')", {"model"}),
        ("transformers.AutoConfig.from_pretrained(model_args.model_name_or_path)", {"model_name_or_path"}),
        ("AutoTokenizer.from_pretrained(args.model)", set()),
        ("DiffusionPipeline.from_pretrained(args.model)", set()),
        ("AutoModel.from_pretrained(name)", set()),
    ],
)
def test_an_argument_names_a_model_if_transformers_loads_it(source: str, loads: set[str], file: Path) -> None:
    assert _read(file, source).loads == loads


def test_what_a_script_gives_accelerate_is_read_with_its_line(tmp_path: Path) -> None:
    source = """from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
accelerator.clip_grad_norm_(parameters, args.clip)
torch.nn.utils.clip_grad_norm_(parameters, 2.0)
"""
    (tmp_path / "train.py").write_text(source)
    settings = read_script(tmp_path / "train.py").settings
    assert [(one.call, one.value, one.where) for one in settings] == [
        ("Accelerator", 4, "train.py:2"),
        ("Accelerator", "bf16", "train.py:2"),
        ("clip_grad_norm_", None, "train.py:3"),
    ]


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        ("add_argument('--deepspeed', type=str)\nHfTrainerDeepSpeedConfig(args.deepspeed)", ("--deepspeed",)),
        (
            "add_argument('--deepspeed_config')\nDeepSpeedPlugin(args.deepspeed_config)",
            ("--deepspeed_config",),
        ),
        ("add_argument('--deepspeed', action='store_true')\nDeepSpeedPlugin(args.deepspeed)", ()),
        ("add_argument('--deepspeed')\nprint(args.deepspeed)", ()),
    ],
)
def test_a_parser_that_takes_the_ds_config_of_accelerate_gets_it(
    file: Path, source: str, flags: tuple[str, ...]
) -> None:
    script = _read(file, f"{source}\nAccelerator(deepspeed_plugin=plugin)")
    assert (script.interface, script.is_sure, script.config_flags) == (
        ConfigInterface.ACCELERATE,
        False,
        flags,
    )


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ("add_argument('--local_rank')", "--local_rank"),
        ("add_argument('--local-rank')", "--local-rank"),
        ("add_argument('--local-rank', '--local_rank')", "--local_rank"),
        ("add_argument('--local-rank', default=os.environ['LOCAL_RANK'])", ""),
    ],
)
def test_a_local_rank_is_wanted_as_the_parser_of_the_script_spells_it(
    file: Path, source: str, flag: str
) -> None:
    script = _read(file, source)
    assert (script.local_rank_flag, script.wants_local_rank) == (flag, flag == "--local_rank")


def test_a_switch_of_the_script_takes_no_value(file: Path) -> None:
    script = _read(file, "add_argument('--deepspeed', action='store_true')\nadd_argument('--lr', type=float)")
    assert script.switches == {"--deepspeed"}
