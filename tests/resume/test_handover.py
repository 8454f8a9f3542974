"""How the source of a script shows which checkpoint it loads."""

from pathlib import Path

from tests.each import each
from tests.making import script
from tests.running import RECIPE
from zlaunch.job.script import RESUME, ConfigInterface
from zlaunch.job.script_reader import read_script
from zlaunch.resume.handover import CheckpointHandover, CheckpointReading, checkpoint_handover


@each(
    ("source", "flag"),
    [
        ('p.add_argument("--resume_from_checkpoint", type=str)\naccelerator.load_state(1)', RESUME),
        ('p.add_argument("--resume-from-checkpoint")', "--resume-from-checkpoint"),
        ('p.add_argument("--resume_from_checkpoint", action="store_true")', ""),
        ("print(1)", ""),
    ],
)
def test_a_flag_of_the_scripts_own_parser_is_used_if_it_takes_a_path(
    source: str, flag: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"from accelerate import Accelerator\nAccelerator()\n{source}\n")
    assert checkpoint_handover(read_script(tmp_path / "own.py")).flag == flag


def test_both_recipes_are_known_to_load_what_they_are_told() -> None:
    loop = RECIPE.with_name("own_loop.py")
    assert checkpoint_handover(read_script(RECIPE)) == CheckpointHandover(RESUME, CheckpointReading.YES)
    assert checkpoint_handover(read_script(loop)) == CheckpointHandover("", CheckpointReading.YES)


@each(
    ("source", "reading"),
    [
        ("trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)", CheckpointReading.YES),
        (
            "last = args.resume_from_checkpoint or None\ntrainer.train(resume_from_checkpoint=last)",
            CheckpointReading.YES,
        ),
        (
            "trainer.train(resume_from_checkpoint=getattr(args, 'resume_from_checkpoint'))",
            CheckpointReading.YES,
        ),
        ("trainer.train(resume_from_checkpoint=True)", CheckpointReading.OWN),
        ("trainer.train(resume_from_checkpoint='out/checkpoint-5')", CheckpointReading.OWN),
        ("trainer.train(resume_from_checkpoint=last)", CheckpointReading.OWN),
        ("trainer.train(**how)", CheckpointReading.OWN),
        ("trainer.train(resume_from_checkpoint=None)", CheckpointReading.NO),
        ("trainer.train()", CheckpointReading.NO),
    ],
)
def test_a_trainer_that_chooses_its_checkpoint_is_not_said_to_restart_at_step_0(
    source: str, reading: CheckpointReading
) -> None:
    found = checkpoint_handover(script(source))
    assert (found.flag, found.reading) == (RESUME, reading)
    assert bool(found.place) == (reading is CheckpointReading.OWN)


@each(
    ("source", "reading"),
    [
        ('engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])', CheckpointReading.YES),
        ('engine.load_checkpoint("kept")', CheckpointReading.OWN),
        ('accelerator.load_state("kept")', CheckpointReading.OWN),
        ('torch.load("kept.pt")', CheckpointReading.OWN),
        ("engine.train()", CheckpointReading.NO),
        ("data = pickle.load(file)", CheckpointReading.NO),
    ],
)
def test_a_loop_that_loads_a_checkpoint_of_its_own_is_not_said_to_restart_at_step_0(
    source: str, reading: CheckpointReading
) -> None:
    found = checkpoint_handover(script(source, ConfigInterface.DEEPSPEED))
    assert (found.flag, found.reading) == ("", reading)


def test_what_another_module_may_load_is_unknown() -> None:
    assert checkpoint_handover(script("train()", has_other_modules=True)).reading is CheckpointReading.UNKNOWN
