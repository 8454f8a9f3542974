"""Jobs that resume from a checkpoint."""

from pathlib import Path
from typing import Any

from tests.facts import facts_of
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, local, script
from zlaunch.errors import Finding
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.check_resume import check_resume
from zlaunch.resume.choose import find_resumption
from zlaunch.resume.handover import Resumption

PASSES = "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"
TRAINER = script(PASSES)
LOOP = script('engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])', ConfigInterface.DEEPSPEED)


def job(resume: object, *argv: str, **asked: Any) -> JobSpec:
    return JobSpec(Path("train.py"), ScriptArgs.of(argv), resume=str(resume), **asked)


def resumption(resume: object, told: Script = TRAINER, *argv: str) -> Resumption:
    found = find_resumption(job(resume, *argv), told)
    assert found is not None
    return found


def inputs(resume: object, told: Script = TRAINER, ranks: int = 2, *argv: str, **asked: Any) -> JobFacts:
    return facts_of(
        job=job(resume, *argv, **{"stage": 2, "precision": "bf16", **asked}),
        script=told,
        ds_config=None,
        model=SHAPE,
        machine=CPU_MACHINE,
        topology=local(*range(ranks)),
        layout=LAYOUT,
        environ={},
        python=PYTHON,
        resumption=resumption(resume, told, *argv),
    )


def planned(resume: object, told: Script = TRAINER, ranks: int = 2, *argv: str, **asked: Any) -> LaunchPlan:
    return make_plan(inputs(resume, told, ranks, *argv, **asked))


def findings(plan: LaunchPlan) -> list[Finding]:
    return list(check_resume(plan.training))
