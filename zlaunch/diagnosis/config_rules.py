"""What the rules of a ds_config say about a job that died of breaking one.

The rules are imported when they are asked: their models of a ds_config take longer to import than a
diagnosis takes.
"""

from zlaunch.diagnosis.evidence import JobEvidence


def rule_text(code: str) -> str:
    """Say what a rule is about, in its own first sentences."""
    from zlaunch.config.rules import RULES

    (rule,) = (one for one in RULES if one.code == code)
    return " ".join(rule.why.partition("\n\n")[0].split()).rstrip(".")


def broken_rule(code: str, job: JobEvidence) -> str:
    """Say what a rule finds in the job's ds_config; in general if it finds nothing."""
    from zlaunch.config.rules.rule import Context
    from zlaunch.config.rules.validate import validate_mapping
    from zlaunch.job.script import ConfigInterface

    interface = ConfigInterface.TRAINER if job.uses_trainer else ConfigInterface.DEEPSPEED
    found = validate_mapping(dict(job.config), Context(world_size=job.world_size, interface=interface))
    return next((one.message for one in found if one.code == code), rule_text(code))
