"""What a script does in vain under DeepSpeed, by its source; and programs that do nothing in vain."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.running import ROOT
from zlaunch.config.script_traps import ZeroSettings, script_traps
from zlaunch.errors import Finding, Severity
from zlaunch.job.script_reader import read_script

TRAINER = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
{body}
Trainer(model=model, args=args).train()
"""
ENGINE = """
import argparse, os, deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(args=args, model=model)
rank = int(os.environ["RANK"])
for step, batch in enumerate(data):
    loss = engine(batch)
{body}
"""


def found(tmp_path: Path, source: str, **settings: object) -> list[Finding]:
    path = tmp_path / "train.py"
    path.write_text(dedent(source))
    zero = ZeroSettings(**{"stage": 3, "accumulation": 1, **settings})  # type: ignore[arg-type]
    return [*script_traps(read_script(path), zero)]


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def trainer(body: str) -> str:
    return TRAINER.format(body=body)


def engine(body: str) -> str:
    return ENGINE.format(body=body)


STEP = "    engine.backward(loss)\n    engine.step()\n"

TRAPS = {
    "device-map": trainer('model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")'),
    "four-bit-weights": trainer(
        "from transformers import BitsAndBytesConfig\n"
        'bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")\n'
        'model = AutoModelForCausalLM.from_pretrained("m", quantization_config=bits)'
    ),
    "model-before-arguments": """
        from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
        def main():
            model = AutoModelForCausalLM.from_pretrained("m")
            (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
            Trainer(model=model, args=args).train()
        main()
        """,
    "save-on-one-rank": engine(STEP + 'if rank == 0:\n    engine.save_checkpoint("out")'),
    "gathering-save-on-one-rank": engine(STEP + 'if rank == 0:\n    engine.save_16bit_model("out")'),
    "generate-on-one-rank": engine(
        STEP + "if torch.distributed.get_rank() == 0:\n    engine.generate(batch)"
    ),
    "partial-weights-saved": engine(STEP + 'torch.save(engine.module.state_dict(), "model.pt")'),
    "own-accumulation": engine("    engine.backward(loss)\n    if step % 4 == 0:\n        engine.step()"),
    "loss-divided-by-script": engine("    loss = loss / args.accumulation\n" + STEP),
    "unmarked-muon": engine(
        STEP + "from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam\n"
        "MuonWithAuxAdam([{'params': matrices, 'use_muon': True}])"
    ),
}
"""Code → a script."""


@pytest.mark.parametrize(
    "test",
    ["engine.global_rank == 0", "deepspeed.comm.get_rank() == 0", "is_world_process_zero() and args.save"],
)
def test_a_rank_of_deepspeed_is_one(test: str, tmp_path: Path) -> None:
    source = engine(STEP + f'if {test}:\n    engine.save_checkpoint("out")')
    assert codes(found(tmp_path, source)) == ["save-on-one-rank"]


@pytest.mark.parametrize("code", TRAPS)
def test_a_trap_is_found_with_its_line(code: str, tmp_path: Path) -> None:
    settings = {"accumulation": 4} if code in ("own-accumulation", "loss-divided-by-script") else {}
    (finding,) = found(tmp_path, TRAPS[code], **settings)
    assert finding.code == code
    assert finding.place is not None
    assert finding.place.text.strip()
    assert finding.hint


@pytest.mark.parametrize(
    "code", [code for code in TRAPS if code not in ("save-on-one-rank", "unmarked-muon")]
)
def test_at_stage_0_without_accumulation_there_is_no_trap(code: str, tmp_path: Path) -> None:
    assert found(tmp_path, TRAPS[code], stage=0) == []


@pytest.mark.parametrize("code", TRAPS)
def test_an_unknown_stage_is_no_trap(code: str, tmp_path: Path) -> None:
    assert found(tmp_path, TRAPS[code], stage=None) == []


def test_only_what_surely_fails_is_refused(tmp_path: Path) -> None:
    after = found(tmp_path, TRAPS["device-map"])
    elsewhere = (
        'def load(training_args):\n    return AutoModelForCausalLM.from_pretrained("m", device_map="auto")'
    )
    perhaps = found(tmp_path, trainer(f"{elsewhere}\nmodel = load(args)"))
    assert [finding.severity for finding in (*after, *perhaps)] == [Severity.FAILS_LATER, Severity.WARNING]


def test_low_cpu_mem_usage_is_refused_by_older_transformers(tmp_path: Path) -> None:
    source = trainer('model = AutoModelForCausalLM.from_pretrained("m", low_cpu_mem_usage=True)')
    assert codes(found(tmp_path, source, transformers="4.46.3")) == ["low-cpu-mem-usage"]
    assert found(tmp_path, source, transformers="4.57.6") == []


EARLY = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{before}
model = AutoModelForCausalLM.from_pretrained("m")
Trainer(model=model, args=TrainingArguments("out")).train()
"""

NO_TRAPS = {
    "a model that is loaded if somebody asks for it": trainer(
        'if args.merge:\n    model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")'
    ),
    "a function that nobody calls": trainer(
        'def infer():\n    return AutoModelForCausalLM.from_pretrained("m", load_in_4bit=True)\nmodel = None'
    ),
    "a function that may be called before the arguments": trainer(
        'def load():\n    return AutoModelForCausalLM.from_pretrained("m", device_map="auto")\nmodel = load()'
    ),
    "a failure that is caught": trainer(
        'try:\n    model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")\n'
        "except ValueError:\n    model = None"
    ),
    "4 bits that nothing uses": trainer("bits = BitsAndBytesConfig(load_in_4bit=True)\nmodel = None"),
    "a program that trains nothing": 'AutoModelForCausalLM.from_pretrained("m", device_map="auto")',
    "a tokenizer, and another library's model": trainer(
        'AutoTokenizer.from_pretrained("m", device_map="auto")\n'
        'model = PeftModel.from_pretrained(base, "m", device_map="auto")'
    ),
    "a model after an Accelerator, which knows the stage": EARLY.format(before="accelerator = Accelerator()"),
    "a model in a function that is given the arguments": """
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
        def train(training_args):
            model = AutoModelForCausalLM.from_pretrained("m")
            Trainer(model=model, args=TrainingArguments("again")).train()
        train(None)
        """,
    "a save of another engine": engine(
        STEP + "    if args.framework == 'deepspeed':\n        engine.save_checkpoint('out')\n"
        "    else:\n        torch.save(engine.state_dict(), 'out.pt')"
    ),
    "a loss divided by one": engine(
        "    gradient_accumulation_steps = 1\n    loss = loss / gradient_accumulation_steps\n" + STEP
    ),
    "a device map that may be None": trainer(
        'model = AutoModelForCausalLM.from_pretrained("m", device_map=where)'
    ),
    "no device map": trainer('model = AutoModelForCausalLM.from_pretrained("m", device_map=None)'),
    "4 bits in floats": trainer(
        "from transformers import BitsAndBytesConfig\n"
        "bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)\n"
        'model = AutoModelForCausalLM.from_pretrained("m", quantization_config=bits)'
    ),
    "a model after the arguments": trainer('model = AutoModelForCausalLM.from_pretrained("m")'),
    "all ranks save": engine(STEP + 'engine.save_checkpoint("out")'),
    "another rank's branch": engine(
        STEP + 'if rank == 0:\n    print("saved")\nelse:\n    pass\nengine.save_checkpoint("out")'
    ),
    "one rank saves something else": engine(STEP + "if rank == 0:\n    tokenizer.save_checkpoint('out')"),
    "the state of an optimizer": engine(STEP + "torch.save(scheduler.state_dict(), 's.pt')"),
    "gathered weights": engine(
        STEP + "with deepspeed.zero.GatheredParameters([*model.parameters()]):\n"
        "    torch.save(model.state_dict(), 'm.pt')"
    ),
    "another model": engine(STEP + "torch.save(teacher.state_dict(), 't.pt')"),
    "a step for each micro-batch": engine(STEP),
    "a log every few steps": engine(STEP + "    if step % 10 == 0:\n        print(loss)"),
    "a boundary set by hand": engine(
        "    engine.set_gradient_accumulation_boundary(step % 4 == 0)\n    engine.backward(loss)\n"
        "    if step % 4 == 0:\n        engine.step()"
    ),
    "a mean over tokens": engine("    loss = loss / batch.count\n" + STEP),
    "marked Muon": engine(
        STEP + "from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam\n"
        "for p in model.parameters():\n    p.use_muon = p.ndim > 1\n"
        "MuonWithAuxAdam([{'params': matrices, 'use_muon': True}])"
    ),
}


@pytest.mark.parametrize("name", NO_TRAPS)
@pytest.mark.parametrize("stage", [2, 3])
def test_nothing_is_found_where_nothing_is_wrong(name: str, stage: int, tmp_path: Path) -> None:
    for accumulation in (1, 4):
        assert found(tmp_path, NO_TRAPS[name], stage=stage, accumulation=accumulation) == []


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.stem)
def test_recipes_have_no_traps(path: Path) -> None:
    assert [*script_traps(read_script(path), ZeroSettings(stage=3, accumulation=4))] == []


def test_a_class_of_arguments_may_have_the_name_of_its_base(tmp_path: Path) -> None:
    source = trainer("model = None").replace(
        "(args,)",
        "import transformers\nclass TrainingArguments(transformers.TrainingArguments):\n    pass\n(args,)",
    )
    assert found(tmp_path, source) == []


@pytest.mark.parametrize("code", ["own-accumulation", "loss-divided-by-script"])
def test_a_script_that_accumulates_by_itself_may_divide_and_step_as_it_likes(
    code: str, tmp_path: Path
) -> None:
    assert found(tmp_path, TRAPS[code], accumulation=4, is_managed=False) == []


def test_a_trap_in_nested_loops_is_found_once(tmp_path: Path) -> None:
    body = "    for part in batch:\n        loss = loss / args.accumulation\n        engine.backward(loss)\n"
    assert codes(found(tmp_path, engine(body), accumulation=4)) == ["loss-divided-by-script"]
